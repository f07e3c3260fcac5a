//! `sluiced limits list`: a line for each limit. `sluiced limits show NAME`: everything about one limit, and
//! with a key, or for a limit without keys, how many units are left. Neither changes anything.

use std::io::Write;
use std::time::Duration;

use clap::Args;
use serde_json::json;

use super::key;
use super::{LimitsLocation, OpenLimits, Refusal};
use crate::cli::shell;
use crate::cli::text::{facts, plural, rough, state_in_words, table};
use crate::wire::{StoredLimit, kind};
use sluiced_core::headroom::Headroom;
use sluiced_core::policy::{ADAPTED, LimitPolicy, Origin, ends, is_same};
use sluiced_core::rate::Span;
use sluiced_core::time::StoreTime;
use sluiced_ports::store::Inspection;
use sluiced_settings::policy;
use sluiced_settings::text::HeadroomText;
use sluiced_status::LimitStatus;

/// This many replicas with another file are named.
const NAMED: usize = 5;
/// Columns of the labels of `show`.
pub(super) const LABELS: usize = 12;

/// The arguments of `sluiced limits list`.
#[derive(Args, Clone, Debug)]
pub struct ListLimitsArgs {
    #[command(flatten)]
    location: LimitsLocation,
}

/// The arguments of `sluiced limits show`.
#[derive(Args, Clone, Debug)]
pub struct ShowLimitArgs {
    /// The limit
    #[arg(add = shell::limits())]
    name: String,
    /// The key: the text that its template makes of a message
    key: Option<String>,
    /// With a key of a `once` limit that several queues use: the queue of the message
    #[arg(long, value_name = "NAME", requires = "key")]
    queue: Option<String>,
    #[command(flatten)]
    location: LimitsLocation,
}

/// A limit as this file has it, and as the store has it.
struct ListedLimit {
    name: String,
    file: String,
    stored: StoredLimit,
}

pub(super) async fn list(
    args: &ListLimitsArgs,
    out: &mut (impl Write + Send),
) -> Result<(), Refusal> {
    let opened = args.location.open().await?;
    let loaded =
        opened.require_configuration("list needs --config: the names of the limits stand there")?;
    let mut limits = Vec::new();
    for name in loaded.settings.limits.keys() {
        limits.push(ListedLimit {
            name: name.clone(),
            file: opened.file(name),
            stored: stored(&opened, name).await?,
        });
    }
    if args.location.json {
        let all = limits.iter().map(ListedLimit::status).collect::<Vec<_>>();
        writeln!(out, "{:#}", json!(all))?;
        return Ok(());
    }
    let head = ["LIMIT", "KIND", "IN FORCE", "VERSION", "SINCE", "STATE"];
    table(head, &[], limits.iter().map(ListedLimit::row), out)?;
    writeln!(out)?;
    for text in limits.iter().flat_map(ListedLimit::remarks) {
        writeln!(out, "{text}")?;
    }
    Ok(())
}

pub(super) async fn show(
    args: &ShowLimitArgs,
    out: &mut (impl Write + Send),
) -> Result<(), Refusal> {
    let opened = args.location.open().await?;
    let limit = ListedLimit {
        name: args.name.clone(),
        file: opened.file(&args.name),
        stored: stored(&opened, &args.name).await?,
    };
    let key_state = key::look_up(
        &opened,
        &args.name,
        args.queue.as_deref(),
        args.key.as_deref(),
        &limit.stored.found,
    )
    .await?;
    if args.location.json {
        let mut all = json!(limit.status());
        if let Some(key_state) = &key_state {
            all["units"] = key_state.as_json();
        }
        writeln!(out, "{all:#}")?;
        return Ok(());
    }
    limit.write(out)?;
    if let Some(key_state) = &key_state {
        key_state.write(out)?;
    }
    Ok(())
}

