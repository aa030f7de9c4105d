//! Trace files on disk: JSON lines, or the same in Zstandard with one frame per prompt when the name ends in `.zst`.
//! A recording grows as `NAME.partial` and gets its name when whole, so that whatever stops it, finished prompts stay and a
//! second start goes on behind them. Holds one prompt in memory. Knows no engine.

use anyhow::{Context, Result, ensure};
use sim::{Trace, TraceHeader, TraceRound};
use std::{
    ffi::OsString,
    fs::{self, File},
    io::{self, BufRead, BufReader, Read, Write},
    path::{Path, PathBuf},
};

/// Compression that halves level 1 and still keeps up with any engine.
const LEVEL: i32 = 9;

/// Reads and checks a whole trace. Errors: an unreadable file, the first line that breaks the schema.
pub fn read(path: &Path) -> Result<Trace> {
    Trace::read(BufReader::new(open(path)?)).with_context(|| path.display().to_string())
}

/// A recording under way.
pub struct Recording {
    path: PathBuf,
    file: File,
    compressed: bool,
}

/// What a start found.
pub enum Start {
    /// The file is whole already.
    Complete,
    /// Prompts from this index of the header on are missing.
    From(Recording, usize),
}

impl Recording {
    /// Begins a recording, or goes on with one. Errors: a file of that name from another recording, a folder that cannot be
    /// written.
    pub fn start(path: &Path, header: &TraceHeader) -> Result<Start> {
        if path.exists() {
            let found = first_line(path)?;
            ensure!(found == *header, "{}: is another recording (delete it, or choose another --out)", path.display());
            return Ok(Start::Complete);
        }
        let partial = with_ending(path, ".partial");
        let compressed = path.extension().is_some_and(|e| e == "zst");
        let fresh = with_ending(path, ".partial.new");
        let file = File::create(&fresh).with_context(|| fresh.display().to_string())?;
        let mut recording = Self { path: path.into(), file, compressed };
        recording.put(serde_json::to_string(header)? + "\n")?;
        let mut next = 0;
        if partial.exists() {
            let found = first_line(&partial)?;
            ensure!(found == *header, "{}: is part of another recording (delete it, or choose another --out)", partial.display());
            next = recording.keep_finished(&partial, header)?;
        }
        fs::rename(&fresh, &partial).with_context(|| partial.display().to_string())?;
        Ok(Start::From(recording, next))
    }

    /// Adds all rounds of one prompt.
    pub fn prompt(&mut self, rounds: &[TraceRound]) -> Result<()> {
        let mut text = String::new();
        for round in rounds {
            text += &serde_json::to_string(round)?;
            text.push('\n');
        }
        self.put(text)
    }

    /// Gives the file its name.
    pub fn finish(self) -> Result<()> {
        self.file.sync_all()?;
        fs::rename(with_ending(&self.path, ".partial"), &self.path).with_context(|| self.path.display().to_string())
    }

    fn put(&mut self, text: String) -> Result<()> {
        let bytes = if self.compressed { zstd::encode_all(text.as_bytes(), LEVEL)? } else { text.into_bytes() };
        self.file.write_all(&bytes).with_context(|| self.path.display().to_string())
    }

    /// Copies the prompts that are surely whole, which are all but the last, and says which prompt comes next.
    fn keep_finished(&mut self, partial: &Path, header: &TraceHeader) -> Result<usize> {
        let index = |round: &TraceRound| header.prompts.iter().position(|p| p.id == round.prompt);
        let mut held: Vec<TraceRound> = Vec::new();
        // A stopped recording may end anywhere: what follows the first unreadable line is recorded again.
        for line in BufReader::new(open(partial)?).lines().skip(1).map_while(Result::ok) {
            let Ok(round) = serde_json::from_str::<TraceRound>(&line) else { break };
            if held.first().is_some_and(|h| h.prompt != round.prompt) {
                self.prompt(&held)?;
                held.clear();
            }
            held.push(round);
        }
        Ok(held.first().and_then(index).unwrap_or(0))
    }
}

/// Opens a trace for reading, whatever its packing.
fn open(path: &Path) -> Result<Box<dyn Read>> {
    let place = || path.display().to_string();
    let mut file = BufReader::new(File::open(path).with_context(place)?);
    // By content: a name can lie, the magic number of a frame cannot.
    let packed = file.fill_buf().with_context(place)?.starts_with(&[0x28, 0xB5, 0x2F, 0xFD]);
    Ok(if packed { Box::new(zstd::Decoder::with_buffer(file).with_context(place)?) } else { Box::new(file) })
}

fn first_line(path: &Path) -> Result<TraceHeader> {
    let mut line = String::new();
    let read: io::Result<usize> = BufReader::new(open(path)?).read_line(&mut line);
    read.with_context(|| path.display().to_string())?;
    serde_json::from_str(&line)
        .with_context(|| format!("{}: no trace header (delete it, or choose another --out)", path.display()))
}

fn with_ending(path: &Path, ending: &str) -> PathBuf {
    let mut name = OsString::from(path);
    name.push(ending);
    name.into()
}

#[cfg(test)]
#[path = "trace_file_tests.rs"]
mod tests;
