//! The tuner's answer as a file that decoding reads: which drafter, which fixed budget, and a table for `--budget auto`.
//! A policy belongs to one model: costs and acceptance of another are others.

use crate::{digest, draft::DraftPlan};
use anyhow::{Context, Result, ensure};
use serde::{Deserialize, Serialize};
use specdec::{Budget, BudgetTable, DrafterKind};
use std::{fs, path::Path};

const SCHEMA: &str = "straw-policy";
const VERSION: u32 = 1;

/// The file.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PolicyFile {
    schema: String,
    version: u32,
    /// Content of the model, as in the trace.
    pub model: String,
    /// Whose costs.
    pub machine: String,
    /// Who drafts; off where nobody pays.
    pub drafter: DrafterKind,
    /// The best single budget.
    pub budget: Budget,
    /// Budgets by context and recent acceptance.
    pub table: BudgetTable,
}

impl PolicyFile {
    /// A policy.
    pub fn new(model: String, machine: String, drafter: DrafterKind, budget: Budget, table: BudgetTable) -> Self {
        Self { schema: SCHEMA.into(), version: VERSION, model, machine, drafter, budget, table }
    }

    /// Reads and checks. Error: not such a file.
    pub fn read(path: &Path) -> Result<Self> {
        let place = || path.display().to_string();
        let file: Self = serde_json::from_str(&fs::read_to_string(path).with_context(place)?).with_context(place)?;
        let known = file.schema == SCHEMA && file.version == VERSION;
        ensure!(known, "{}: is {} {}, expected {SCHEMA} {VERSION} (tune again)", place(), file.schema, file.version);
        Ok(file)
    }
}

/// Makes `auto` follow the file. Errors: not such a file, another model's, another drafter's.
pub fn apply(path: &Path, model: &Path, plan: &mut DraftPlan) -> Result<()> {
    let file = PolicyFile::read(path)?;
    let here = digest::model(model)?;
    ensure!(
        file.model == here,
        "{}: was tuned for the model {}, but {} is {here} (tune for this model)",
        path.display(),
        file.model,
        model.display()
    );
    ensure!(
        file.drafter == plan.drafter,
        "{}: was tuned for the drafter {}, not {} (set --drafter {})",
        path.display(),
        file.drafter,
        plan.drafter,
        file.drafter
    );
    plan.table = Some(file.table);
    Ok(())
}
