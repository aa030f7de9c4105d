//! The `straw` command.
fn main() {}
