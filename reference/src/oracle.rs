//! A loaded model and the questions it answers: logits of a sequence, logits of a tree, generation.
//! Knows where files are; the arithmetic is elsewhere.

use crate::{
    dflash::Dflash,
    draft::{Drafter, Shape},
    error::ReferenceError,
    generate::{check_finite, generate},
    model::Target,
    mtp::Mtp,
    rows::Rows,
    state::State,
    weaver::Weaver,
    weights::Checkpoint,
};
use ndarray::{Array2, Axis, concatenate};
use specdec::{
    DflashConfig, DraftTree, DrafterKind, GenerateRequest, Generation, ModelConfig, RequestError, Token, WeaverConfig,
};
use std::{fs, ops::ControlFlow, path::Path};

/// A target with the drafters that came with it.
pub struct Reference {
    pub(crate) target: Target,
    pub(crate) mtp: Option<Mtp>,
    pub(crate) dflash: Option<Dflash>,
    pub(crate) weaver: Option<Weaver>,
}

impl Reference {
    /// Reads a model folder: `config.json`, `generation_config.json` where present, the weights, and the drafters in
    /// `dflash/` and `weaver/` where present.
    ///
    /// Errors: one sentence for whatever is missing, damaged or of another shape than the configuration says.
    pub fn load(dir: &Path) -> Result<Self, ReferenceError> {
        let config = read_config(dir)?;
        let weights = Checkpoint::open(dir)?;
        let has_mtp = config.mtp_layers > 0;
        let target = Target::load(&weights, config)?;
        let mtp = has_mtp.then(|| Mtp::load(&weights, &target)).transpose()?;
        drop(weights);
        let dflash = load_dflash(&dir.join("dflash"), &target.config)?;
        let weaver = match &dflash {
            Some(dflash) => load_weaver(&dir.join("weaver"), &target.config, &dflash.config)?,
            None => None,
        };
        Ok(Self { target, mtp, dflash, weaver })
    }

    /// The target's configuration.
    pub fn config(&self) -> &ModelConfig {
        &self.target.config
    }

    /// Drafters that can be asked for; off and n-gram need no weights.
    pub fn drafters(&self) -> Vec<DrafterKind> {
        DrafterKind::ALL.into_iter().filter(|&kind| self.has(kind)).collect()
    }

    /// Teacher-forced logits `[tokens, vocab]`: row `i` is after token `i`.
    ///
    /// Errors: no tokens, an id outside the vocabulary, more tokens than the context.
    pub fn logits(&self, tokens: &[u32]) -> Result<Array2<f64>, ReferenceError> {
        check_tokens(self.config(), tokens, tokens.len())?;
        let mut logits = Array2::zeros((0, self.target.config.vocab_size));
        let mut finite = Ok(());
        self.target.run(tokens, &mut State::new(&self.target.config), &mut |pass| {
            logits = concatenate![Axis(0), logits, pass.logits];
            finite = std::mem::replace(&mut finite, Ok(())).and(check_finite(pass));
        });
        finite.map(|()| logits)
    }

    /// Logits `[rows, vocab]` of a tree whose root is the last prompt token: row 0 is after the prompt, row `i` after
    /// node `i` and its path.
    ///
    /// Errors: those of [`logits`](Self::logits), and a root that is not the last prompt token.
    pub fn tree_logits(&self, prompt: &[u32], tree: &DraftTree) -> Result<Array2<f64>, ReferenceError> {
        check_tokens(self.config(), prompt, prompt.len() + tree.max_depth())?;
        check_tokens(self.config(), tree.tokens(), 0)?;
        let (before, root) = prompt.split_at(prompt.len() - 1);
        if tree.tokens()[..1] != *root {
            let found = format!("the tree's root is token {}", tree.tokens()[0]);
            return Err(ReferenceError::Tree { found, expected: format!("the prompt's last token {}", root[0]) });
        }
        let mut state = State::new(&self.target.config);
        self.target.run(before, &mut state, &mut |_| {});
        let pass = self.target.forward(tree.tokens(), &Rows::tree(tree, state.length), &state);
        check_finite(&pass)?;
        Ok(pass.logits)
    }

