//! Text without comments, and lists split at their own commas. Knows nothing of shaders.

/// The text with comments blanked out; line breaks stay.
pub(crate) fn without_comments(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(c) = rest.chars().next() {
        let comment = if rest.starts_with("//") {
            rest.find('\n').unwrap_or(rest.len())
        } else if rest.starts_with("/*") {
            rest.find("*/").map_or(rest.len(), |end| end + 2)
        } else {
            out.push(c);
            rest = &rest[c.len_utf8()..];
            continue;
        };
        out.extend(rest[..comment].chars().map(|c| if c == '\n' { '\n' } else { ' ' }));
        rest = &rest[comment..];
    }
    out
}

/// What stands between `open` at the start of `text` and its partner, and what follows the partner.
pub(crate) fn bracketed(text: &str, open: char, close: char) -> Option<(&str, &str)> {
    let mut depth = 0usize;
    for (i, c) in text.char_indices() {
        if c == open {
            depth += 1;
        } else if c == close {
            depth = depth.checked_sub(1)?;
            if depth == 0 {
                return Some((&text[open.len_utf8()..i], &text[i + close.len_utf8()..]));
            }
        }
        if depth == 0 {
            return None;
        }
    }
    None
}

/// The parts of a list at commas outside brackets, trimmed; nothing of an empty list.
pub(crate) fn split_list(list: &str) -> Vec<&str> {
    let (mut depth, mut start, mut parts) = (0i32, 0, Vec::new());
    for (i, c) in list.char_indices() {
        match c {
            '(' | '[' | '<' => depth += 1,
            ')' | ']' | '>' => depth -= 1,
            ',' if depth == 0 => {
                parts.push(list[start..i].trim());
                start = i + 1;
            }
            _ => {}
        }
    }
    parts.push(list[start..].trim());
    parts.retain(|part| !part.is_empty());
    parts
}

/// Every place where `word` stands alone.
pub(crate) fn words<'t>(text: &'t str, word: &'t str) -> impl Iterator<Item = usize> + 't {
    let part = |c: char| c.is_alphanumeric() || c == '_';
    text.match_indices(word)
        .filter(move |(i, _)| !text[..*i].ends_with(part) && !text[i + word.len()..].starts_with(part))
        .map(|(i, _)| i)
}

/// The name at the start of `text`, and what follows.
pub(crate) fn name(text: &str) -> Option<(&str, &str)> {
    let text = text.trim_start();
    let end = text.find(|c: char| !(c.is_alphanumeric() || c == '_')).unwrap_or(text.len());
    (end > 0 && !text.starts_with(|c: char| c.is_ascii_digit())).then(|| text.split_at(end))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn comments_go_and_lines_stay() {
        assert_eq!(without_comments("a // b\nc /* d\n e */ f"), "a     \nc     \n      f");
    }

    #[test]
    fn commas_inside_brackets_do_not_split() {
        assert_eq!(split_list("a<b, c> d, e[[f(1, 2)]] ,g"), ["a<b, c> d", "e[[f(1, 2)]]", "g"]);
        assert_eq!(split_list("  "), Vec::<&str>::new());
        assert_eq!(bracketed("(a (b) c) d", '(', ')'), Some(("a (b) c", " d")));
        assert_eq!(bracketed("(a (b c", '(', ')'), None);
    }

    #[test]
    fn a_word_is_not_a_part_of_another() {
        assert_eq!(words("kernel my_kernel kernel2 kernel", "kernel").collect::<Vec<_>>(), [0, 25]);
        assert_eq!(name("  abc_1 d"), Some(("abc_1", " d")));
        assert_eq!(name("1a"), None);
    }
}
