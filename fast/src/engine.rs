//! The engine: a model folder loaded once, requests answered one after another or from several threads, each with a state of
//! its own. So a request cannot leave anything behind for the next.

use crate::FastError;
use crate::auto::BudgetPolicy;
use crate::backend::{Backend, KvType};
use crate::checkpoint::Checkpoint;
use crate::cost::{self, CostReport};
use crate::dflash::Dflash;
use crate::generate::{Budgets, generate};
use crate::model::{Model, TREE_ROWS};
use crate::mtp::Mtp;
use crate::session::Session;
use crate::trace::{self, TraceRoots, TracedRound};
use crate::weaver::Weaver;
use crate::weights::Weights;
use specdec::{
    Activations, BudgetTable, DflashConfig, DraftTree, DrafterKind, GenerateRequest, Generation, ModelConfig, QuantScheme,
    TableMemory, Token, WeaverConfig,
};
use std::collections::BTreeSet;
use std::fs;
use std::ops::ControlFlow;
use std::path::Path;
use std::sync::{Arc, OnceLock};

/// Where the engine computes. A closed set.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub enum Device {
    /// The processor, with the widest vector instructions it has.
    #[default]
    Cpu,
}

/// How a model is loaded.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct LoadOptions {
    /// Threads; 0 means one per core. Changes no bit of any result.
    pub threads: usize,
    /// Number type of cached keys and values. Values are rounded to it before their first use.
    pub kv: KvType,
    /// Where to compute.
    pub device: Device,
    /// What quantised linears of L and M multiply; `None`: as their configuration says.
    pub activations: Option<Activations>,
}

impl Default for LoadOptions {
    fn default() -> Self {
        Self { threads: 0, kv: KvType::F32, device: Device::Cpu, activations: None }
    }
}

/// A loaded model with its drafters.
pub struct Engine {
    parts: Arc<Parts>,
    cost: OnceLock<CostReport>,
}

/// What sessions share.
pub(crate) struct Parts {
    pub backend: Backend,
    pub model: Model,
    pub mtp: Option<Mtp>,
    pub dflash: Option<Dflash>,
    pub weaver: Option<Weaver>,
    pub kv: KvType,
}

impl Engine {
    /// Loads a model folder: `config.json`, `model.safetensors` or shards, `generation_config.json` where present, the MTP
    /// head where the checkpoint has one, and the drafters `dflash/` and `weaver/` where present.
    ///
    /// Errors: a file that cannot be read or is not what its name promises, a tensor that is missing, misshapen or not
    /// finite; each a sentence that names it.
    pub fn load(dir: &Path, options: &LoadOptions) -> Result<Self, FastError> {
        let Device::Cpu = options.device;
        let backend = Backend::new(options.threads);
        let generation = dir.join("generation_config.json");
        let generation = if generation.exists() { Some(read(&generation)?) } else { None };
        let as_asked = |scheme: QuantScheme| options.activations.map_or(scheme, |wanted| scheme.with_activations(wanted));
        let mut config = ModelConfig::from_json(&read(&dir.join("config.json"))?, generation.as_deref())?;
        config.quantisation = as_asked(config.quantisation);
        let checkpoint = Checkpoint::open(dir)?;
        let quantisation = config.quantisation;
        let model = Model::load(&backend, &checkpoint, config)?;
        let mtp = Mtp::load(&Weights::new(&backend, &checkpoint, "", quantisation), &model)?;
        drop(checkpoint);
        let (mut dflash, mut weaver) = (None, None);
        let folder = dir.join("dflash");
        if folder.join("config.json").exists() {
            let text = read(&folder.join("config.json"))?;
            let config = DflashConfig::from_json(&text, &model.config)?;
            let files = Checkpoint::open(&folder)?;
            dflash = Some(Dflash::load(
                &backend,
                &files,
                config,
                as_asked(QuantScheme::from_json("dflash/config.json", &text)?),
                &model,
            )?);
        }
        let folder = dir.join("weaver");
        if let (true, Some(dflash)) = (folder.join("config.json").exists(), &dflash) {
            let text = read(&folder.join("config.json"))?;
            let config = WeaverConfig::from_json(&text, &model.config, &dflash.config)?;
            let files = Checkpoint::open(&folder)?;
            weaver =
                Some(Weaver::load(&backend, &files, config, as_asked(QuantScheme::from_json("weaver/config.json", &text)?))?);
        }
        let parts = Parts { backend, model, mtp, dflash, weaver, kv: options.kv };
        Ok(Self { parts: Arc::new(parts), cost: OnceLock::new() })
    }

