//! What rounds cost: a file of `straw explain --save-cost`, a published verification curve, or a machine's data sheet with a
//! model's size as a roofline. Turns a measurement of the engine into such a file.

use crate::model;
use anyhow::{Context, Result, bail};
use fast::CostReport;
use sim::{Arithmetic, ContextCost, CostModel, DraftCost, MeasuredCurve, ModelSize, Profile, SimError, Staircase, VerifyCost};
use std::{
    fs,
    path::{Path, PathBuf},
};

/// Options that name a cost.
#[derive(clap::Args, Debug)]
pub struct CostArgs {
    /// Costs: a file of straw explain --save-cost, a machine such as m5-max or h200, or a published curve
    #[arg(long, alias = "device", value_name = "FILE|NAME")]
    pub cost: String,
    /// Model folder whose size a machine's roofline takes [default: the embedded straw-tiny]
    #[arg(long, value_name = "DIR")]
    pub size: Option<PathBuf>,
    /// Bits per weight of that model, scales included
    #[arg(long, value_name = "BITS", default_value_t = 4.65)]
    pub bits: f64,
    /// Share of a machine's bandwidth and rate that its engine reaches, above 0 and at most 1
    #[arg(long, value_name = "SHARE", default_value_t = 0.8)]
    pub efficiency: f64,
    /// Rows that a machine's matrix unit computes together
    #[arg(long, value_name = "ROWS", default_value_t = 16)]
    pub row_tile: usize,
}

impl CostArgs {
    /// Reads or computes the cost, and says what it is. Errors: neither a file nor a known name, a file that is no cost.
    pub fn load(&self) -> Result<(String, CostModel)> {
        let path = Path::new(&self.cost);
        if path.is_file() {
            let text = fs::read_to_string(path).with_context(|| self.cost.clone())?;
            let cost = CostModel::from_json(&text).with_context(|| self.cost.clone())?;
            let name = match &cost.verify {
                VerifyCost::Table(table) => table.name.clone(),
                VerifyCost::Roofline(_) => self.cost.clone(),
            };
            return Ok((name, cost));
        }
        if let Ok(curve) = MeasuredCurve::named(&self.cost) {
            return Ok((self.cost.clone(), CostModel::from_table(curve.table)?));
        }
        match Profile::named(&self.cost) {
            Ok(profile) => {
                let size = ModelSize::of(&model::config(&model::find(self.size.as_deref())?)?, self.bits)?;
                let share = if self.efficiency > 0.0 && self.efficiency <= 1.0 {
                    self.efficiency
                } else {
                    bail!("the efficiency is {}, expected above 0 and at most 1 (set --efficiency)", self.efficiency)
                };
                Ok((self.cost.clone(), profile.roofline(&size, Arithmetic::Int8, self.row_tile, share)?))
            }
            Err(SimError::UnknownProfile { known, .. }) => {
                let curves: Vec<String> = MeasuredCurve::all().into_iter().map(|c| c.table.name).collect();
                let curves = curves.join(", ");
                bail!("--cost {:?} is no file, expected a file, a machine ({known}) or a curve ({curves})", self.cost)
            }
            Err(error) => Err(error.into()),
        }
    }
}

/// Writes a measurement as a cost file.
pub fn save(path: &Path, model: &Path, report: &CostReport) -> Result<()> {
    let cost = of(report, &format!("{}, {} threads, {}", name(model), report.threads, machine()))?;
    fs::write(path, serde_json::to_string_pretty(&cost)? + "\n").with_context(|| path.display().to_string())
}

/// The engine's measurement in the simulator's words. A round without drafts is the plain pass, so that is V(1). Times were
/// taken above `report.context` tokens; the part that grows with context is taken off and put into its own term.
fn of(report: &CostReport, name: &str) -> Result<CostModel> {
    let slope = report.row_per_context_s;
    let measured = |rows: usize| if rows == 1 { report.plain_s } else { report.verify_s[rows - 1] };
    let at_zero = |rows: usize| (rows, (measured(rows) - slope * (rows * report.context) as f64).max(0.1 * measured(rows)));
    let points = (1..=report.verify_s.len()).map(at_zero).collect();
    let drafters = report.drafts.iter().map(|d| {
        let by_nodes = d.by_budget.clone();
        (d.drafter.name().to_owned(), DraftCost { by_nodes, ..DraftCost::default() })
    });
    let cost = CostModel {
        verify: VerifyCost::Table(Staircase { name: name.into(), points, steps: None }),
        draft: DraftCost::default(),
        drafters: drafters.collect(),
        round_s: report.commit_s,
        switch_s: 0.0,
        context: ContextCost { row_token_s: slope, ..ContextCost::default() },
    };
    Ok(cost.checked()?)
}

fn name(model: &Path) -> String {
    model.file_name().map_or("model".into(), |n| n.to_string_lossy().into_owned())
}

/// The processor's name.
fn machine() -> String {
    let info = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
    let line = info.lines().find_map(|l| l.strip_prefix("model name"));
    line.and_then(|l| Some(l.split_once(':')?.1.trim().to_owned())).unwrap_or_else(|| std::env::consts::ARCH.into())
}
