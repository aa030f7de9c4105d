//! Stop strings over streamed text: they may cross tokens, and nothing of a match, nor of what may still become one,
//! is let through. Knows text only.

use anyhow::{Result, ensure};

/// Lets text through up to the first stop string.
#[derive(Debug)]
pub struct StopFilter {
    stops: Vec<String>,
    /// Text that may be the beginning of a stop string.
    held: String,
    stopped: bool,
}

impl StopFilter {
    /// Error: an empty stop string, which would match everywhere.
    pub fn new(stops: &[String]) -> Result<Self> {
        ensure!(stops.iter().all(|s| !s.is_empty()), "a stop string is empty, expected at least one character (set --stop)");
        Ok(Self { stops: stops.to_vec(), held: String::new(), stopped: false })
    }

    /// Takes the next piece and returns what may be shown. After a match everything is swallowed.
    pub fn push(&mut self, piece: &str) -> String {
        if self.stopped {
            return String::new();
        }
        self.held.push_str(piece);
        if let Some(at) = self.stops.iter().filter_map(|stop| self.held.find(stop.as_str())).min() {
            self.stopped = true;
            self.held.truncate(at);
            return std::mem::take(&mut self.held);
        }
        let keep = self.stops.iter().map(|stop| longest_overlap(&self.held, stop)).max().unwrap_or(0);
        let rest = self.held.split_off(self.held.len() - keep);
        std::mem::replace(&mut self.held, rest)
    }

    /// A stop string was found.
    pub fn stopped(&self) -> bool {
        self.stopped
    }

    /// The text ended: what was held back was no stop string after all.
    pub fn finish(&mut self) -> String {
        if self.stopped { String::new() } else { std::mem::take(&mut self.held) }
    }
}

/// Bytes of the longest end of `text` that begins `stop`.
fn longest_overlap(text: &str, stop: &str) -> usize {
    let starts = stop.char_indices().map(|(i, _)| i).skip(1);
    starts.filter(|&n| text.ends_with(&stop[..n])).max().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn run(stops: &[&str], pieces: &[&str]) -> (Vec<String>, bool) {
        let mut filter = StopFilter::new(&stops.iter().map(|s| (*s).to_owned()).collect::<Vec<_>>()).unwrap();
        let mut shown: Vec<String> = pieces.iter().map(|p| filter.push(p)).collect();
        shown.push(filter.finish());
        (shown, filter.stopped())
    }

    #[test]
    fn a_stop_string_across_pieces_leaves_no_trace() {
        let (shown, stopped) = run(&["beta gamma"], &["alpha be", "ta ga", "mma delta", " more"]);
        assert_eq!((shown.concat().as_str(), stopped), ("alpha ", true));
        assert_eq!(shown, ["alpha ", "", "", "", ""]);
    }

    #[test]
    fn only_a_possible_beginning_is_held_back() {
        let (shown, stopped) = run(&["forty unlikely characters in a long row!"], &["first", " for", "est"]);
        assert_eq!(shown[..3], ["first", " ", "forest"]);
        assert!(!stopped);
    }

    #[test]
    fn the_earliest_of_several_stops_wins_and_the_rest_is_released_at_the_end() {
        assert_eq!(run(&["zz", "b"], &["aabzz"]).0.concat(), "aa");
        assert_eq!(run(&["abc"], &["xab"]).0.concat(), "xab");
        assert!(StopFilter::new(&[String::new()]).is_err());
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 256, failure_persistence: None, ..ProptestConfig::default() })]

        #[test]
        fn however_the_text_is_cut_the_result_is_the_text_before_the_first_stop(
            pieces in prop::collection::vec("[abé]{0,4}", 0..12), stop in "[abé]{1,4}"
        ) {
            let refs: Vec<&str> = pieces.iter().map(String::as_str).collect();
            let whole = pieces.concat();
            let (shown, stopped) = run(&[&stop], &refs);
            prop_assert_eq!(shown.concat(), whole.split(stop.as_str()).next().unwrap());
            prop_assert_eq!(stopped, whole.contains(&stop));
        }
    }
}
