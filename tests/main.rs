//! One binary for every test that needs more than one crate.

mod cli;
mod cli_errors;
mod cli_generate;
mod cli_logits;
mod cli_quality;
mod cli_quantize;
mod cli_simulate;
mod cli_trace;
mod cli_tune;
mod fast_answers;
mod fast_codes;
mod fast_drafters;
mod fast_loading;
mod fast_models;
mod fast_oracle;
mod fast_rows;
mod mutants;
