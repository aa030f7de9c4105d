//! One answer as text: an engine's tokens decoded as they come, ended at a stop string. Shared by the verbs that generate.

use crate::{
    draft::{BudgetChoice, DraftPlan},
    engine::Engine,
    stop::StopFilter,
    text::Text,
};
use anyhow::Result;
use specdec::{GenerateRequest, Generation};
use std::{io, ops::ControlFlow};

/// Tokens and what they read as.
pub struct Answer {
    /// Tokens, rounds, times.
    pub generation: Generation,
    /// Text up to a stop string, special tokens left out.
    pub text: String,
}

/// Generates; `show` gets each piece of text when it is certain to belong to the answer.
///
/// Errors: the engine's, the decoder's, and those of `show` (a closed pipe ends the generation).
pub fn answer(
    engine: &Engine,
    plan: &DraftPlan,
    request: &GenerateRequest,
    text: &Text,
    mut stop: StopFilter,
    show: &mut dyn FnMut(&str) -> io::Result<()>,
) -> Result<Answer> {
    let (mut stream, mut whole, mut trouble) = (text.stream(), String::new(), None);
    let mut pass_on = |piece: String| -> Result<()> {
        whole.push_str(&piece);
        if piece.is_empty() { Ok(()) } else { Ok(show(&piece)?) }
    };
    let mut on_token = |token: specdec::Token| {
        let shown = stream.push(token.id).map(|piece| stop.push(&piece)).and_then(&mut pass_on);
        match shown {
            Ok(()) if !stop.stopped() => ControlFlow::Continue(()),
            Ok(()) => ControlFlow::Break(()),
            Err(error) => {
                trouble = Some(error);
                ControlFlow::Break(())
            }
        }
    };
    let generation = match (plan.budget, &plan.table) {
        (BudgetChoice::Fixed(_), _) => engine.generate(request, &mut on_token),
        (BudgetChoice::Auto, Some(table)) => engine.generate_by_table(request, table, &mut on_token),
        (BudgetChoice::Auto, None) => engine.generate_auto(request, &mut on_token),
    };
    if let Some(error) = trouble {
        return Err(error);
    }
    let generation = generation?;
    pass_on(stop.push(&stream.finish()?))?;
    pass_on(stop.finish())?;
    Ok(Answer { generation, text: whole })
}
