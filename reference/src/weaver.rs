//! Weaver (Trees from Marginals, arXiv 2607.06763): gives each DFlash position's candidates new scores that depend on the
//! tokens chosen on the path. Its prefix is the target's last hidden row and DFlash's hidden rows; a tree node attends to
//! the prefix, its ancestors and itself, and asks the target's head about the candidates of its depth only.
//! Every node keeps its own copy of keys and values, made from its parent's.

use crate::{
    attention::{Attention, KvCache},
    error::ReferenceError,
    layer::{Layer, Mixer, MixerRows, Mlp},
    model::Target,
    ops::{Linear, Norm},
    rows::Rows,
    state::LayerState,
    weights::Checkpoint,
};
use ndarray::{Array1, Array2, Axis, concatenate, s};
use specdec::{AttentionDims, WeaverConfig};

/// The rescorer's weights.
pub struct Weaver {
    pub(crate) config: WeaverConfig,
    dims: AttentionDims,
    embedding_norm: Norm,
    embedding: Linear,
    hidden_norm: Norm,
    hidden: Linear,
    blocks: Vec<Layer>,
    output_norm: Norm,
    query: Linear,
}

/// Keys and values of every block along one path, the prefix included.
pub(crate) type Path = Vec<KvCache>;

impl Weaver {
    pub(crate) fn load(weights: &Checkpoint, config: WeaverConfig) -> Result<Self, ReferenceError> {
        let (d, target, eps) = (config.model_dim, config.target_hidden_size, config.rms_norm_eps);
        let dims = AttentionDims {
            query_heads: config.heads,
            kv_heads: config.heads,
            head_dim: d / config.heads,
            rotary_dim: d / config.heads,
            rope_theta: config.rope_theta,
            qk_norm: false,
            output_gate: false,
            qkv_bias: false,
        };
        let norm = |name: &str, len| weights.vector(&format!("{name}.weight"), len).map(|w| Norm::plain(w, eps));
        let plain = |weight| Linear { weight, bias: None };
        let matrix = |name: &str, out, input| weights.matrix(&format!("{name}.weight"), out, input);
        let biased = |name: &str, out, input| -> Result<Linear, ReferenceError> {
            Ok(Linear { weight: matrix(name, out, input)?, bias: Some(weights.vector(&format!("{name}.bias"), out)?) })
        };
        let block = |i: usize| -> Result<Layer, ReferenceError> {
            let name = |part: &str| format!("blocks.{i}.{part}");
            let qkv = matrix(&name("qkv_projection"), 3 * d, d)?;
            let part = |n: usize| plain(qkv.slice(s![n * d..(n + 1) * d, ..]).to_owned());
            let attention = Attention {
                dims,
                query: part(0),
                key: part(1),
                value: part(2),
                output: plain(matrix(&name("out_projection"), d, d)?),
                query_norm: None,
                key_norm: None,
            };
            let mlp = Mlp {
                gate: biased(&name("gate_proj"), config.mlp_dim, d)?,
                up: biased(&name("up_proj"), config.mlp_dim, d)?,
                down: biased(&name("down_proj"), d, config.mlp_dim)?,
            };
            let (mixer_norm, mlp_norm) = (norm(&name("pre_attention_norm"), d)?, norm(&name("pre_mlp_norm"), d)?);
            Ok(Layer { mixer_norm, mixer: Mixer::Attention(Box::new(attention)), mlp_norm, mlp })
        };
        Ok(Self {
            embedding_norm: norm("embedding_norm", target)?,
            embedding: biased("embedding_projection", d, target)?,
            hidden_norm: norm("hidden_state_norm", target)?,
            hidden: biased("hidden_state_projection", d, target)?,
            blocks: (0..config.layers).map(block).collect::<Result<_, _>>()?,
            output_norm: norm("output_norm", d)?,
            query: plain(matrix("query_projection", target, d)?),
            dims,
            config,
        })
    }

    /// The path before the root. `last_hidden: [1, target hidden]`, the target's final hidden row that chose the root;
    /// `draft_hidden: [depths, target hidden]` from DFlash.
    pub(crate) fn prefix(&self, last_hidden: &Array2<f64>, draft_hidden: &Array2<f64>) -> Path {
        let depths = self.config.max_depth.min(draft_hidden.nrows());
        let rows = concatenate![Axis(0), *last_hidden, draft_hidden.slice(s![..depths, ..])];
        let mut path = vec![KvCache::new(&self.dims); self.blocks.len()];
        self.run(self.hidden.apply(&self.hidden_norm.apply(&rows)), 0, &mut path);
        path
    }

    /// Steps one node. `path`: its parent's, or the prefix for the root; becomes the node's own. Returns the query with
    /// which the head is asked about the candidates of `depth + 1`, `[target hidden]`.
    pub(crate) fn node(&self, target: &Target, token: u32, depth: usize, path: &mut Path) -> Array1<f64> {
        let embedded = self.embedding.apply(&self.embedding_norm.apply(&target.embed(&[token])));
        let x = self.run(embedded, depth + 1, path);
        self.query.apply(&self.output_norm.apply(&x)).row(0).to_owned()
    }

    /// The blocks over successive positions from `first`, each seeing the path so far, those before it and itself.
    fn run(&self, mut x: Array2<f64>, first: usize, path: &mut Path) -> Array2<f64> {
        let rows = Rows::chain(x.nrows(), first);
        for (block, cache) in self.blocks.iter().zip(path) {
            let out = block.forward(&x, &rows, &LayerState::Attention(cache.clone()));
            if let MixerRows::Attention(new) = &out.mixer {
                cache.append(&new.key, &new.value, &Vec::from_iter(0..rows.len()));
            }
            x = out.stream;
        }
        x
    }
}
