//! The results as a file in the form of JUnit, which CI systems read.

use std::fs;
use std::io;
use std::path::Path;

use quick_junit::{NonSuccessKind, Report, TestCase, TestCaseStatus, TestSuite};

use super::TestRun;

/// Writes the tests of each file to `path`.
pub(super) fn write(path: &Path, files: &[(String, Vec<TestRun>)]) -> io::Result<()> {
    let mut report = Report::new("sluiced test");
    for (file, ran) in files {
        let mut suite = TestSuite::new(file.clone());
        for ran in ran {
            let status = match &*ran.failures {
                [] => TestCaseStatus::success(),
                failures => {
                    let mut failure = TestCaseStatus::non_success(NonSuccessKind::Failure);
                    failure.set_message(failures.join("\n"));
                    failure
                }
            };
            let mut case = TestCase::new(ran.name.clone(), status);
            case.set_classname(file.clone());
            case.extra
                .insert("line".into(), ran.line.to_string().into());
            suite.add_test_case(case);
        }
        report.add_test_suite(suite);
    }
    let text = report.to_string().map_err(io::Error::other)?;
    fs::write(path, text)
}
