//! Shared support for the cross-crate test binary: where fixtures lie, how the built command is run.

use std::{
    path::{Path, PathBuf},
    process::{Command, Stdio},
    sync::OnceLock,
};

/// The repository's root.
pub fn workspace() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().expect("the package lies in the workspace")
}

/// A folder or file under tests/fixtures.
pub fn fixture(name: &str) -> PathBuf {
    workspace().join("tests").join("fixtures").join(name)
}

/// What a finished command left.
#[derive(Debug)]
pub struct Run {
    /// Exit code; `None` after a signal.
    pub code: Option<i32>,
    /// Data.
    pub stdout: String,
    /// Talk.
    pub stderr: String,
}

/// The built `straw`, built once per test process with the profile and target folder of the tests.
pub fn straw() -> &'static Path {
    static BUILT: OnceLock<PathBuf> = OnceLock::new();
    BUILT.get_or_init(|| {
        let test = std::env::current_exe().expect("a running test has a path");
        // target/PROFILE/deps/straw-HASH
        let profile = test.ancestors().nth(2).expect("tests run from the target folder");
        let mut build = Command::new(env!("CARGO"));
        build.args(["build", "--quiet", "-p", "experiments", "--bin", "straw", "--target-dir"]);
        build.arg(profile.parent().expect("a profile lies in the target folder")).current_dir(workspace());
        if profile.ends_with("release") {
            build.arg("--release");
        }
        assert!(build.status().expect("cargo runs").success(), "straw does not build");
        profile.join(format!("straw{}", std::env::consts::EXE_SUFFIX))
    })
}

/// Runs `straw` from the repository's root with nothing on stdin.
pub fn run<S: AsRef<std::ffi::OsStr>>(args: &[S]) -> Run {
    finish(command().args(args))
}

/// `straw` in a fixed environment, to be given arguments.
pub fn command() -> Command {
    let mut command = Command::new(straw());
    command.current_dir(workspace()).env_remove("STRAW_MODELS").env("NO_COLOR", "1").stdin(Stdio::null());
    command
}

/// Runs a prepared command to its end.
pub fn finish(command: &mut Command) -> Run {
    let output = command.output().expect("straw starts");
    let text = |bytes: Vec<u8>| String::from_utf8(bytes).expect("straw writes UTF-8");
    Run { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}
