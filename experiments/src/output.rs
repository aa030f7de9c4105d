//! What goes to stdout: lines of text, streamed pieces, or one JSON document; and how sizes are written.
//! Write errors are returned, so that a closed pipe ends the command quietly instead of with a panic.

use serde::Serialize;
use std::io::{self, Stdout, Write};

/// Standard output.
pub struct Output(Stdout);

impl Output {
    /// The process's stdout.
    pub fn stdout() -> Self {
        Self(io::stdout())
    }

    /// One line.
    pub fn line(&mut self, text: impl std::fmt::Display) -> io::Result<()> {
        writeln!(self.0, "{text}")
    }

    /// A piece of streamed text, visible at once.
    pub fn piece(&mut self, text: &str) -> io::Result<()> {
        self.0.write_all(text.as_bytes())?;
        self.0.flush()
    }

    /// The one document of a `--json` run.
    pub fn json(&mut self, document: &impl Serialize) -> io::Result<()> {
        let text = serde_json::to_string_pretty(document).map_err(io::Error::other)?;
        self.line(text)
    }
}

/// Bytes in decimal units: `70.9 MB`.
pub fn bytes(n: u64) -> String {
    match n {
        0..1_000 => format!("{n} B"),
        1_000..1_000_000 => format!("{:.1} kB", n as f64 / 1e3),
        1_000_000..1_000_000_000 => format!("{:.1} MB", n as f64 / 1e6),
        _ => format!("{:.1} GB", n as f64 / 1e9),
    }
}

/// `yes` or `no`.
pub fn yes(answer: bool) -> &'static str {
    if answer { "yes" } else { "no" }
}

/// Lines of a table: the first column to the left, the others to the right, as wide as their longest cell.
pub fn table(rows: &[Vec<String>]) -> Vec<String> {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let width = |c: usize| rows.iter().filter_map(|r| Some(r.get(c)?.chars().count())).max().unwrap_or(0);
    let widths: Vec<usize> = (0..columns).map(width).collect();
    let line = |row: &Vec<String>| {
        let cell = |(c, text): (usize, &String)| match c {
            0 => format!("{text:<width$}", width = widths[0]),
            _ => format!("{text:>width$}", width = widths[c]),
        };
        row.iter().enumerate().map(cell).collect::<Vec<_>>().join("  ").trim_end().to_owned()
    };
    rows.iter().map(line).collect()
}