    /// The target's shape.
    pub fn config(&self) -> &ModelConfig {
        &self.parts.model.config
    }

    /// Drafters that this model can use; `Off` and `Ngram` always.
    pub fn drafters(&self) -> Vec<DrafterKind> {
        self.parts.drafters()
    }

    /// Threads that compute.
    pub fn threads(&self) -> usize {
        self.parts.backend.pool().threads()
    }

    /// A new sequence without a drafter, with room for the whole context.
    pub fn session(&self) -> Session {
        self.session_with_room(self.config().max_positions)
    }

    /// A new sequence without a drafter, with room for `positions` tokens.
    pub fn session_with_room(&self, positions: usize) -> Session {
        Session::new(self.parts.clone(), DrafterKind::Off, positions.min(self.config().max_positions))
    }

    /// Logits after every token: `[tokens, vocab]`. Errors: no token, an id out of range, more tokens than the context.
    pub fn logits(&self, tokens: &[u32]) -> Result<Vec<f32>, FastError> {
        let mut session = self.session_with_room(tokens.len());
        let mut all = Vec::with_capacity(tokens.len() * self.config().vocab_size);
        session.score(tokens, |rows| all.extend_from_slice(rows))?;
        Ok(all)
    }

    /// Logits of a draft tree after a prompt: `[rows, vocab]`. The tree's root token is the last token of `prompt`, so row 0
    /// holds the logits after the prompt. A tree of more rows than a pass takes is run in several passes, which changes no
    /// bit. Errors: as [`logits`](Self::logits), a root that differs, a path longer than a pass.
    pub fn tree_logits(&self, prompt: &[u32], tree: &DraftTree) -> Result<Vec<f32>, FastError> {
        let Some((&last, before)) = prompt.split_last() else {
            return Err(FastError::bounds("the number of tokens", 0, "at least 1"));
        };
        if tree.tokens()[0] != last {
            return Err(FastError::bounds(
                "the tree's root token",
                tree.tokens()[0] as usize,
                format!("the prompt's last, {last}"),
            ));
        }
        let mut session = self.session_with_room(prompt.len() + tree.max_depth());
        if !before.is_empty() {
            session.prefill(before)?;
        }
        let vocab = self.config().vocab_size;
        let mut all = vec![0.0; tree.rows() * vocab];
        for rows in passes(tree) {
            let logits = session.verify(&part(tree, &rows))?;
            for (logits, row) in logits.chunks_exact(vocab).zip(rows) {
                all[row * vocab..][..vocab].copy_from_slice(logits);
            }
        }
        Ok(all)
    }

    /// Answers a request; every token is shown to `on_token` as soon as it is known, and a break ends the answer with it.
    ///
    /// Tokens and log-probabilities do not depend on drafter, budget, tree or threads, to the bit. Errors: a request that
    /// [`GenerateRequest::check`] refuses, a drafter that the model lacks.
    pub fn generate(
        &self,
        request: &GenerateRequest,
        on_token: &mut dyn FnMut(Token) -> ControlFlow<()>,
    ) -> Result<Generation, FastError> {
        generate(&self.parts, request, Budgets::Fixed(request.budget), on_token)
    }

    /// As [`generate`](Self::generate), with a budget chosen anew for every round (0 included) from measured costs and
    /// recent acceptance. `request.budget` is not used; each record says what was chosen.
    pub fn generate_auto(
        &self,
        request: &GenerateRequest,
        on_token: &mut dyn FnMut(Token) -> ControlFlow<()>,
    ) -> Result<Generation, FastError> {
        self.parts.require(request.drafter)?;
        let cost = match self.cost.get() {
            Some(cost) => cost,
            None => {
                let measured = cost::measure(&self.parts, cost::Effort::Calibration)?;
                self.cost.get_or_init(|| measured)
            }
        };
        generate(&self.parts, request, Budgets::Auto(Box::new(BudgetPolicy::new(cost, request.drafter))), on_token)
    }

