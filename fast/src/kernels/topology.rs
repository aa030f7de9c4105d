//! How the rows of a pass follow each other: a chain (prefill, plain decoding) or a draft tree. The delta rule's walk visits
//! the rows so that few states are alive; it is planned once per round and shared by all layers.

/// The row before each row.
#[derive(Clone, Copy, Debug)]
pub enum Topology<'a> {
    /// Row r follows row r - 1; row 0 follows the committed state.
    Chain,
    /// Parent row of each row, before it in order; `None` follows the committed state (`DraftTree::parents`).
    Tree(&'a [Option<usize>]),
}

impl Topology<'_> {
    /// The row before `row`; `None` is the committed state.
    pub(super) fn parent(self, row: usize) -> Option<usize> {
        match self {
            Self::Chain => row.checked_sub(1),
            Self::Tree(parents) => parents[row],
        }
    }
}

/// An order of visiting a tree's rows. Depth first, the largest subtree last, so that a row's last child may overwrite its
/// state: at most `log2(rows) + 1` states are alive.
#[derive(Clone, Debug, Default)]
pub struct Walk {
    pub(super) steps: Vec<Step>,
    slots: usize,
    sizes: Vec<usize>,
    stack: Vec<(usize, Option<usize>, usize)>,
}

/// One row: its state is made in slot `to`, from slot `from` or from the committed state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Step {
    pub row: usize,
    pub from: Option<usize>,
    pub to: usize,
}

impl Walk {
    /// Room for trees of `rows` rows, so that planning them allocates nothing.
    pub fn with_capacity(rows: usize) -> Self {
        Self { steps: Vec::with_capacity(rows), slots: 0, sizes: Vec::with_capacity(rows), stack: Vec::with_capacity(rows) }
    }

    /// Plans the walk through a tree.
    ///
    /// # Panics
    /// If a parent does not come before its child.
    pub fn plan(&mut self, parents: &[Option<usize>]) {
        self.sizes.clear();
        self.sizes.resize(parents.len(), 1);
        for row in (0..parents.len()).rev() {
            if let Some(parent) = parents[row] {
                assert!(parent < row, "row {row} has parent {parent}, which does not come before it");
                self.sizes[parent] += self.sizes[row];
            }
        }
        self.steps.clear();
        self.slots = 0;
        self.push_children(parents, None, None, 0);
        while let Some((row, from, to)) = self.stack.pop() {
            self.slots = self.slots.max(to + 1);
            self.steps.push(Step { row, from, to });
            self.push_children(parents, Some(row), Some(to), to);
        }
    }

    /// Puts the children of `parent` on the stack, the largest subtree deepest. It inherits the parent's slot; its siblings
    /// share the next one, one after the other.
    fn push_children(&mut self, parents: &[Option<usize>], parent: Option<usize>, from: Option<usize>, slot: usize) {
        let first = parent.map_or(0, |p| p + 1);
        let children = || (first..parents.len()).filter(|&c| parents[c] == parent);
        let Some(last) = children().max_by_key(|&c| self.sizes[c]) else { return };
        // Without a parent nothing has to be kept for the others: the committed state is never overwritten.
        let next = slot + usize::from(from.is_some());
        self.stack.push((last, from, slot));
        for child in children().filter(|&c| c != last) {
            self.stack.push((child, from, next));
        }
    }

    /// States alive at once.
    pub fn slots(&self) -> usize {
        self.slots
    }

    /// Rows visited.
    pub(super) fn rows(&self) -> usize {
        self.steps.len()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Follows the walk with slots that hold the path so far instead of a state.
    fn paths(parents: &[Option<usize>]) -> (Vec<Vec<usize>>, usize) {
        let mut walk = Walk::default();
        walk.plan(parents);
        let mut slots = vec![vec![]; walk.slots()];
        let mut paths = vec![vec![]; parents.len()];
        for step in &walk.steps {
            let mut path = step.from.map_or(vec![], |s| slots[s].clone());
            path.push(step.row);
            paths[step.row] = path.clone();
            slots[step.to] = path;
        }
        (paths, walk.slots())
    }

    proptest! {
        #![proptest_config(ProptestConfig { cases: 200, failure_persistence: None, ..ProptestConfig::default() })]
        #[test]
        fn every_row_starts_from_its_parents_state(draws in prop::collection::vec(any::<u32>(), 1..40)) {
            let parents: Vec<_> = (0..draws.len()).map(|r| (r > 0).then(|| draws[r] as usize % r.max(1))).collect();
            let (paths, slots) = paths(&parents);
            for (row, path) in paths.iter().enumerate() {
                let mut want = vec![row];
                while let Some(parent) = parents[*want.last().unwrap()] {
                    want.push(parent);
                }
                want.reverse();
                prop_assert_eq!(path, &want);
            }
            prop_assert!(slots <= (parents.len() as f64).log2() as usize + 1, "{} slots for {} rows", slots, parents.len());
        }
    }

    #[test]
    fn a_chain_and_a_star_need_few_states() {
        let chain: Vec<_> = (0..33usize).map(|r| r.checked_sub(1)).collect();
        assert_eq!(paths(&chain).1, 1);
        let star: Vec<_> = (0..33).map(|r| (r > 0).then_some(0)).collect();
        assert_eq!(paths(&star).1, 2);
    }
}
