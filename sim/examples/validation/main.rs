//! Prints docs/validation.md: published figures beside the simulator's.

mod article;
mod literature;
mod table;

fn main() {
    let (sections, findings) = all();
    print!("{}", table::render(&sections, &findings));
}

/// Every section and finding, in document order.
fn all() -> (Vec<table::Section>, Vec<String>) {
    let (mut sections, mut findings) = (article::sections(), article::findings());
    sections.extend(literature::sections());
    findings.extend(literature::findings());
    (sections, findings)
}
