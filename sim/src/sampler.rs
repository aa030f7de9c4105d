//! Draws rounds from a law of acceptance: one walk down the largest tree decides every smaller budget too, since a smaller
//! tree is a prefix. The order of draws depends on the law and the tree only. Knows no policy and no cost.

use crate::{
    Shape,
    model::{AcceptanceModel, Latent, Law, Scope, tries},
    randomness::{beta, uniform},
};
use rand_chacha::ChaCha8Rng;

/// A tree prepared for walking: children of a row as a range, with their rates per regime.
#[derive(Clone, Debug)]
pub(crate) struct Walk {
    first: Vec<u32>,
    child: Vec<Child>,
}

#[derive(Clone, Copy, Debug)]
struct Child {
    row: u32,
    rank: u32,
    rate: [f64; 2],
}

impl Walk {
    pub(crate) fn new(model: &AcceptanceModel, shape: &Shape) -> Self {
        let mut walk = Self { first: vec![0], child: Vec::new() };
        for row in shape.children() {
            for c in row {
                let rank = shape.rank(c);
                let rate = match model.law() {
                    Law::Markov { alpha, .. } => alpha.map(|a| tries(a, rank)),
                    _ => [model.rate(shape.depth(c), rank); 2],
                };
                walk.child.push(Child { row: c as u32, rank: rank as u32, rate });
            }
            walk.first.push(walk.child.len() as u32);
        }
        walk
    }
}

/// One prompt's stream of rounds.
pub(crate) struct Sampler<'a> {
    model: &'a AcceptanceModel,
    walk: &'a Walk,
    rng: ChaCha8Rng,
    latent: Latent,
    /// Regime of each position from the root's successor on, one more than the walk looked at.
    regimes: Vec<usize>,
}

impl<'a> Sampler<'a> {
    pub(crate) fn new(model: &'a AcceptanceModel, walk: &'a Walk, mut rng: ChaCha8Rng) -> Self {
        let latent = match model.law() {
            Law::Markov { leave, .. } => Latent::Regime(usize::from(uniform(&mut rng) * (leave[0] + leave[1]) >= leave[1])),
            Law::Beta { mean, concentration, .. } => {
                Latent::Rate(beta(&mut rng, mean * concentration, (1.0 - mean) * concentration))
            }
            _ => Latent::None,
        };
        Self { model, walk, rng, latent, regimes: Vec::new() }
    }

    /// Difficulty of the coming round.
    pub(crate) fn latent(&self) -> Latent {
        self.latent
    }

    /// Accepted rows of the whole tree, top down.
    pub(crate) fn round(&mut self, path: &mut Vec<usize>) {
        path.clear();
        self.regimes.clear();
        let mut row = 0;
        loop {
            let next = self.step(row);
            if let (Law::Markov { leave, .. }, Latent::Regime(s)) = (self.model.law(), self.latent) {
                self.regimes.push(s);
                self.latent = Latent::Regime(if uniform(&mut self.rng) < leave[s] { 1 - s } else { s });
            }
            match next {
                Some(child) => path.push(child),
                None => break,
            }
            row = path[path.len() - 1];
        }
        if let Latent::Regime(s) = self.latent {
            self.regimes.push(s);
        }
    }

    /// Ends the round after `accepted` drafts of the path and the bonus token; what lies beyond was never drafted.
    pub(crate) fn commit(&mut self, accepted: usize) {
        match self.model.law() {
            Law::Markov { .. } => self.latent = Latent::Regime(self.regimes[accepted + 1]),
            Law::Beta { mean, concentration, scope: Scope::Round } => {
                self.latent = Latent::Rate(beta(&mut self.rng, mean * concentration, (1.0 - mean) * concentration));
            }
            _ => {}
        }
    }

    fn step(&mut self, row: usize) -> Option<usize> {
        let children = &self.walk.child[self.walk.first[row] as usize..self.walk.first[row + 1] as usize];
        if children.is_empty() {
            return None;
        }
        let mut left = uniform(&mut self.rng);
        for c in children {
            let rate = match self.latent {
                Latent::None => c.rate[0],
                Latent::Regime(s) => c.rate[s],
                Latent::Rate(alpha) => tries(alpha, c.rank as usize),
            };
            if left < rate {
                return Some(c.row as usize);
            }
            left -= rate;
        }
        None
    }
}