/// A limit as the store has it.
async fn stored(opened: &OpenLimits, name: &str) -> Result<StoredLimit, Refusal> {
    let found = opened.policy(name).await?.inspect().await?;
    let lost = key::closed_by_loss(opened, name, &found).await?;
    Ok(StoredLimit { found, lost })
}

impl ListedLimit {
    fn status(&self) -> LimitStatus {
        self.stored.status(&self.name, &self.file)
    }

    fn row(&self) -> [String; 6] {
        let (name, now) = (self.name.clone(), self.stored.found.now);
        let Some(policy) = &self.stored.found.policy else {
            let none = || "-".to_owned();
            let (kind, value) = (kind(&self.file), main_value(&self.file));
            let state = "not running yet".to_owned();
            return [name, kind, value, none(), none(), state];
        };
        let mut in_force = main_value(&policy.text);
        if let Some(time_left) = left(&policy.text, now) {
            in_force = format!("{in_force} {time_left}");
        }
        [
            name,
            kind(&policy.text),
            in_force,
            format!("{} {}", policy.updates, policy.origin.name()),
            ago(policy.changed.since(), now),
            self.stored.state().word().to_owned(),
        ]
    }

    /// The replicas of the limit, and those whose file differs.
    fn remarks(&self) -> Vec<String> {
        let (name, found) = (&self.name, &self.stored.found);
        let Some(policy) = &found.policy else {
            return Vec::new();
        };
        let differing = differing(found);
        let count = found.replicas.len();
        let replicas = plural(count as u64, "replica");
        let mut all = vec![match differing.len() {
            0 => format!("{name}: {count} {replicas}"),
            some => format!("{name}: {count} {replicas}, {some} with another file:"),
        }];
        // A fleet with an old file would fill the screen with the same line.
        for (replica, file) in differing.iter().take(NAMED) {
            all.push(format!("  {replica}  {}", short_policy(file)));
        }
        if differing.len() > NAMED {
            let unnamed = differing.len() - NAMED;
            all.push(format!("  and {unnamed} more; see `limits show {name}`"));
        }
        if differ(&policy.text, &self.file) {
            all.push(format!("  this file says {}", short_policy(&self.file)));
            all.push(format!("  in force is    {}", short_policy(&policy.text)));
            if differ(&self.file, &policy.file) {
                all.push(format!(
                    "  it counts once more than half of the replicas have it, or with `sluiced limits adopt {name}`"
                ));
            }
        }
        all
    }

    fn write(&self, out: &mut impl Write) -> Result<(), Refusal> {
        let (name, file) = (&self.name, &self.file);
        let Some(policy) = &self.stored.found.policy else {
            writeln!(out, "{name}: no replica has used it yet")?;
            if !file.is_empty() {
                facts(LABELS, &[("this file", short_policy(file))], out)?;
            }
            return Ok(());
        };
        writeln!(out, "{name} ({})", kind(&policy.text))?;
        facts(LABELS, &self.values(policy), out)?;
        facts(LABELS, &self.files(policy), out)?;
        Ok(())
    }

    /// The limit under the current policy.
    fn values(&self, policy: &LimitPolicy) -> Vec<(&'static str, String)> {
        let now = self.stored.found.now;
        let mut all = vec![("in force", short_policy(&policy.text))];
        if let Some(rate) = adapted(&policy.text) {
            let why = "as the downstream allows (adaptive)";
            all.push(("lowered to", format!("{rate}, {why}")));
        }
        if let Some(parts) = auto_parts(&policy.text) {
            let (whole, late, way) = (Span(parts.all()), Span(parts.late), Span(parts.way));
            let text = format!(
                "{whole}: {late} for calls that leave late, {way} for how much their way varies, as handshakes show it (not what is behind a proxy, a load balancer or a CDN)"
            );
            all.push(("headroom", text));
        }
        if let Some(time_left) = left(&policy.text, now) {
            all.push(("ends", format!("{time_left}; then the file counts again")));
        }
        let by = updated_by(policy, now);
        all.push(("version", format!("{}, {by}", policy.updates)));
        all.push(("state", state_in_words(&self.stored.state())));
        all
    }

