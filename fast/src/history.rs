//! The tokens of one sequence as penalties and prompt lookup see them: order, and how often the answer used each id.
//! One object walks along the accepted path, so a tree node's penalties are those of plain decoding at that node.

/// Prompt and answer so far.
pub(crate) struct History {
    tokens: Vec<u32>,
    prompt: usize,
    in_prompt: Vec<bool>,
    answer_counts: Vec<u32>,
}

impl History {
    /// A prompt and no answer yet. Every id must be below `vocab`.
    pub fn new(prompt: &[u32], vocab: usize) -> Self {
        let mut in_prompt = vec![false; vocab];
        for &token in prompt {
            in_prompt[token as usize] = true;
        }
        Self { tokens: prompt.to_vec(), prompt: prompt.len(), in_prompt, answer_counts: vec![0; vocab] }
    }

    /// Adds a token to the answer.
    pub fn push(&mut self, token: u32) {
        self.tokens.push(token);
        self.answer_counts[token as usize] += 1;
    }

    /// Takes the answer back to its first `len` tokens.
    pub fn truncate(&mut self, len: usize) {
        for token in self.tokens.drain(self.prompt + len..) {
            self.answer_counts[token as usize] -= 1;
        }
    }

    /// Tokens of the answer.
    pub fn answer_len(&self) -> usize {
        self.tokens.len() - self.prompt
    }

    /// Prompt and answer, in order.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Whether prompt or answer has the token.
    pub fn seen(&self, token: usize) -> bool {
        self.in_prompt[token] || self.answer_counts[token] > 0
    }

    /// How often the answer has the token.
    pub fn count(&self, token: usize) -> u32 {
        self.answer_counts[token]
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_refused_draft_leaves_no_count_behind() {
        let mut history = History::new(&[1, 2], 8);
        history.push(5);
        history.push(5);
        history.push(6);
        history.truncate(1);
        assert_eq!((history.count(5), history.count(6), history.seen(6), history.seen(2)), (1, 0, false, true));
        assert_eq!(history.tokens(), [1, 2, 5]);
    }
}