    /// As [`generate`](Self::generate), with every round's budget from a table that was tuned beforehand: no measuring, no
    /// learning. `request.budget` is not used.
    pub fn generate_by_table(
        &self,
        request: &GenerateRequest,
        table: &BudgetTable,
        on_token: &mut dyn FnMut(Token) -> ControlFlow<()>,
    ) -> Result<Generation, FastError> {
        generate(&self.parts, request, Budgets::Table(TableMemory::new(table)), on_token)
    }

    /// Answers a request and shows every recorded root to `each`: its draft tree of `request.budget` nodes and the target's view
    /// of every node. The tokens are those of [`generate`](Self::generate). Errors: as there.
    pub fn trace(
        &self,
        request: &GenerateRequest,
        roots: TraceRoots,
        each: &mut dyn FnMut(TracedRound) -> ControlFlow<()>,
    ) -> Result<Vec<Token>, FastError> {
        trace::trace(&self.parts, request, roots, each)
    }

    /// Measures what passes, verifications of every width and drafts cost here: medians of `repetitions` interleaved runs.
    pub fn measure_cost(&self, repetitions: usize) -> Result<CostReport, FastError> {
        cost::measure(&self.parts, cost::Effort::Full { repetitions })
    }
}

impl Parts {
    /// See [`Engine::drafters`].
    pub fn drafters(&self) -> Vec<DrafterKind> {
        let has = |kind: &DrafterKind| match kind {
            DrafterKind::Off | DrafterKind::Ngram => true,
            DrafterKind::Mtp => self.mtp.is_some(),
            DrafterKind::Dflash | DrafterKind::DflashTree => self.dflash.is_some(),
            DrafterKind::Weaver => self.weaver.is_some(),
        };
        DrafterKind::ALL.into_iter().filter(has).collect()
    }

    /// Refuses a drafter that the model lacks.
    pub fn require(&self, wanted: DrafterKind) -> Result<(), FastError> {
        let available = self.drafters();
        if available.contains(&wanted) {
            return Ok(());
        }
        let names: Vec<&str> = available.iter().map(|k| k.name()).collect();
        Err(FastError::NoDrafter { wanted, available: names.join(", ") })
    }

    /// The token that this drafter never proposes: DFlash's mask, which is a question and no answer.
    pub fn mask_token(&self, kind: DrafterKind) -> Option<u32> {
        let reads_masks = matches!(kind, DrafterKind::Dflash | DrafterKind::DflashTree | DrafterKind::Weaver);
        self.dflash.as_ref().filter(|_| reads_masks).map(|d| d.config.mask_token_id)
    }
}

/// Rows of a tree in sets that one pass can take: with every row its ancestors, rising.
fn passes(tree: &DraftTree) -> Vec<BTreeSet<usize>> {
    let mut passes = vec![BTreeSet::from([0])];
    for row in 1..tree.rows() {
        let path = tree.path(row);
        let open = passes.len() - 1;
        let grown: BTreeSet<usize> = passes[open].iter().copied().chain(path.iter().copied()).collect();
        if grown.len() <= TREE_ROWS {
            passes[open] = grown;
        } else {
            passes.push(path.into_iter().collect());
        }
    }
    passes
}

/// The tree of some of the rows, which contain their ancestors.
fn part(tree: &DraftTree, rows: &BTreeSet<usize>) -> DraftTree {
    let place = |row: usize| rows.range(..row).count();
    let drafted: Vec<(usize, u32, f32)> =
        rows.iter().filter_map(|&row| Some((place(tree.parents()[row]?), tree.tokens()[row], tree.log_probs()[row]))).collect();
    DraftTree::teacher_forced(tree.tokens()[0], &drafted).expect("a part of a tree is a tree")
}

fn read(path: &Path) -> Result<String, FastError> {
    fs::read_to_string(path).map_err(|e| FastError::Read { file: path.display().to_string(), found: e.to_string() })
}