    /// The values in the files of this command and of the replicas.
    fn files(&self, policy: &LimitPolicy) -> Vec<(&'static str, String)> {
        let mut all = Vec::new();
        if !self.file.is_empty() {
            let same = !differ(&self.file, &policy.text);
            let text = if same {
                "the same".to_owned()
            } else {
                short_policy(&self.file)
            };
            all.push(("this file", text));
        }
        if differ(&policy.file, &policy.text) {
            all.push(("last file", short_policy(&policy.file)));
        }
        let differing = differing(&self.stored.found);
        let agree = self.stored.found.replicas.len() - differing.len();
        let others = match differing.len() {
            0 => String::new(),
            others => format!(", and {others} with another file:"),
        };
        all.push((
            "replicas",
            format!("{agree} with this in their file{others}"),
        ));
        let each = differing.into_iter();
        all.extend(each.map(|(replica, file)| ("", format!("{replica}  {}", short_policy(file)))));
        all
    }
}

/// `2m3s ago`.
fn ago(then: StoreTime, now: StoreTime) -> String {
    let length = now.since(then);
    if length < Duration::from_secs(1) {
        "just now".to_owned()
    } else {
        format!("{} ago", rough(length))
    }
}

/// The settings of a policy, without the kind, which is shown elsewhere.
pub(super) fn short_policy(line: &str) -> String {
    let Ok(words) = policy::keys_of(line) else {
        return line.to_owned();
    };
    policy::line(words.into_iter().filter(|(name, _)| *name != "kind"))
}

/// Whether two policies differ, apart from changes by replicas.
fn differ(one: &str, other: &str) -> bool {
    !is_same(one, other)
}

/// The value of a name in a policy.
fn value<'a>(line: &'a str, name: &str) -> Option<&'a str> {
    let words = policy::words(line).ok()?;
    words.iter().find(|(key, _)| *key == name).map(|w| w.1)
}

/// The parts of a headroom that follows what is measured.
fn auto_parts(line: &str) -> Option<Headroom> {
    match value(line, "headroom")?.parse() {
        Ok(HeadroomText::Auto(parts)) => parts,
        _ => None,
    }
}

/// The rate that `adaptive` set.
fn adapted(line: &str) -> Option<&str> {
    value(line, ADAPTED)
}

/// How long the policy still lasts, if it ends by itself.
fn left(line: &str, now: StoreTime) -> Option<String> {
    let end = ends(line).1?;
    Some(format!("for another {}", rough(end.since(now))))
}

/// The most important value: the rate, or what the kind has instead.
fn main_value(line: &str) -> String {
    let value = |name| value(line, name);
    if let Some(ttl) = value("ttl") {
        return format!("once in {ttl}");
    }
    match (value("rate"), value("capacity"), value("limit")) {
        (Some(rate), ..) => match adapted(line) {
            Some(lowered) => format!("{lowered} (adaptive, of {rate})"),
            None => rate.to_owned(),
        },
        (_, Some(capacity), _) => format!(
            "{capacity} +{}/{}",
            value("refill").unwrap_or("?"),
            value("interval").unwrap_or("?")
        ),
        (.., Some(limit)) => format!("{limit} at once"),
        _ => "?".to_owned(),
    }
}

/// The replica or the operator that updated it, and when.
fn updated_by(policy: &LimitPolicy, now: StoreTime) -> String {
    let how = match policy.origin {
        Origin::File => "file of",
        Origin::Live => "set by",
    };
    format!("{how} {}, {}", policy.by, ago(policy.changed.since(), now))
}

/// The replicas whose file differs from the current policy.
fn differing(found: &Inspection) -> Vec<(&str, &str)> {
    let policy = found.policy.as_ref();
    let replicas = found.replicas.iter();
    replicas
        .filter(|present| policy.is_some_and(|policy| differ(&policy.text, &present.file)))
        .map(|present| (present.replica.as_str(), present.file.as_str()))
        .collect()
}
