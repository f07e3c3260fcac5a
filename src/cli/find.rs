//! `sluiced find MESSAGE_ID`: what is known of one message now: whether it is a dead letter, and what the limits know
//! of its keys. What happened to it before is in the journal of its route (`pipeline::ends::journal`).
//!
//! A key is made from the content of a message, which this command does not have. So keys are named with
//! `--key`, also without an id. A key that a limit makes from the message id alone is looked up without that: in the
//! limits of the message's route, if that is known, and otherwise in those of all routes.
//!
//! A limit remembers a message for a while. Where it knows nothing, it is not known whether the message never came, or
//! was forgotten: the answer says for how long the limit remembers, and the exit code is 1 if nothing is known at all.

use std::collections::BTreeSet;
use std::io::Write;
use std::path::PathBuf;

use clap::Args;
use serde_json::{Value, json};

use super::dead::{self, FoundLetters};
use super::exit::{Exit, Refusal, load_configuration, variables};
use super::limits::LimitsLocation;
use super::limits::key::{self, KeyState};
use super::shell;
use sluiced_ports::downstream::Facts;
use sluiced_ports::limits::message_key;
use sluiced_ports::message::{Message, Properties};
use sluiced_settings::Needs;
use sluiced_settings::types::{Limit, QueueBackend, Settings};
use sluiced_template::Templates;

/// The arguments of `sluiced find`.
#[derive(Args, Clone, Debug)]
pub struct FindArgs {
    /// The id of the message: its publisher's, or the one that sluiced made
    #[arg(value_name = "MESSAGE_ID", required_unless_present = "keys")]
    id: Option<String>,
    /// A configuration file, as for `sluiced run`; may repeat
    #[arg(long, env = "SLUICED_CONFIG", value_name = "FILE", required = true)]
    config: Vec<PathBuf>,
    /// Only the dead letters and limits of this route; without it those of all routes
    #[arg(long, value_name = "NAME", add = shell::routes())]
    route: Option<String>,
    /// What this limit knows of this key, such as recipient=+4915550123456; may repeat
    #[arg(long = "key", value_name = "LIMIT=TEXT", value_parser = pair)]
    keys: Vec<(String, String)>,
    /// Print JSON
    #[arg(long)]
    json: bool,
}

fn pair(text: &str) -> Result<(String, String), String> {
    let (name, value) = text.split_once('=').ok_or("write LIMIT=TEXT")?;
    Ok((name.to_owned(), value.to_owned()))
}

/// Nothing is known.
const UNKNOWN: &str = "\
nothing is known of it: it never came, or it waits in a queue or in a replica, or it ended before what the limits
above remember, or Redis lost their state since (the log says when). The journal of its route has what was logged.";

/// A key that is looked up.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
struct AskedKey {
    limit: String,
    /// Where the queue is part of the key.
    queue: Option<String>,
    text: String,
}

/// What a limit knows of a key.
struct FoundKey {
    limit: String,
    /// Where the queue is part of the key.
    queue: Option<String>,
    digest: String,
    state: KeyState,
}

/// Writes what is known of the message to `out`.
pub(super) async fn run(args: &FindArgs, out: &mut (impl Write + Send)) -> Result<Exit, Refusal> {
    // These questions need no secret of a downstream, and not always one of Redis.
    let needs = Needs::Section("rabbitmq");
    let settings = load_configuration(needs, &args.config, variables())?.settings;
    if let Some(route) = &args.route {
        super::trial::choose_route(&settings, Some(route))?;
    }
    let letters = match (&args.id, settings.backend.queue) {
        (Some(id), QueueBackend::Rabbitmq) => {
            Some(dead::find(&args.config, args.route.as_deref(), id).await?)
        }
        (None, _) | (_, QueueBackend::Embedded) => None,
    };
    let route_of_letters = letters.as_ref().and_then(FoundLetters::route);
    let route = args.route.as_deref().or(route_of_letters);
    let asked = args.id.as_ref().map(|id| own_keys(&settings, route, id));
    let keys = [asked.unwrap_or_default(), named_keys(&settings, args)?];
    let (found, unasked) = match look_up(args, keys).await {
        Ok(found) => (Some(found), None),
        // The letter is shown all the same.
        Err(why) if letters.as_ref().is_some_and(|found| !found.is_empty()) => (None, Some(why)),
        Err(why) => return Err(why),
    };
    let is_letter = letters.as_ref().is_some_and(|letters| !letters.is_empty());
    let is_known = |key: &FoundKey| key.state.is_known();
    let any_trace = is_letter || found.iter().flatten().flatten().any(is_known);
    // If some limits know the message, limits without a trace of it are those of other routes: they are left out.
    let is_of_route = |key: &FoundKey| key.state.is_known() || route.is_some() || !any_trace;
    let keys = found.map(|[own_keys, named]| {
        let own_of_route = own_keys.into_iter().filter(is_of_route);
        own_of_route.chain(named).collect()
    });
    let traces = MessageTraces {
        known: any_trace,
        letters,
        keys,
    };
    match args.json {
        true => writeln!(out, "{:#}", traces.as_json(args))?,
        false => traces.write(args, &settings, out)?,
    }
    if let Some(why) = unasked {
        return Err(why);
    }
    Ok(if any_trace { Exit::Done } else { Exit::Failed })
}

