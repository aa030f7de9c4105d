//! A large file that appears under its name only when it is whole, and that an interrupted run can continue: tensors are
//! written to `NAME.partial` at their final places, and `NAME.journal` says which of them are finished. Also small files,
//! written at once. Knows places and bytes; nothing of tensors.

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, BufWriter, Seek, SeekFrom, Write},
    path::{Path, PathBuf},
};

/// What is known of a finished tensor.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Finished {
    /// Sum of squared differences between weights and what their codes stand for.
    pub error: f64,
    /// Sum of squared weights.
    pub norm: f64,
}

/// A line of the journal.
#[derive(Serialize, Deserialize)]
struct Line {
    tensor: String,
    #[serde(flatten)]
    finished: Finished,
}

/// A file in the making.
pub struct Partial {
    name: PathBuf,
    done: BTreeMap<String, Finished>,
    whole: bool,
}

/// First line of a journal is this and what the run was asked for.
const JOURNAL: &str = "straw quantize 1";

impl Partial {
    /// Continues an interrupted run that was asked for the same (`request`: any text without line breaks), or starts anew.
    /// `header`: the file's first bytes; `size`: its length.
    pub fn open(name: PathBuf, request: &str, header: &[u8], size: u64) -> Result<Self> {
        let mut partial = Self { name, done: BTreeMap::new(), whole: false };
        let first = format!("{JOURNAL} {request}");
        let length = |path: &Path| fs::metadata(path).map(|m| m.len()).ok();
        let journal = fs::read_to_string(partial.journal()).unwrap_or_default();
        if journal.lines().next() == Some(&first) {
            partial.whole = length(&partial.name) == Some(size) && length(&partial.path()).is_none();
            if partial.whole || length(&partial.path()) == Some(size) {
                // A line that an interruption cut is no line.
                let lines = journal.lines().skip(1).map_while(|line| serde_json::from_str(line).ok());
                partial.done = lines.map(|Line { tensor, finished }| (tensor, finished)).collect();
                partial.rewrite_journal(&first)?;
                return Ok(partial);
            }
        }
        partial.done.clear();
        partial.whole = false;
        let place = partial.path();
        let create = || -> io::Result<()> {
            let mut file = File::create(&place)?;
            file.write_all(header)?;
            file.set_len(size)
        };
        create().with_context(|| place.display().to_string())?;
        partial.rewrite_journal(&first)?;
        Ok(partial)
    }

    /// A finished tensor, of this run or an earlier one.
    pub fn finished(&self, tensor: &str) -> Option<Finished> {
        self.done.get(tensor).copied()
    }

    /// Tensors that are finished.
    pub fn count(&self) -> usize {
        self.done.len()
    }

    /// A writer that begins at an offset.
    pub fn at(&self, offset: u64) -> Result<BufWriter<File>> {
        let path = self.path();
        let open = || -> io::Result<File> {
            let mut file = File::options().write(true).open(&path)?;
            file.seek(SeekFrom::Start(offset))?;
            Ok(file)
        };
        Ok(BufWriter::with_capacity(1 << 20, open().with_context(|| path.display().to_string())?))
    }

    /// Says that all bytes of a tensor are written. They are on the disk before the journal says so.
    pub fn finish(&mut self, tensor: &str, finished: Finished) -> Result<()> {
        let append = || -> io::Result<()> {
            File::open(self.path())?.sync_data()?;
            let line = serde_json::to_string(&Line { tensor: tensor.into(), finished }).map_err(io::Error::other)?;
            writeln!(File::options().append(true).open(self.journal())?, "{line}")
        };
        append().with_context(|| self.journal().display().to_string())?;
        self.done.insert(tensor.into(), finished);
        Ok(())
    }

    /// Gives the file its name.
    pub fn name_it(&mut self) -> Result<()> {
        if !self.whole {
            fs::rename(self.path(), &self.name).with_context(|| self.name.display().to_string())?;
            self.whole = true;
        }
        Ok(())
    }

