//! Gram matrices of what the linears of a model see, layer by layer: `X^T X` over the tokens of some texts. Holds one
//! layer's weights at a time, so that a model larger than memory can be walked. For those who choose codes by calibration.

use crate::{
    attention::flat,
    error::ReferenceError,
    layer::{LayerRows, MixerRows},
    model::{config_norm, load_layer},
    oracle::{check_tokens, read_config},
    rows::Rows,
    state::State,
    weights::Checkpoint,
};
use ndarray::{Array2, Axis, concatenate, linalg::general_mat_mul};
use specdec::ModelConfig;
use std::path::Path;

/// Rows of a pass; bounds memory and changes no bit.
const CHUNK_ROWS: usize = 32;

/// Gram matrix of one input that some linears share.
pub struct InputGram {
    /// Names of the linears' weights in the files.
    pub weights: Vec<String>,
    /// Channels of the input, `n`.
    pub inputs: usize,
    /// `[n, n]`, row-major.
    pub gram: Vec<f64>,
}

/// A walk from the embedding to the head.
pub struct GramWalk {
    weights: Checkpoint,
    config: ModelConfig,
    prefix: &'static str,
    /// The residual stream of every text, `[tokens, hidden]`.
    streams: Vec<Array2<f64>>,
    layer: usize,
}

impl GramWalk {
    /// Opens a model folder and embeds the texts. Errors: a damaged model, an empty text, an id outside the vocabulary, more
    /// tokens than the context.
    pub fn open(dir: &Path, texts: &[Vec<u32>]) -> Result<Self, ReferenceError> {
        let config = read_config(dir)?;
        let weights = Checkpoint::open(dir)?;
        let nested = weights.contains("model.language_model.embed_tokens.weight");
        let prefix = if nested { "model.language_model." } else { "model." };
        let (vocab, hidden) = (config.vocab_size, config.hidden_size);
        let embed = |text: &Vec<u32>| {
            check_tokens(&config, text, text.len())?;
            weights.matrix_rows(&format!("{prefix}embed_tokens.weight"), (vocab, hidden), text)
        };
        let streams = texts.iter().map(embed).collect::<Result<_, _>>()?;
        Ok(Self { weights, config, prefix, streams, layer: 0 })
    }

    /// Steps to come: one per layer, and one for the head.
    pub fn steps(&self) -> usize {
        self.config.layers.len() + 1 - self.layer
    }

    /// Runs all texts through the next layer and returns the Gram matrices of its linears' inputs; after the last layer,
    /// that of the head's. `None` at the end. `threads` texts run at once, which changes no bit.
    pub fn next(&mut self, threads: usize) -> Result<Option<Vec<InputGram>>, ReferenceError> {
        let index = self.layer;
        self.layer += 1;
        let Some(&kind) = self.config.layers.get(index) else {
            return if index == self.config.layers.len() { self.head().map(Some) } else { Ok(None) };
        };
        let prefix = format!("{}layers.{index}.", self.prefix);
        let layer = load_layer(&self.weights, &prefix, &self.config, kind)?;
        let mut start = State::new(&self.config);
        start.layers = vec![start.layers.swap_remove(index)];
        let run = |stream: &mut Array2<f64>| {
            let (mut state, mut seen) = (start.clone(), Vec::new());
            let mut out = Vec::new();
            for x in stream.axis_chunks_iter(Axis(0), CHUNK_ROWS) {
                let rows = layer.forward(&x.to_owned(), &Rows::chain(x.nrows(), state.length), &state.layers[0]);
                seen.push(inputs(&rows));
                out.push(rows.stream.clone());
                state.commit(&[rows], &Vec::from_iter(0..x.nrows()));
            }
            *stream = stack(&out);
            seen
        };
        let mut grams: Vec<InputGram> = Vec::new();
        for streams in self.streams.chunks_mut(threads.max(1)) {
            let seen: Vec<Vec<Vec<Seen>>> = std::thread::scope(|scope| {
                let running: Vec<_> = streams.iter_mut().map(|stream| scope.spawn(|| run(stream))).collect();
                running.into_iter().map(|thread| thread.join().expect("arithmetic does not panic")).collect()
            });
            // In the order of the texts: sums do not know which thread was first.
            for (names, x) in seen.into_iter().flatten().flatten() {
                let weights: Vec<String> = names.iter().map(|name| format!("{prefix}{name}.weight")).collect();
                add(&mut grams, weights, &x);
            }
        }
        Ok(Some(grams))
    }