/// Where the message was found.
struct MessageTraces {
    /// Anything knows it.
    known: bool,
    /// `None`: there are no queues of dead letters, or no id was given.
    letters: Option<FoundLetters>,
    /// `None`: the limits could not be asked.
    keys: Option<Vec<FoundKey>>,
}

impl MessageTraces {
    fn as_json(&self, args: &FindArgs) -> Value {
        let letters = self.letters.as_ref();
        let keys = self.keys.as_deref();
        let keys: Option<Vec<_>> = keys.map(|keys| keys.iter().map(FoundKey::as_json).collect());
        json!({
            "message_id": args.id,
            "known": self.known,
            "dead_letters": letters.map_or(Value::Null, FoundLetters::as_json),
            "keys": keys,
        })
    }

    fn write(
        &self,
        args: &FindArgs,
        settings: &Settings,
        out: &mut impl Write,
    ) -> Result<(), Refusal> {
        match &self.letters {
            Some(letters) => letters.write(out)?,
            None if args.id.is_some() => writeln!(
                out,
                "what was not delivered is in `{}`",
                settings.embedded.leftover.display()
            )?,
            None => {}
        }
        let keys = self.keys.as_deref().unwrap_or_default();
        write_keys(keys, out)?;
        if keys.is_empty() && !self.known {
            writeln!(
                out,
                "no limit makes a key of the id alone; name keys with --key"
            )?;
        }
        if !self.known {
            writeln!(out, "\n{UNKNOWN}")?;
        }
        Ok(())
    }
}

fn write_keys(keys: &[FoundKey], out: &mut impl Write) -> Result<(), Refusal> {
    for key in keys {
        let FoundKey { limit, digest, .. } = key;
        let queue = key.queue.as_ref();
        let of_queue = queue.map_or_else(String::new, |queue| format!(" of the queue {queue}"));
        writeln!(
            out,
            "\nlimits.{limit}{of_queue} (in the journal: {limit}={digest})"
        )?;
        key.state.write(out)?;
    }
    Ok(())
}

/// The keys that limits make from the message id alone.
fn own_keys(settings: &Settings, route: Option<&str>, id: &str) -> Vec<AskedKey> {
    let message = Message {
        properties: Properties {
            message_id: Some(id.to_owned()),
            ..Properties::default()
        },
        ..Message::default()
    };
    let mut keys = BTreeSet::new();
    let routes = settings.routes.iter();
    for (name, of) in routes.filter(|(name, _)| route.is_none_or(|route| route == *name)) {
        let facts = Facts {
            route: name,
            attempt: 1,
            may_repeat: false,
            max_body: of.max_body.0,
        };
        for limit in &of.limits {
            let text = settings.limits.get(limit).and_then(|limit| limit.key());
            let made = text.and_then(|text| {
                let mut templates = Templates::of_limits();
                let template = templates.add(limit, text.as_str()).ok()?;
                let context = templates.context(&message, facts).ok()?;
                let key = templates.render(&template, &context).ok()?;
                templates.uses("message_id").then_some(key)
            });
            if let Some(text) = made {
                let apart = is_of_queue(settings, limit);
                keys.insert(AskedKey {
                    limit: limit.clone(),
                    queue: apart.then(|| of.queue.clone()),
                    text,
                });
            }
        }
    }
    keys.into_iter().collect()
}