    /// Removes everything that was not finished.
    pub fn abandon(self) {
        // Best effort: the error that led here is what counts.
        let _ = fs::remove_file(self.path());
        let _ = fs::remove_file(self.journal());
    }

    fn rewrite_journal(&self, first: &str) -> Result<()> {
        let mut text = format!("{first}\n");
        for (tensor, &finished) in &self.done {
            text += &format!("{}\n", serde_json::to_string(&Line { tensor: tensor.clone(), finished })?);
        }
        write(&self.journal(), text.as_bytes())
    }

    fn path(&self) -> PathBuf {
        with_suffix(&self.name, ".partial")
    }

    fn journal(&self) -> PathBuf {
        with_suffix(&self.name, ".journal")
    }
}

/// Removes the journal of a file, if it has one: nothing is left to continue.
pub fn forget(name: &Path) -> Result<()> {
    let journal = with_suffix(name, ".journal");
    if !journal.exists() {
        return Ok(());
    }
    fs::remove_file(&journal).with_context(|| journal.display().to_string())
}

/// Writes a small file under a temporary name and renames it.
pub fn write(path: &Path, bytes: &[u8]) -> Result<()> {
    let partial = with_suffix(path, ".partial");
    fs::write(&partial, bytes).with_context(|| partial.display().to_string())?;
    fs::rename(&partial, path).with_context(|| path.display().to_string())
}

fn with_suffix(path: &Path, suffix: &str) -> PathBuf {
    let mut name = path.as_os_str().to_owned();
    name.push(suffix);
    name.into()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn finish(partial: &mut Partial, tensor: &str, at: u64, byte: u8) {
        let mut to = partial.at(at).unwrap();
        to.write_all(&[byte; 4]).unwrap();
        to.flush().unwrap();
        partial.finish(tensor, Finished { error: f64::from(byte), norm: 2.0 }).unwrap();
    }

    #[test]
    fn an_interrupted_file_is_continued_and_never_readable_before_it_is_whole() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("x");
        let open = |request: &str| Partial::open(name.clone(), request, b"head", 12).unwrap();
        finish(&mut open("a"), "one", 4, 1);
        assert!(!name.exists());
        let mut second = open("a");
        assert_eq!((second.count(), second.finished("one")), (1, Some(Finished { error: 1.0, norm: 2.0 })));
        finish(&mut second, "two", 8, 2);
        second.name_it().unwrap();
        assert_eq!(fs::read(&name).unwrap(), b"head\x01\x01\x01\x01\x02\x02\x02\x02");
        // Interrupted between the name and the end of the run.
        let mut third = open("a");
        assert_eq!(third.count(), 2);
        third.name_it().unwrap();
        forget(&name).unwrap();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 1);
    }

    #[test]
    fn another_request_or_a_cut_journal_line_starts_over_or_drops_the_line() {
        let dir = tempfile::tempdir().unwrap();
        let name = dir.path().join("x");
        finish(&mut Partial::open(name.clone(), "a", b"head", 12).unwrap(), "one", 4, 1);
        let journal = dir.path().join("x.journal");
        let text = fs::read_to_string(&journal).unwrap();
        fs::write(&journal, format!("{text}{{\"tensor\":\"tw")).unwrap();
        let mut cut = Partial::open(name.clone(), "a", b"head", 12).unwrap();
        assert_eq!(cut.count(), 1);
        finish(&mut cut, "two", 8, 2);
        assert_eq!(Partial::open(name.clone(), "a", b"head", 12).unwrap().count(), 2, "lines after the cut one count");
        let other = Partial::open(name, "b", b"head", 12).unwrap();
        assert_eq!(other.count(), 0);
        other.abandon();
        assert_eq!(fs::read_dir(dir.path()).unwrap().count(), 0);
    }
}
