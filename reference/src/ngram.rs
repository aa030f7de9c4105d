//! The n-gram drafter (prompt lookup): the longest earlier match of the last tokens, continued as it went on then.
//! Knows tokens only; no model.

/// Longest suffix looked for.
const LONGEST: usize = 4;
/// Shortest: single tokens match too often by chance.
const SHORTEST: usize = 2;
/// What a copied token is taken to be worth. A stated constant, since a copy has no probability of its own.
pub const COPY_PROBABILITY: f32 = 0.5;

/// Up to `limit` tokens that followed the latest earlier occurrence of the longest matching suffix of `tokens`.
pub fn propose(tokens: &[u32], limit: usize) -> &[u32] {
    for n in (SHORTEST..=LONGEST).rev().filter(|&n| n < tokens.len()) {
        let suffix = &tokens[tokens.len() - n..];
        // The suffix itself is no earlier occurrence: something must follow the match.
        if let Some(start) = tokens[..tokens.len() - 1].windows(n).rposition(|window| window == suffix) {
            let rest = &tokens[start + n..];
            return &rest[..rest.len().min(limit)];
        }
    }
    &[]
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_longest_and_then_the_latest_match_is_continued() {
        assert_eq!(propose(&[1, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3], 2), [9, 5]);
        assert_eq!(propose(&[7, 2, 3, 9, 5, 2, 3, 8, 1, 2, 3], 3), [8, 1, 2]);
        assert_eq!(propose(&[4, 4, 4, 4], 3), [4]);
        assert_eq!(propose(&[1, 2, 3, 4, 3], 3), [] as [u32; 0]);
        assert_eq!(propose(&[1], 3), [] as [u32; 0]);
    }
}