    /// Generates. `emit` gets every token as it is decided; breaking ends the answer with that token.
    ///
    /// Errors: a request that does not fit the model, a drafter the model does not have.
    pub fn generate(
        &self,
        request: &GenerateRequest,
        emit: &mut dyn FnMut(Token) -> ControlFlow<()>,
    ) -> Result<Generation, ReferenceError> {
        generate(&self.target, self.drafter(request.drafter)?, request, emit)
    }

    /// A drafter at the start of a sequence.
    pub(crate) fn drafter(&self, kind: DrafterKind) -> Result<Drafter<'_>, ReferenceError> {
        let drafter = match kind {
            DrafterKind::Off => Some(Drafter::Off),
            DrafterKind::Ngram => Some(Drafter::Ngram),
            DrafterKind::Mtp => self.mtp.as_ref().map(|head| Drafter::Mtp { head, state: head.start(&self.target) }),
            DrafterKind::Dflash => self.block_drafter(Some(Shape::Chain)),
            DrafterKind::DflashTree => self.block_drafter(Some(Shape::Tree)),
            DrafterKind::Weaver => {
                let hidden = self.target.config.hidden_size;
                let shape = |weaver| Shape::Weaver { weaver, last_hidden: Array2::zeros((1, hidden)) };
                self.block_drafter(self.weaver.as_ref().map(shape))
            }
        };
        drafter.ok_or_else(|| {
            let names: Vec<_> = self.drafters().iter().map(|kind| kind.name()).collect();
            ReferenceError::NoDrafter { asked: kind, available: names.join(", ") }
        })
    }

    fn has(&self, kind: DrafterKind) -> bool {
        match kind {
            DrafterKind::Off | DrafterKind::Ngram => true,
            DrafterKind::Mtp => self.mtp.is_some(),
            DrafterKind::Dflash | DrafterKind::DflashTree => self.dflash.is_some(),
            DrafterKind::Weaver => self.weaver.is_some(),
        }
    }

    fn block_drafter<'a>(&'a self, shape: Option<Shape<'a>>) -> Option<Drafter<'a>> {
        let drafter = self.dflash.as_ref()?;
        Some(Drafter::Dflash { drafter, state: drafter.start(), shape: shape? })
    }
}

/// Refuses what no pass can take: no tokens, an id outside the vocabulary, more positions than the context.
pub(crate) fn check_tokens(config: &ModelConfig, tokens: &[u32], positions: usize) -> Result<(), RequestError> {
    if tokens.is_empty() {
        return Err(RequestError::EmptyPrompt);
    }
    if let Some(index) = tokens.iter().position(|&t| t as usize >= config.vocab_size) {
        return Err(RequestError::TokenOutOfRange { token: tokens[index], index, vocab: config.vocab_size });
    }
    if positions > config.max_positions {
        return Err(RequestError::PromptTooLong { found: positions, context: config.max_positions });
    }
    Ok(())
}

/// A folder's `config.json`, with `generation_config.json` where present.
pub(crate) fn read_config(dir: &Path) -> Result<ModelConfig, ReferenceError> {
    let config = read(&dir.join("config.json"))?;
    let generation = dir.join("generation_config.json");
    let generation = generation.exists().then(|| read(&generation)).transpose()?;
    Ok(ModelConfig::from_json(&config, generation.as_deref())?)
}

pub(crate) fn load_dflash(dir: &Path, target: &ModelConfig) -> Result<Option<Dflash>, ReferenceError> {
    if !dir.join("config.json").exists() {
        return Ok(None);
    }
    let config = DflashConfig::from_json(&read(&dir.join("config.json"))?, target)?;
    Dflash::load(&Checkpoint::open(dir)?, config).map(Some)
}

pub(crate) fn load_weaver(dir: &Path, target: &ModelConfig, dflash: &DflashConfig) -> Result<Option<Weaver>, ReferenceError> {
    if !dir.join("config.json").exists() {
        return Ok(None);
    }
    let config = WeaverConfig::from_json(&read(&dir.join("config.json"))?, target, dflash)?;
    Weaver::load(&Checkpoint::open(dir)?, config).map(Some)
}

fn read(path: &Path) -> Result<String, ReferenceError> {
    fs::read_to_string(path).map_err(|e| ReferenceError::Read { file: path.display().to_string(), reason: e.to_string() })
}

#[cfg(test)]
#[path = "oracle_tests.rs"]
mod tests;
