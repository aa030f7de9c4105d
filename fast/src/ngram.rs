//! Prompt lookup (Saxena 2023): the longest earlier occurrence of the last tokens, and what followed it, as a draft.
//! Knows token ids only.

/// Longest suffix looked up.
const LONGEST: usize = 4;
/// Shortest suffix that counts as a match: single tokens repeat by chance.
const SHORTEST: usize = 2;
/// Probability given to every drafted edge. A stated constant: a copy has no score of its own.
const CONTINUES: f32 = 0.5;

/// What followed the most recent earlier match of the longest possible suffix: at most `limit` tokens with the
/// log-probability of their edge. Empty without a match.
pub(crate) fn draft(tokens: &[u32], limit: usize) -> Vec<(u32, f32)> {
    for length in (SHORTEST..=LONGEST).rev() {
        if tokens.len() <= length || limit == 0 {
            continue;
        }
        let suffix = &tokens[tokens.len() - length..];
        let earlier = (0..tokens.len() - length).rev().find(|&at| &tokens[at..at + length] == suffix);
        if let Some(at) = earlier {
            let next = at + length;
            return tokens[next..].iter().take(limit).map(|&token| (token, CONTINUES.ln())).collect();
        }
    }
    vec![]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ids(tokens: &[u32], limit: usize) -> Vec<u32> {
        draft(tokens, limit).into_iter().map(|d| d.0).collect()
    }

    #[test]
    fn the_longest_and_most_recent_match_wins() {
        assert_eq!(ids(&[1, 2, 3, 7, 9, 2, 3, 8, 5, 1, 2, 3], 2), [7, 9]);
        assert_eq!(ids(&[2, 3, 7, 2, 3, 8, 2, 3], 3), [8, 2, 3]);
    }

    #[test]
    fn no_match_no_draft_and_never_beyond_the_limit() {
        assert!(ids(&[1, 2, 3, 4], 8).is_empty());
        assert!(ids(&[1, 1], 8).is_empty());
        assert!(ids(&[5, 6, 5, 6], 0).is_empty());
        assert_eq!(ids(&[5, 6, 5, 6], 9), [5, 6]);
    }
}
