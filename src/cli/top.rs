//! `sluiced top`: the state of the fleet in a terminal, again and again, until `q` or Ctrl-C.
//!
//! A fleet with many routes has more lines than a terminal of 24 rows. So the lines scroll, and the last row says which
//! of them are shown.

use std::io::{self, Write};
use std::time::Duration;

use clap::Args;
use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use tokio::io::{AsyncRead, AsyncReadExt as _};
use tokio::sync::mpsc;
use tokio::time::Instant;

use super::exit::{Exit, Refusal, StopSignals, variables};
use super::status::{AskedReplica, ReplicaArgs, size};
use super::view::{not_answered, view};

/// How often the fleet is asked.
const ASK_INTERVAL: Duration = Duration::from_secs(1);
/// A second screen without a cursor, so that the first one returns at the end.
const ENTER: &str = "\x1b[?1049h\x1b[?25l";
const LEAVE: &str = "\x1b[?1049l\x1b[?25h";
/// This many keys may wait to be drawn; more are dropped.
const KEYS: usize = 16;

/// The arguments of `sluiced top`.
#[derive(Args, Clone, Debug)]
pub struct TopArgs {
    #[command(flatten)]
    replica: ReplicaArgs,
}

/// What a key does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum KeyPress {
    Down,
    Up,
    PageDown,
    PageUp,
    First,
    Last,
    Quit,
    Other,
}

/// Draws to `out`, which must be a terminal.
///
/// # Errors
/// When the terminal cannot be written to.
pub(super) async fn top(
    args: &TopArgs,
    out: &mut impl Write,
    colour: bool,
) -> Result<Exit, Refusal> {
    let asked = args.replica.find(variables()).await?;
    let mut signals = StopSignals::new()?;
    let modes = Modes::set();
    write!(out, "{ENTER}")?;
    let (sender, keys) = mpsc::channel(KEYS);
    let drawn = tokio::select! {
        drawn = draw(&asked, keys, out, colour) => drawn,
        () = signals.next() => Ok(()),
        () = read(tokio::io::stdin(), &sender) => Ok(()),
    };
    drop(modes);
    write!(out, "{LEAVE}")?;
    out.flush()?;
    drawn?;
    Ok(Exit::Done)
}

/// This many lines say why there is no answer: the last view stays visible below them.
const MOST_OF_FAILURE: usize = 5;

async fn draw(
    asked: &AskedReplica,
    mut keys: mpsc::Receiver<KeyPress>,
    out: &mut impl Write,
    colour: bool,
) -> io::Result<()> {
    let mut last_lines = vec![format!("asking {} …", asked.url())];
    let mut first = 0;
    loop {
        let (width, rows) = size();
        // The last lines stay, below the reason why they are old.
        let mut lines = match asked.fleet().await {
            Ok(fleet) => {
                last_lines = view(&fleet, width, colour);
                Vec::new()
            }
            Err(why) => {
                let mut lines = not_answered(&why, width);
                lines.truncate(MOST_OF_FAILURE);
                lines
            }
        };
        lines.extend_from_slice(&last_lines);
        let next = Instant::now() + ASK_INTERVAL;
        loop {
            first = moved(first, KeyPress::Other, lines.len(), rows);
            out.write_all(screen(&lines, first, rows).as_bytes())?;
            out.flush()?;
            tokio::select! {
                () = tokio::time::sleep_until(next) => break,
                Some(key) = keys.recv() => first = moved(first, key, lines.len(), rows),
            }
        }
    }
}

/// How many lines are shown at a time: one row stays free, and one says where they are.
const fn shown(rows: usize) -> usize {
    let free = rows.saturating_sub(2);
    if free == 0 { 1 } else { free }
}

/// The first line that is shown after a key: the last one never leaves the end of the screen.
fn moved(first: usize, key: KeyPress, lines: usize, rows: usize) -> usize {
    let page = shown(rows);
    let last = lines.saturating_sub(page);
    let to = match key {
        KeyPress::Down => first + 1,
        KeyPress::Up => first.saturating_sub(1),
        KeyPress::PageDown => first + page,
        KeyPress::PageUp => first.saturating_sub(page),
        KeyPress::First => 0,
        KeyPress::Last => last,
        KeyPress::Quit | KeyPress::Other => first,
    };
    to.min(last)
}

/// The lines from the first one on, and where they are if there are more.
fn screen(lines: &[String], first: usize, rows: usize) -> String {
    let page = shown(rows);
    let mut screen = String::from("\x1b[H");
    let mut row = |line: &str| {
        screen.push_str(line);
        screen.push_str("\x1b[K\r\n");
    };
    for line in lines.iter().skip(first).take(page) {
        row(line);
    }
    if lines.len() > page {
        let (from, to, all) = (first + 1, (first + page).min(lines.len()), lines.len());
        row(&format!(
            "lines {from} to {to} of {all}: arrows, space and b move, q ends"
        ));
    }
    screen.push_str("\x1b[J");
    screen
}

