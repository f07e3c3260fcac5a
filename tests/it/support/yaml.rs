//! Files of YAML as JSON values. Python reads them where it has the library (Debian: python3-yaml), so that
//! no test has a reader of its own that could misread them.

use std::path::Path;
use std::process::Command;

use serde_json::Value;

const READ: &str = "import json, sys, yaml\n\
    print(json.dumps(list(yaml.safe_load_all(open(sys.argv[1])))))";

/// The documents of a file, by its path in this repository or a whole one; `None` if nothing can read them.
#[must_use]
pub fn documents(file: &str) -> Option<Vec<Value>> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
    // Another Python may be found first and lack the library.
    ["python3", "/usr/bin/python3"].iter().find_map(|python| {
        let mut command = Command::new(python);
        let read = command.args(["-c", READ]).arg(&path).output();
        let read = read.ok().filter(|read| read.status.success())?;
        Some(serde_json::from_slice(&read.stdout).expect("it is JSON"))
    })
}
