//! The program, which is all in the library.

use std::process::ExitCode;

fn main() -> ExitCode {
    sluiced::cli::main()
}
