//! The tuner's report as one HTML file that needs no network: data, Vega and Vega-Lite are inside. Draws nothing itself.

use anyhow::{Context, Result};
use serde::Serialize;
use sim::TraceRound;
use specdec::Budget;

const PAGE: &str = include_str!("../assets/report.html");
const LICENCE: &str = include_str!("../assets/LICENSE-vega");
/// As their npm packages have them, compressed.
const VEGA: &[u8] = include_bytes!("../assets/vega.min.js.zst");
const VEGA_LITE: &[u8] = include_bytes!("../assets/vega-lite.min.js.zst");

/// What the page shows.
#[derive(Clone, Debug, Serialize)]
pub struct Page {
    /// Whose costs.
    pub cost: String,
    /// Day of the run.
    pub date: String,
    /// Every configuration.
    pub rows: Vec<Row>,
    /// The advised row of every workload.
    pub advice: Vec<Row>,
    /// One recorded round.
    pub tree: Option<Tree>,
}

/// One configuration of one workload.
#[derive(Clone, Debug, Serialize)]
pub struct Row {
    /// Kind of text; `all` for every prompt.
    pub workload: String,
    /// Who drafts, or `law`.
    pub drafter: String,
    /// Family of trees.
    pub shape: String,
    /// Drafted nodes.
    pub budget: Budget,
    /// Tokens per pass, bonus included.
    pub tau: f64,
    /// 2.5 % point.
    pub tau_low: f64,
    /// 97.5 % point.
    pub tau_high: f64,
    /// Tokens per second.
    pub tokens_per_s: f64,
    /// 2.5 % point.
    pub tokens_per_s_low: f64,
    /// 97.5 % point.
    pub tokens_per_s_high: f64,
    /// Over budget 0.
    pub speedup: f64,
    /// 2.5 % point, paired.
    pub speedup_low: f64,
    /// 97.5 % point, paired.
    pub speedup_high: f64,
    /// Tokens per pass that a round of this configuration costs.
    pub break_even_tau: f64,
    /// True where the difference to the best of its drafter is noise.
    pub ties_with_best: bool,
}

/// A recorded round, laid out.
#[derive(Clone, Debug, Serialize)]
pub struct Tree {
    prompt: String,
    position: u64,
    drafter: String,
    nodes: Vec<Place>,
}

#[derive(Clone, Debug, Serialize)]
struct Place {
    row: usize,
    parent: usize,
    depth: usize,
    x: f64,
    path_probability: f64,
    target_rank: usize,
    accepted: bool,
}

impl Page {
    /// The whole file.
    pub fn html(&self) -> Result<String> {
        let script = |packed: &[u8]| -> Result<String> {
            let text = String::from_utf8(zstd::decode_all(packed)?).context("the vendored library is not text")?;
            Ok(text.replace("</script", "<\\/script"))
        };
        // A slash may be escaped in JSON, so that no data can end the element.
        let data = serde_json::to_string(self)?.replace("</", "<\\/");
        let parts = [("DATA", data), ("LICENCE", LICENCE.into()), ("VEGA", script(VEGA)?), ("VEGA_LITE", script(VEGA_LITE)?)];
        let mut page = String::new();
        let mut rest = PAGE;
        while let Some((before, after)) = rest.split_once("{{") {
            let (name, after) = after.split_once("}}").context("the page template is cut")?;
            let part = parts.iter().find(|p| p.0 == name).with_context(|| format!("the page template asks for {name:?}"))?;
            page += before;
            page += &part.1;
            rest = after;
        }
        Ok(page + rest)
    }
}

impl Tree {
    /// Leaves side by side in growth order, parents above the middle of their children.
    pub fn new(round: &TraceRound, drafter: &str) -> Self {
        let rows = round.nodes.len() + 1;
        let parent = |row: usize| round.nodes[row - 1].parent;
        let children = |row: usize| (1..rows).filter(move |&r| parent(r) == row);
        let (mut x, mut leaves) = (vec![0.0; rows], 0.0);
        // Depth first, so that subtrees do not cross; children come after parents, so places are known bottom up.
        let mut stack = vec![0];
        let mut order = Vec::new();
        while let Some(row) = stack.pop() {
            order.push(row);
            stack.extend(children(row).collect::<Vec<_>>().into_iter().rev());
        }
        for &row in order.iter().filter(|&&row| children(row).next().is_none()) {
            x[row] = leaves;
            leaves += 1.0;
        }
        for row in (0..rows).rev() {
            let below: Vec<f64> = children(row).map(|c| x[c]).collect();
            if !below.is_empty() {
                x[row] = below.iter().sum::<f64>() / below.len() as f64;
            }
        }
        let mut path = vec![0.0; rows];
        for row in 1..rows {
            path[row] = path[parent(row)] + round.nodes[row - 1].draft_log_prob;
        }
        let place = |row: usize| Place {
            row,
            parent: if row == 0 { 0 } else { parent(row) },
            depth: if row == 0 { 0 } else { round.nodes[row - 1].depth },
            x: x[row],
            path_probability: path[row].exp(),
            target_rank: if row == 0 { 0 } else { round.nodes[row - 1].target_rank },
            accepted: row == 0 || round.accepted.contains(&row),
        };
        let nodes = (0..rows).map(place).collect();
        Self { prompt: round.prompt.clone(), position: round.position, drafter: drafter.into(), nodes }
    }
}
