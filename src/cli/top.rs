//! `sluiced top`: how the fleet is, again and again, until `q` or Ctrl-C.
//!
//! It is `sluiced status` drawn anew each second on a screen of its own, so there is one text to read, and
//! no library for windows is needed.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use tokio::io::AsyncReadExt as _;
use tokio::signal::unix::{SignalKind, signal};

use super::exit::Exit;
use super::refusal::Refusal;
use super::status::{Asked, ReplicaArgs};
use super::view::view;

/// How often it is drawn.
const EVERY: Duration = Duration::from_secs(1);
/// Another screen without a cursor, so that the one before comes back at the end.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?25h\x1b[?1049l";

/// The arguments of `sluiced top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
}

/// Draws to `out`, which must be a terminal.
///
/// # Errors
/// When the terminal cannot be written to.
pub(super) async fn run(
    args: &TopArgs,
    out: &mut impl Write,
    colour: bool,
) -> Result<Exit, Refusal> {
    let asked = args.replica.asked(std::env::vars())?;
    let (mut interrupt, mut terminate) = (
        signal(SignalKind::interrupt())?,
        signal(SignalKind::terminate())?,
    );
    let keys = Keys::read();
    write!(out, "{ENTER}")?;
    let drawn = tokio::select! {
        drawn = draw(&asked, out, colour) => drawn,
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
        () = quit() => Ok(()),
    };
    drop(keys);
    write!(out, "{LEAVE}")?;
    out.flush()?;
    drawn?;
    Ok(Exit::Done)
}

async fn draw(asked: &Asked, out: &mut impl Write, colour: bool) -> io::Result<()> {
    let mut lines = vec![format!("asking {} …", asked.url)];
    loop {
        let (width, height) = size();
        match asked.fleet().await {
            Ok(fleet) => lines = view(&fleet, width, colour),
            // What was shown stays, below the reason why it is old.
            Err(why) => {
                lines.retain(|line| !line.starts_with("NOT ANSWERED"));
                lines.insert(0, format!("NOT ANSWERED: {why}"));
            }
        }
        let mut screen = String::from("\x1b[H");
        for line in lines.iter().take(height.saturating_sub(1)) {
            screen.push_str(line);
            screen.push_str("\x1b[K\r\n");
        }
        screen.push_str("\x1b[J");
        out.write_all(screen.as_bytes())?;
        out.flush()?;
        tokio::time::sleep(EVERY).await;
    }
}

/// Columns and rows of the terminal.
#[must_use]
pub fn size() -> (usize, usize) {
    match tcgetwinsize(io::stdout()) {
        Ok(size) if size.ws_col > 0 && size.ws_row > 0 => (size.ws_col.into(), size.ws_row.into()),
        _ => (80, 24),
    }
}

/// Waits for a `q`. Without a terminal to read from it never comes.
async fn quit() {
    let mut input = tokio::io::stdin();
    loop {
        match input.read_u8().await {
            Ok(b'q' | b'Q') => return,
            Ok(_) => {}
            Err(_) => std::future::pending().await,
        }
    }
}

/// Keys come at once and are not shown, until this is dropped.
struct Keys(Option<Termios>);

impl Keys {
    fn read() -> Self {
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut modes = before.clone();
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // Without it `q` needs a return behind it; no more than that is lost.
            tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok();
        }
        Self(before)
    }
}

impl Drop for Keys {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            tcsetattr(io::stdin(), OptionalActions::Now, before).ok();
        }
    }
}