fn is_of_queue(settings: &Settings, limit: &str) -> bool {
    settings.limits.get(limit).is_some_and(Limit::is_of_queue)
}

/// The keys that were named, in each queue of the route that was named or of all routes.
fn named_keys(settings: &Settings, args: &FindArgs) -> Result<Vec<AskedKey>, Refusal> {
    let route = args.route.as_ref();
    let only = route.and_then(|name| Some((name, &settings.routes.get(name)?.queue)));
    let mut keys = Vec::new();
    for (limit, text) in &args.keys {
        let of = |queue: Option<&str>| AskedKey {
            limit: limit.clone(),
            queue: queue.map(str::to_owned),
            text: text.clone(),
        };
        if !is_of_queue(settings, limit) {
            keys.push(of(None));
            continue;
        }
        let queues = settings.queues_of(limit);
        if queues.is_empty() {
            let why = format!("no route uses limits.{limit}: it counts no message");
            return Err(Refusal::Arguments(why));
        }
        match only {
            None => keys.extend(queues.into_iter().map(|queue| of(Some(queue)))),
            Some((_, own)) if queues.contains(&own.as_str()) => keys.push(of(Some(own))),
            Some((route, _)) => {
                return Err(Refusal::Arguments(format!(
                    "limits.{limit} does not count messages of the queue of route {route}; name a route that uses it, or leave --route out"
                )));
            }
        }
    }
    Ok(keys)
}

/// Looks for keys of two kinds. The store is opened only if there are any.
async fn look_up(
    args: &FindArgs,
    kinds: [Vec<AskedKey>; 2],
) -> Result<[Vec<FoundKey>; 2], Refusal> {
    let mut all_found = [Vec::new(), Vec::new()];
    if kinds.iter().all(Vec::is_empty) {
        return Ok(all_found);
    }
    let opened = LimitsLocation::of(args.config.clone()).open().await?;
    for (keys, found) in kinds.into_iter().zip(&mut all_found) {
        for AskedKey { limit, queue, text } in keys {
            let policy = opened.policy(&limit).await?.inspect().await?;
            let state =
                key::look_up(&opened, &limit, queue.as_deref(), Some(&*text), &policy).await?;
            if let Some(state) = state {
                found.push(FoundKey {
                    digest: message_key(queue.as_deref(), Some(&text)).short(),
                    limit,
                    queue,
                    state,
                });
            }
        }
    }
    Ok(all_found)
}

impl FoundKey {
    fn as_json(&self) -> Value {
        json!({
            "limit": self.limit,
            "queue": self.queue,
            "digest": self.digest,
            "units": self.state.as_json(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use sluiced_settings::{Extra, Needs, load_with};

    #[test]
    fn a_key_that_is_made_of_the_id_alone_need_not_be_named() {
        let text = r#"
            limits.id = { kind = "sliding_log", rate = "1/1h", key = "{{ route }}:{{ message_id }}" }
            limits.to = { kind = "sliding_log", rate = "1/1h", key = "{{ body.to }} {{ message_id }}" }
            limits.one = { kind = "sliding_log", rate = "1/1h", key = "one" }
            routes.sms = { queue = "sms", limits = ["id", "to", "one"], downstream = { kind = "http", url = "http://h/" } }
            routes.mail = { queue = "mail", limits = ["id"], downstream = { kind = "http", url = "http://h/" } }
        "#;
        let (name, text) = ("test".to_owned(), text.to_owned());
        let loaded = load_with(
            Needs::All,
            &[],
            Some(Extra { name, text }),
            std::iter::empty(),
        );
        let settings = loaded
            .map_err(|faults| faults.to_string())
            .expect("it loads")
            .settings;
        let key = |text: &str| AskedKey {
            limit: "id".to_owned(),
            queue: None,
            text: text.to_owned(),
        };
        assert_eq!(
            own_keys(&settings, None, "m"),
            [key("mail:m"), key("sms:m")]
        );
        assert_eq!(own_keys(&settings, Some("sms"), "m"), [key("sms:m")]);
    }
}
