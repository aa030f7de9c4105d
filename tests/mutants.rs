//! Planted faults: every entry of reference/mutants.toml must make the test it names fail, or that test proves nothing.
//! All faults are compiled into one copy of the crate, each behind a name, and switched on one at a time. The copy is
//! kept under the target folder, so that a second run builds only what changed.
//! Knows the list's format and the test runner's words; nothing of what the faults are.

use std::{
    collections::BTreeMap,
    fs,
    path::{Path, PathBuf},
    process::Command,
};

/// One planted fault.
#[derive(Default)]
struct Mutant {
    name: String,
    file: String,
    original: String,
    mutant: String,
    test: String,
}

/// What a switched expression asks. Appended to the copy's lib.rs.
const SWITCH: &str = r#"
pub(crate) fn mutant_on(name: &str) -> bool {
    static ON: std::sync::OnceLock<Option<String>> = std::sync::OnceLock::new();
    ON.get_or_init(|| std::env::var("STRAW_MUTANT").ok()).as_deref() == Some(name)
}
"#;

/// How a program ends that failed by accident and not because a claim was checked.
const ACCIDENTS: [&str; 7] = [
    "called `Option::unwrap",
    "called `Result::unwrap",
    "index out of bounds",
    "attempt to ",
    "ShapeError",
    "out of range",
    "memory allocation",
];

#[test]
fn every_planted_fault_is_caught_by_the_test_it_names() {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("..");
    let mutants = read(&fs::read_to_string(root.join("reference/mutants.toml")).expect("the list is there"));
    assert!(mutants.len() >= 22, "{} mutants listed", mutants.len());
    let scratch = Path::new(env!("CARGO_TARGET_TMPDIR")).join("mutants");
    plant(&root, &scratch, &mutants);
    let tests = build(&scratch);
    let mut names: Vec<&str> = mutants.iter().map(|m| m.test.as_str()).collect();
    names.sort_unstable();
    names.dedup();
    let clean = run(&tests, &scratch, &names, "");
    assert!(
        clean.contains(&format!("test result: ok. {} passed;", names.len())),
        "without a fault the {} named tests must exist and pass:\n{clean}",
        names.len()
    );
    let (one, other) = mutants.split_at(mutants.len() / 2);
    let survivors = std::thread::scope(|scope| {
        let other = scope.spawn(|| survivors(&tests, &scratch, other));
        let mut all = survivors(&tests, &scratch, one);
        all.extend(other.join().expect("the second half runs"));
        all
    });
    assert!(survivors.is_empty(), "{} of {} faults:\n{}", survivors.len(), mutants.len(), survivors.join("\n"));
}

/// A sentence per fault that its test did not catch.
fn survivors(tests: &Path, scratch: &Path, mutants: &[Mutant]) -> Vec<String> {
    let verdict = |m: &Mutant| {
        let output = run(tests, scratch, &[&m.test], &m.name);
        let caught = output.contains("test result: FAILED. 0 passed; 1 failed;");
        match ACCIDENTS.iter().find(|words| output.contains(*words)) {
            None if caught => None,
            Some(words) if caught => Some(format!("{} fails by accident ({words}), not by a claim of {}", m.name, m.test)),
            _ => Some(format!("{} survives {}", m.name, m.test)),
        }
    };
    mutants.iter().filter_map(verdict).collect()
}

/// `[[mutant]]` tables of `key = "string"` lines; strings may be basic or literal.
fn read(text: &str) -> Vec<Mutant> {
    let mut mutants: Vec<Mutant> = vec![];
    for line in text.lines().map(str::trim).filter(|l| !l.is_empty() && !l.starts_with('#')) {
        if line == "[[mutant]]" {
            mutants.push(Mutant::default());
            continue;
        }
        let (key, value) = line.split_once(" = ").unwrap_or_else(|| panic!("{line:?} is no `key = value`"));
        let value = match value.strip_prefix('\'').and_then(|v| v.strip_suffix('\'')) {
            Some(literal) => literal.to_owned(),
            None => serde_json::from_str(value).unwrap_or_else(|e| panic!("{line:?}: {e}")),
        };
        let mutant = mutants.last_mut().expect("a key comes after [[mutant]]");
        match key {
            "name" => mutant.name = value,
            "file" => mutant.file = value,
            "original" => mutant.original = value,
            "mutant" => mutant.mutant = value,
            "test" => mutant.test = value,
            _ => panic!("{key} is no key of a mutant"),
        }
    }
    mutants
}

