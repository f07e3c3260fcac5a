//! `sluiced test`: what a configuration makes of messages and of answers, as its author expects it.
//!
//! Problem: a template, a list of outcomes and a limit are code, and whether they are right shows at the provider, with
//! messages of customers. So a file beside the configuration has messages, the request, keys and costs that should be
//! made of them, and answers with what should follow (`cases`). They run with the code that runs for messages of a
//! queue, without servers, calls and secrets: a word stands for each secret.
//!
//! Exit codes: 0: all are as expected; 1: some are not; 2: a file of tests cannot be read; 78: the configuration is
//! wrong.

mod cases;
mod compare;
mod junit;
mod one;

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

use clap::Args;
use toml::Spanned;

use self::cases::Cases;
use super::check::check_backends;
use super::exit::{Exit, Refusal, load_configuration, writes_over_no_input};
use crate::wire;
use sluiced_settings::{Loaded, Needs};

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
struct TestRun {
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
    let configuration = load_configuration(Needs::MadeUp, &args.config, env)?;
    let loaded =
        check_backends(Ok(configuration), wire::backend_faults).map_err(Refusal::Faults)?;
    if let Some(junit) = &args.junit {
        // The results would replace it.
        writes_over_no_input("--junit", junit, args.config.iter().chain(&args.tests))?;
    }
    let mut files = Vec::new();
    for path in &args.tests {
        let name = path.display().to_string();
        let ran = run_file(&name, &read(path)?, &loaded)?;
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
fn run_file(file: &str, text: &str, loaded: &Loaded) -> Result<Vec<TestRun>, Refusal> {
    let wrong = |why: String| Refusal::Arguments(format!("{file}: {why}"));
    // Its errors show the line.
    let cases: Cases = toml::from_str(text).map_err(|why| wrong(why.to_string()))?;
    if cases.test.is_empty() {
        return Err(wrong("there is no [[test]]".to_owned()));
    }
    let lines = LineEnds::of(text);
    let mut names = BTreeSet::new();
    let mut trials = BTreeMap::new();
    let mut all = Vec::new();
    for case in &cases.test {
        let (name, line) = (case.name.get_ref(), lines.of_name(&case.name));
        lines
            .only_once("test", &case.name, &mut names)
            .map_err(wrong)?;
        let mut answers = BTreeSet::new();
        for answer in &case.answers {
            let unique = lines.only_once("answer of this test", &answer.name, &mut answers);
            unique.map_err(wrong)?;
        }
        let results = one::run(case, loaded, &mut trials).map_err(|why| {
            let at = why.answer.map_or(line, |answer| lines.of_name(answer));
            wrong(format!("line {at}: {name}: {}", why.why))
        })?;
        all.extend(results.into_iter().map(|(answer, failures)| match answer {
            Some(answer) => TestRun {
                name: format!("{name}: {}", answer.get_ref()),
                line: lines.of_name(answer),
                failures,
            },
            None => TestRun {
                name: name.clone(),
                line,
                failures,
            },
        }));
    }
    Ok(all)
}

/// Where the lines of a file end.
struct LineEnds(Vec<usize>);

impl LineEnds {
    fn of(text: &str) -> Self {
        Self(text.match_indices('\n').map(|(at, _)| at).collect())
    }

    /// Says where a name stands that is one of `known` already.
    fn only_once<'a>(
        &self,
        what: &str,
        name: &'a Spanned<String>,
        known: &mut BTreeSet<&'a str>,
    ) -> Result<(), String> {
        if known.insert(name.get_ref()) {
            return Ok(());
        }
        let (line, name) = (self.of_name(name), name.get_ref());
        Err(format!("line {line}: a second {what} is called `{name}`"))
    }

    /// The line of a name, from 1.
    fn of_name(&self, name: &Spanned<String>) -> usize {
        1 + self.0.partition_point(|end| *end < name.span().start)
    }
}

fn write(file: &str, ran: &TestRun, quiet: bool, out: &mut impl Write) -> Result<(), Refusal> {
    let TestRun {
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