    fn head(&self) -> Result<Vec<InputGram>, ReferenceError> {
        let hidden = self.config.hidden_size;
        let norm = config_norm(&self.config)(self.weights.vector(&format!("{}norm.weight", self.prefix), hidden)?);
        let name = match self.config.tie_word_embeddings {
            true => format!("{}embed_tokens.weight", self.prefix),
            false => "lm_head.weight".to_owned(),
        };
        let mut grams = Vec::new();
        for stream in &self.streams {
            add(&mut grams, vec![name.clone()], &norm.apply(stream));
        }
        Ok(grams)
    }
}

/// Linears inside a layer, and what they take, `[rows, n]`.
type Seen = (&'static [&'static str], Array2<f64>);

fn inputs(rows: &LayerRows) -> Vec<Seen> {
    let mixer: [Seen; 2] = match &rows.mixer {
        MixerRows::Gdn(gdn) => [
            (&["linear_attn.in_proj_qkv", "linear_attn.in_proj_z"], rows.mixer_input.clone()),
            (&["linear_attn.out_proj"], flat(&gdn.gated)),
        ],
        MixerRows::Attention(attention) => [
            (&["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"], rows.mixer_input.clone()),
            (&["self_attn.o_proj"], flat(&attention.gated)),
        ],
    };
    let mlp: [Seen; 2] =
        [(&["mlp.gate_proj", "mlp.up_proj"], rows.mlp_input.clone()), (&["mlp.down_proj"], rows.mlp_inner.clone())];
    mixer.into_iter().chain(mlp).collect()
}

/// `gram += x^T x`.
fn add(grams: &mut Vec<InputGram>, weights: Vec<String>, x: &Array2<f64>) {
    let n = x.ncols();
    let at = grams.iter().position(|g| g.weights == weights).unwrap_or_else(|| {
        grams.push(InputGram { weights, inputs: n, gram: vec![0.0; n * n] });
        grams.len() - 1
    });
    let gram = ndarray::ArrayViewMut2::from_shape((n, n), &mut grams[at].gram[..]);
    general_mat_mul(1.0, &x.t(), x, 1.0, &mut gram.expect("n by n numbers"));
}

fn stack(parts: &[Array2<f64>]) -> Array2<f64> {
    let views: Vec<_> = parts.iter().map(|p| p.view()).collect();
    concatenate(Axis(0), &views).expect("equal widths")
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Reference, fixture::fixture_dir};

    /// The walk's last gram is made of the hidden rows that the whole model computes, and threads change no bit of it.
    #[test]
    fn the_walk_ends_with_the_hidden_rows_of_the_whole_model() {
        let dir = fixture_dir();
        let texts = vec![(0..40).collect::<Vec<u32>>(), vec![7, 9, 11]];
        let walk = |threads| {
            let mut walk = GramWalk::open(&dir, &texts).unwrap();
            let mut steps: Vec<Vec<InputGram>> = Vec::new();
            while let Some(grams) = walk.next(threads).unwrap() {
                steps.push(grams);
            }
            steps
        };
        let (one, two) = (walk(1), walk(2));
        let model = Reference::load(&dir).unwrap();
        assert_eq!(one.len(), model.config().layers.len() + 1);
        let mut expected = Vec::new();
        for text in &texts {
            let mut state = State::new(model.config());
            model.target.run(text, &mut state, &mut |pass| add(&mut expected, vec!["lm_head.weight".into()], &pass.hidden));
        }
        let last = &one.last().unwrap()[0];
        assert_eq!((&last.weights, last.inputs), (&expected[0].weights, model.config().hidden_size));
        assert!(last.gram.iter().zip(&expected[0].gram).all(|(a, b)| (a - b).abs() < 1e-9 * b.abs().max(1.0)));
        for (a, b) in one.iter().flatten().zip(two.iter().flatten()) {
            assert!(a.weights == b.weights && a.gram == b.gram);
        }
    }
}