/// Sends on what is typed, until that is a `q`. Never ends without a terminal to read from.
async fn read(mut input: impl AsyncRead + Unpin, keys: &mpsc::Sender<KeyPress>) {
    loop {
        match key(&mut input).await {
            Ok(KeyPress::Quit) => return,
            // A full channel: the screen is moved already.
            Ok(key) => drop(keys.try_send(key)),
            Err(_) => std::future::pending().await,
        }
    }
}

/// The next key: a letter, or the sequence that a terminal sends for an arrow (`ESC [ A`) or for a page (`ESC [ 5 ~`).
async fn key(input: &mut (impl AsyncRead + Unpin)) -> io::Result<KeyPress> {
    let letter = input.read_u8().await?;
    if letter != 0x1b {
        return Ok(match letter {
            b'q' | b'Q' => KeyPress::Quit,
            b'j' => KeyPress::Down,
            b'k' => KeyPress::Up,
            b' ' => KeyPress::PageDown,
            b'b' => KeyPress::PageUp,
            b'g' => KeyPress::First,
            b'G' => KeyPress::Last,
            _ => KeyPress::Other,
        });
    }
    if !matches!(input.read_u8().await?, b'[' | b'O') {
        return Ok(KeyPress::Other);
    }
    Ok(match input.read_u8().await? {
        b'A' => KeyPress::Up,
        b'B' => KeyPress::Down,
        b'H' => KeyPress::First,
        b'F' => KeyPress::Last,
        page @ (b'5' | b'6') => {
            input.read_u8().await?;
            if page == b'5' {
                KeyPress::PageUp
            } else {
                KeyPress::PageDown
            }
        }
        _ => KeyPress::Other,
    })
}

/// Keys come at once and are not shown, until this is dropped.
struct Modes(Option<Termios>);

impl Modes {
    fn set() -> Self {
        let before = tcgetattr(io::stdin()).ok();
        if let Some(before) = &before {
            let mut modes = before.clone();
            modes.local_modes -= LocalModes::ICANON | LocalModes::ECHO;
            // If this fails, a key needs a return after it; nothing else is lost.
            tcsetattr(io::stdin(), OptionalActions::Now, &modes).ok();
        }
        Self(before)
    }
}

impl Drop for Modes {
    fn drop(&mut self) {
        if let Some(before) = &self.0 {
            tcsetattr(io::stdin(), OptionalActions::Now, before).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The rows of a screen, without what moves the cursor.
    fn rows(lines: &[String], first: usize, height: usize) -> Vec<String> {
        let drawn = screen(lines, first, height);
        let drawn = drawn.replace("\x1b[H", "").replace("\x1b[J", "");
        let rows = drawn.split_terminator("\x1b[K\r\n");
        rows.map(str::to_owned).collect()
    }

    #[test]
    fn every_line_can_be_reached_in_24_rows() {
        let lines: Vec<_> = (1..=60).map(|line| format!("line {line}")).collect();
        let mut first = 0;
        let mut seen = Vec::new();
        for _ in 0..4 {
            let shown = rows(&lines, first, 24);
            assert_eq!(shown.len(), 23, "the last row of the terminal stays free");
            assert!(shown[22].contains("of 60"), "{}", shown[22]);
            seen.extend(shown[..22].to_vec());
            first = moved(first, KeyPress::PageDown, lines.len(), 24);
        }
        assert!(lines.iter().all(|line| seen.contains(line)));
        assert_eq!(first, 38, "the end stays at the end");
        assert_eq!(moved(first, KeyPress::First, lines.len(), 24), 0);
        assert_eq!(
            moved(first, KeyPress::Other, 10, 24),
            0,
            "fewer lines than before"
        );
        assert_eq!(
            rows(&lines[..22], 0, 24),
            lines[..22],
            "all fit: nothing is added"
        );
        assert_eq!(rows(&lines, 0, 1).len(), 2, "no terminal is that low");
    }

    #[tokio::test]
    async fn arrows_and_letters_move() {
        let mut typed: &[u8] = b"jk\x1b[A\x1b[B\x1b[5~\x1b[6~ bgG\x1bOBxq";
        let mut keys = Vec::new();
        while let Ok(key) = key(&mut typed).await {
            keys.push(key);
        }
        use KeyPress::{Down, First, Last, Other, PageDown, PageUp, Quit, Up};
        assert_eq!(
            keys,
            [
                Down, Up, Up, Down, PageUp, PageDown, PageDown, PageUp, First, Last, Down, Other,
                Quit
            ]
        );
    }
}
