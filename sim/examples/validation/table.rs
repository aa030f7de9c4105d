//! A published figure beside ours: what was taken from the source, what was fitted on which row, and the error. Renders
//! docs/validation.md. Knows no figures.

use std::fmt::Write;

/// What a row shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Nothing fitted: the source's inputs and the library.
    Computed,
    /// A parameter fitted on another row, named in `fitted`, predicts this one.
    Predicted,
    /// The row that a parameter was fitted on; no evidence.
    Fitted,
}

/// One comparison.
#[derive(Clone, Debug)]
pub struct Row {
    /// Who published it.
    pub source: &'static str,
    /// What it is, with its unit.
    pub what: String,
    /// Their figure.
    pub published: f64,
    /// Our figure.
    pub ours: f64,
    /// Taken from the source.
    pub taken: String,
    /// Fitted, and where.
    pub fitted: String,
    /// Evidence or not.
    pub kind: Kind,
    /// Relative error that the comparison should stay below, with its reason in the section's text.
    pub within: f64,
}

impl Row {
    /// Relative error of our figure.
    pub fn error(&self) -> f64 {
        self.ours / self.published - 1.0
    }

    /// True where the error is at most the section's bound.
    pub fn holds(&self) -> bool {
        self.error().abs() <= self.within
    }
}

/// Rows of one argument.
pub struct Section {
    /// Heading.
    pub title: &'static str,
    /// Why the comparison is fair and how far it can hold.
    pub text: &'static str,
    /// Comparisons.
    pub rows: Vec<Row>,
}

/// The whole document.
pub fn render(sections: &[Section], findings: &[String]) -> String {
    let evidence = || sections.iter().flat_map(|s| &s.rows).filter(|r| r.kind != Kind::Fitted);
    let held = evidence().filter(|r| r.holds()).count();
    let mut out = String::from(
        "# Validation of the simulator against published figures\n\n\
         Written by `cargo run -p sim --example validation > docs/validation.md`; a test fails when this file is out of date.\n\n\
         Every row names the value published, ours, the inputs taken from the source and the parameter fitted, if any. A parameter is fitted\n\
         on one row, marked *fitted*; that row is no evidence. No parameter is fitted twice. *computed* rows have nothing fitted.\n\
         `off` marks an error beyond the bound of the section; such rows stay in the table.\n\
         Tau includes the bonus token. Round costs are in plain passes of the same engine.\n\n",
    );
    let _ = writeln!(out, "**{held} of {} rows of evidence hold.**", evidence().count());
    for section in sections {
        let _ = write!(out, "\n## {}\n\n{}\n\n", section.title, section.text);
        out.push_str("| source | figure | published | ours | error | inputs taken | inputs fitted | kind | |\n");
        out.push_str("| --- | --- | ---: | ---: | ---: | --- | --- | --- | --- |\n");
        for r in &section.rows {
            let kind = match r.kind {
                Kind::Computed => "computed",
                Kind::Predicted => "predicted",
                Kind::Fitted => "*fitted*",
            };
            let verdict = match (r.kind, r.holds()) {
                (Kind::Fitted, _) => "",
                (_, true) => "holds",
                (_, false) => "**off**",
            };
            let error = 100.0 * r.error();
            // No minus sign on a zero.
            let error = if error.abs() < 0.05 { 0.0 } else { error };
            let _ = writeln!(
                out,
                "| {} | {} | {} | {} | {error:+.1} % | {} | {} | {kind} | {verdict} |",
                r.source,
                r.what,
                number(r.published),
                number(r.ours),
                r.taken,
                if r.fitted.is_empty() { "none" } else { &r.fitted },
            );
        }
    }
    out.push_str("\n## Found on the way\n\n");
    findings.iter().for_each(|f| {
        let _ = writeln!(out, "- {f}");
    });
    out
}

/// Four digits, more where the number is large.
fn number(value: f64) -> String {
    match value.abs() {
        v if v >= 1000.0 => format!("{value:.0}"),
        v if v >= 100.0 => format!("{value:.1}"),
        v if v >= 10.0 => format!("{value:.2}"),
        _ => format!("{value:.3}"),
    }
}
