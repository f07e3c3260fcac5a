//! `sluiced test`: what a configuration makes of messages and of answers, as its author expects it.
//!
//! Problem: a template, a list of outcomes and a limit are code, and whether they are right shows at the provider, with
//! messages of customers. So a file beside the configuration has messages, the request, keys and costs that should be
//! made of them, and answers with what should follow (`cases`). They run with the code that runs for messages of a queue,
//! without servers, calls and secrets: a word stands for each secret.
//!
//! Exit codes: 0: all are as expected; 1: some are not; 2: a file of tests cannot be read; 78: the configuration is wrong.

mod cases;
mod compare;
mod junit;
mod one;

use std::collections::BTreeSet;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;

use self::cases::Cases;
use super::check::fitting;
use super::exit::{Exit, Refusal};
use crate::wire;
use sluiced_settings::{self as settings, Extra, Loaded};

/// The arguments of `sluiced test`.
#[derive(Args, Clone, Debug)]
pub struct TestArgs {
    /// The configuration, as for `sluiced run`; may repeat
    #[arg(long, env = "SLUICED_CONFIG", value_name = "FILE", required = true)]
    config: Vec<PathBuf>,
    /// Files with tests
    #[arg(value_name = "TESTS", required = true)]
    tests: Vec<PathBuf>,
    /// Also write the results to this file, in the form of JUnit
    #[arg(long, value_name = "FILE")]
    junit: Option<PathBuf>,
    /// Show only what is not as expected
    #[arg(long)]
    quiet: bool,
}

/// A test that ran.
#[derive(Debug)]
struct Ran {
    name: String,
    /// Where it stands in its file, from 1.
    line: usize,
    /// What is not as expected.
    failures: Vec<String>,
}

/// Runs the tests and writes their results to `out`.
pub(super) fn run(
    args: &TestArgs,
    env: impl Iterator<Item = (String, String)>,
    out: &mut impl Write,
) -> Result<Exit, Refusal> {
    let none: Option<Extra> = None;
    let loaded = settings::load_with(settings::Needs::MadeUp, &args.config, none, env);
    let loaded = fitting(loaded, wire::misfits).map_err(Refusal::Faults)?;
    let mut files = Vec::new();
    for path in &args.tests {
        let name = path.display().to_string();
        let ran = tested(&name, &read(path)?, &loaded)?;
        for ran in &ran {
            write(&name, ran, args.quiet, out)?;
        }
        files.push((name, ran));
    }
    let all = || files.iter().flat_map(|(_, ran)| ran);
    let failed = all().filter(|ran| !ran.failures.is_empty()).count();
    let passed = all().count() - failed;
    writeln!(out, "{passed} passed, {failed} failed")?;
    if let Some(path) = &args.junit {
        let written = junit::write(path, &files);
        written.map_err(|why| Refusal::Failed(format!("{}: {why}", path.display())))?;
    }
    Ok(if failed == 0 {
        Exit::Done
    } else {
        Exit::Failed
    })
}

fn read(path: &Path) -> Result<String, Refusal> {
    let text = fs::read_to_string(path);
    text.map_err(|why| Refusal::Arguments(format!("{}: {why}", path.display())))
}

/// Runs the tests of a file.
fn tested(file: &str, text: &str, loaded: &Loaded) -> Result<Vec<Ran>, Refusal> {
    let wrong = |why: String| Refusal::Arguments(format!("{file}: {why}"));
    // Its errors show the line.
    let cases: Cases = toml::from_str(text).map_err(|why| wrong(why.to_string()))?;
    if cases.test.is_empty() {
        return Err(wrong("there is no [[test]]".to_owned()));
    }
    let mut names = BTreeSet::new();
    let mut all = Vec::new();
    for case in &cases.test {
        let name = case.name.get_ref();
        let line = text[..case.name.span().start].lines().count().max(1);
        if !names.insert(name) {
            return Err(wrong(format!(
                "line {line}: a second test is called `{name}`"
            )));
        }
        let failed = |why| wrong(format!("line {line}: {name}: {why}"));
        let results = one::run(case, loaded).map_err(failed)?;
        all.extend(results.into_iter().map(|(answer, failures)| Ran {
            name: match answer {
                Some(answer) => format!("{name}: {answer}"),
                None => name.clone(),
            },
            line,
            failures,
        }));
    }
    Ok(all)
}

fn write(file: &str, ran: &Ran, quiet: bool, out: &mut impl Write) -> Result<(), Refusal> {
    let Ran {
        name,
        line,
        failures,
    } = ran;
    if failures.is_empty() {
        if !quiet {
            writeln!(out, "ok    {name}")?;
        }
        return Ok(());
    }
    writeln!(out, "FAIL  {name} ({file}:{line})")?;
    for failure in failures {
        writeln!(out, "      {failure}")?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