/// Copies what the crate's tests need and puts every fault in its place.
fn plant(root: &Path, scratch: &Path, mutants: &[Mutant]) {
    for part in ["specdec", "reference", "tests/fixtures", "Cargo.lock"] {
        copy(&root.join(part), &scratch.join(part));
    }
    let workspace = fs::read_to_string(root.join("Cargo.toml")).expect("a workspace");
    let (_, rest) = workspace.split_once("resolver").expect("a resolver after the members");
    write(&scratch.join("Cargo.toml"), &format!("[workspace]\nmembers = [\"specdec\", \"reference\"]\nresolver{rest}"));
    let mut sites: BTreeMap<(&str, &str), Vec<&Mutant>> = BTreeMap::new();
    for mutant in mutants {
        sites.entry((&mutant.file, &mutant.original)).or_default().push(mutant);
    }
    let mut files: BTreeMap<&str, String> = BTreeMap::new();
    for ((file, original), faults) in sites {
        let pristine = fs::read_to_string(root.join("reference").join(file)).unwrap_or_else(|e| panic!("{file}: {e}"));
        let count = pristine.matches(original).count();
        assert_eq!(count, 1, "{}: {original:?} occurs {count} times in {file}, expected once", faults[0].name);
        let switched = faults
            .iter()
            .fold(String::new(), |text, m| text + &format!("if crate::mutant_on({:?}) {{ {} }} else ", m.name, m.mutant));
        let text = files.entry(file).or_insert(pristine);
        let at = text.find(original).unwrap_or_else(|| panic!("{}: {original:?} overlaps another fault", faults[0].name));
        text.replace_range(at..at + original.len(), &format!("({switched}{{ {original} }})"));
    }
    let lib = fs::read_to_string(root.join("reference/src/lib.rs")).expect("a crate") + SWITCH;
    files.insert("src/lib.rs", lib);
    for (file, text) in files {
        write(&scratch.join("reference").join(file), &text);
    }
}

fn copy(from: &Path, to: &Path) {
    if from.is_dir() {
        let entries = fs::read_dir(from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        for entry in entries.map(|e| e.expect("a folder entry")) {
            copy(&entry.path(), &to.join(entry.file_name()));
        }
    } else {
        let bytes = fs::read(from).unwrap_or_else(|e| panic!("{}: {e}", from.display()));
        fs::create_dir_all(to.parent().expect("a folder")).expect("writable");
        // An unchanged file keeps its time, and is not built again.
        if fs::read(to).ok().as_ref() != Some(&bytes) {
            fs::write(to, bytes).expect("writable");
        }
    }
}

fn write(path: &Path, text: &str) {
    if fs::read_to_string(path).ok().as_deref() != Some(text) {
        fs::write(path, text).expect("writable");
    }
}

/// Builds the copy's unit tests and returns the program. Built for speed of building: the tests are small.
fn build(scratch: &Path) -> PathBuf {
    let output = Command::new(env!("CARGO"))
        .args(["test", "--offline", "--package", "reference", "--lib", "--no-run", "--message-format", "json"])
        .current_dir(scratch)
        .env("CARGO_TARGET_DIR", scratch.join("target"))
        .envs([("CARGO_PROFILE_DEV_OPT_LEVEL", "1"), ("CARGO_PROFILE_DEV_DEBUG", "0")])
        .output()
        .expect("cargo runs");
    assert!(output.status.success(), "the faults do not compile:\n{}", String::from_utf8_lossy(&output.stderr));
    let messages = String::from_utf8_lossy(&output.stdout);
    let programs = messages.lines().filter_map(|line| serde_json::from_str::<serde_json::Value>(line).ok());
    programs.filter_map(|m| Some(PathBuf::from(m.get("executable")?.as_str()?))).next_back().expect("a test program")
}

/// Runs tests by full path with one fault switched on.
fn run(tests: &Path, scratch: &Path, names: &[&str], fault: &str) -> String {
    let output = Command::new(tests)
        .args(names)
        .arg("--exact")
        .current_dir(scratch.join("reference"))
        .envs([("STRAW_MUTANT", fault), ("RUST_BACKTRACE", "0")])
        .output()
        .expect("the tests run");
    String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr)
}
