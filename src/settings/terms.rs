//! The terms of a limit: what of it may change while the fleet runs, as one line of text.
//!
//! `kind=paced rate=400/1s headroom=5ms horizon=120ms`: words as in the configuration, defaults
//! written out, in one order, so that two files that mean the same say the same. Replicas compare these
//! lines and the store keeps them. What is not named has its default: a headroom that follows the window, say.
//! What is counted (`key`, `cost`) is no term: it is part of how messages are read and needs a restart.

use std::fmt;
use std::str::FromStr;

use super::text::{Length, Quota};
use super::types::{Counted, Limit, Start};
use crate::core::rate::{Span, parse_duration};
use crate::core::zone::Zone;

/// Terms that cannot be those of this limit. The message says why.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TermsError {
    /// A word is not `name=value`.
    #[error("`{0}` is not written as name=value")]
    Word(String),
    /// They are those of a limit of another kind.
    #[error("they are those of a {0} limit, and in this file it is {1}")]
    Kind(String, &'static str),
    /// Nothing of this kind is called so.
    #[error("`{0}` cannot be changed while the fleet runs")]
    Name(String),
    /// A value that cannot be read.
    #[error("{name} = `{value}`: {why}")]
    Value {
        name: String,
        value: String,
        why: String,
    },
}

impl Limit {
    /// Its terms, by name, in the order in which they are written.
    #[must_use]
    pub fn terms(&self) -> Vec<(&'static str, String)> {
        let mut terms = vec![("kind", self.kind().to_owned())];
        let length = |length: Length| Span(length.get()).to_string();
        match self {
            Self::Paced(limit) => terms.extend([
                ("rate", limit.rate.0.to_string()),
                ("headroom", length(limit.headroom)),
                ("horizon", length(limit.horizon)),
            ]),
            Self::Gcra(Counted { own: limit, .. }) => terms.extend([
                ("rate", limit.rate.0.to_string()),
                ("burst", limit.burst.to_string()),
            ]),
            Self::TokenBucket(Counted { own: limit, .. }) => {
                terms.extend([
                    ("capacity", limit.capacity.to_string()),
                    ("refill", limit.refill.to_string()),
                    ("interval", length(limit.interval)),
                    ("borrow", limit.borrow.to_string()),
                ]);
                terms.extend((!limit.continuous).then(|| ("continuous", "false".to_owned())));
                let empty = limit.start == Start::Empty;
                terms.extend(empty.then(|| ("start", "empty".to_owned())));
            }
            Self::FixedWindow(Counted { own: limit, .. }) => {
                terms.push(("rate", limit.rate.to_string()));
                terms.extend(limit.aligned.then(|| ("aligned", "true".to_owned())));
                let zone = limit.timezone.as_ref();
                terms.extend(zone.map(|zone| ("timezone", zone.name().to_owned())));
            }
            Self::SlidingLog(Counted { own: limit, .. }) => {
                terms.push(("rate", limit.rate.0.to_string()))
            }
            Self::Concurrency(Counted { own: limit, .. }) => terms.extend([
                ("limit", limit.limit.to_string()),
                ("lease", length(limit.lease)),
            ]),
        }
        let headroom = self.counting().and_then(|counting| counting.headroom);
        terms.extend(headroom.map(|headroom| ("headroom", length(headroom))));
        terms
    }

    /// What can change of it.
    #[must_use]
    pub const fn term_names(&self) -> &'static [&'static str] {
        match self {
            Self::Paced(_) => &["rate", "headroom", "horizon"],
            Self::Gcra(_) => &["rate", "burst", "headroom"],
            Self::TokenBucket(_) => &[
                "capacity",
                "refill",
                "interval",
                "borrow",
                "continuous",
                "start",
                "headroom",
            ],
            Self::FixedWindow(_) => &["rate", "aligned", "timezone", "headroom"],
            Self::SlidingLog(_) => &["rate", "headroom"],
            Self::Concurrency(_) => &["limit", "lease", "headroom"],
        }
    }

    /// Forgets what a line of terms names only if it is not the default.
    fn reset(&mut self) {
        if let Some(counting) = self.counting_mut() {
            counting.headroom = None;
        }
        match self {
            Self::TokenBucket(Counted { own: limit, .. }) => {
                (limit.continuous, limit.start) = (true, Start::Full);
            }
            Self::FixedWindow(Counted { own: limit, .. }) => {
                (limit.aligned, limit.timezone) = (false, None)
            }
            _ => {}
        }
    }

    /// Its terms on one line.
    #[must_use]
    pub fn terms_line(&self) -> String {
        line(self.terms().iter().map(|(name, value)| (*name, value)))
    }

    /// The same limit under other terms.
    ///
    /// # Errors
    /// When they are not terms of such a limit.
    pub fn under(&self, terms: &str) -> Result<Self, TermsError> {
        let mut limit = self.clone();
        limit.reset();
        for (name, value) in words(terms)? {
            limit.amend(name, value)?;
        }
        Ok(limit)
    }

    fn amend(&mut self, name: &str, value: &str) -> Result<(), TermsError> {
        if name == "kind" {
            let kind = self.kind();
            let same = value == kind;
            return same
                .then_some(())
                .ok_or_else(|| TermsError::Kind(value.to_owned(), kind));
        }
        let length = |text: &str| parse_duration(text).map(Length);
        let quota = |text: &str| text.parse().map(Quota);
        if name == "headroom"
            && let Some(counting) = self.counting_mut()
        {
            let headroom = length(value).map(Some);
            return put(&mut counting.headroom, headroom).map_err(|why| wrong(name, value, why));
        }
        let done = match (self, name) {
            (Self::Paced(limit), "rate") => put(&mut limit.rate, quota(value)),
            (Self::Paced(limit), "headroom") => put(&mut limit.headroom, length(value)),
            (Self::Paced(limit), "horizon") => put(&mut limit.horizon, length(value)),
            (Self::Gcra(limit), "rate") => put(&mut limit.own.rate, quota(value)),
            (Self::Gcra(limit), "burst") => put(&mut limit.own.burst, read(value)),
            (Self::TokenBucket(limit), "capacity") => put(&mut limit.own.capacity, read(value)),
            (Self::TokenBucket(limit), "refill") => put(&mut limit.own.refill, read(value)),
            (Self::TokenBucket(limit), "interval") => put(&mut limit.own.interval, length(value)),
            (Self::TokenBucket(limit), "borrow") => put(&mut limit.own.borrow, read(value)),
            (Self::TokenBucket(limit), "continuous") => put(&mut limit.own.continuous, read(value)),
            (Self::TokenBucket(limit), "start") => put(&mut limit.own.start, start(value)),
            (Self::FixedWindow(limit), "aligned") => put(&mut limit.own.aligned, read(value)),
            (Self::FixedWindow(limit), "timezone") => {
                put(&mut limit.own.timezone, Zone::named(value).map(Some))
            }
            (Self::FixedWindow(limit), "rate") => put(&mut limit.own.rate, value.parse()),
            (Self::SlidingLog(limit), "rate") => put(&mut limit.own.rate, quota(value)),
            (Self::Concurrency(limit), "limit") => put(&mut limit.own.limit, read(value)),
            (Self::Concurrency(limit), "lease") => put(&mut limit.own.lease, length(value)),
            _ => return Err(TermsError::Name(name.to_owned())),
        };
        done.map_err(|why| wrong(name, value, why))
    }
}

/// Whether the limit has a term of this name (its kind is fixed).
#[must_use]
pub fn is_term(limit: &Limit, name: &str) -> bool {
    limit.term_names().contains(&name)
}

/// The names and values of a line of terms.
///
/// # Errors
/// When a word is not `name=value`.
pub fn words(terms: &str) -> Result<Vec<(&str, &str)>, TermsError> {
    let word = |word: &'_ str| TermsError::Word(word.to_owned());
    terms
        .split_ascii_whitespace()
        .map(|text| text.split_once('=').ok_or_else(|| word(text)))
        .collect()
}

/// A line of terms.
pub fn line<'a>(terms: impl Iterator<Item = (&'a str, impl fmt::Display)>) -> String {
    let words: Vec<_> = terms
        .map(|(name, value)| format!("{name}={value}"))
        .collect();
    words.join(" ")
}

fn start(text: &str) -> Result<Start, &'static str> {
    match text {
        "full" => Ok(Start::Full),
        "empty" => Ok(Start::Empty),
        _ => Err("a bucket starts `full` or `empty`"),
    }
}

fn wrong(name: &str, value: &str, why: String) -> TermsError {
    TermsError::Value {
        name: name.to_owned(),
        value: value.to_owned(),
        why,
    }
}

fn put<T, E: fmt::Display>(place: &mut T, value: Result<T, E>) -> Result<(), String> {
    *place = value.map_err(|why| why.to_string())?;
    Ok(())
}

fn read<T: FromStr<Err: fmt::Display>>(text: &str) -> Result<T, T::Err> {
    text.parse()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paced() -> Limit {
        toml::from_str("kind = \"paced\"\nrate = \"400/1s\"").unwrap()
    }

    #[test]
    fn defaults_are_written_out() {
        assert_eq!(
            paced().terms_line(),
            "kind=paced rate=400/1s headroom=5ms horizon=120ms"
        );
    }

    #[test]
    fn every_kind_comes_back_from_its_own_terms() {
        for text in [
            "kind = \"paced\"\nrate = \"400/1s\"\nheadroom = \"7ms\"",
            "kind = \"gcra\"\nrate = \"5/1h\"\nburst = 3",
            "kind = \"token_bucket\"\ncapacity = 9\nrefill = 2\ninterval = \"90s\"\nborrow = 4",
            "kind = \"fixed_window\"\nrate = \"1000/month\"",
            "kind = \"fixed_window\"\nrate = \"10/1d\"",
            "kind = \"fixed_window\"\nrate = \"10/1d\"\naligned = true\nheadroom = \"1s\"",
            "kind = \"fixed_window\"\nrate = \"10/day\"\ntimezone = \"Europe/Berlin\"",
            "kind = \"token_bucket\"\ncapacity = 9\nrefill = 2\ninterval = \"90s\"\ncontinuous = false\nstart = \"empty\"",
            "kind = \"sliding_log\"\nrate = \"5/1h30m\"",
            "kind = \"concurrency\"\nlimit = 7\nlease = \"45s\"",
        ] {
            let limit: Limit = toml::from_str(text).unwrap();
            let line = limit.terms_line();
            assert_eq!(limit.under(&line).unwrap().terms_line(), line);
        }
    }

    #[test]
    fn what_terms_do_not_name_is_the_default_and_not_what_the_file_says() {
        let text = "kind = \"gcra\"\nrate = \"5/1h\"\nheadroom = \"2s\"";
        let limit: Limit = toml::from_str(text).unwrap();
        let other = limit.under("kind=gcra rate=1/1s burst=0").unwrap();
        assert_eq!(other.headroom(), std::time::Duration::from_millis(10));
    }

    #[test]
    fn other_terms_are_read_and_wrong_ones_told() {
        let limit = paced().under("kind=paced rate=300/1s").unwrap();
        assert_eq!(
            limit.terms_line(),
            "kind=paced rate=300/1s headroom=5ms horizon=120ms"
        );
        let wrong = |terms| paced().under(terms).unwrap_err().to_string();
        assert!(wrong("kind=gcra rate=1/1s").contains("gcra"));
        assert!(wrong("key=a").contains("`key` cannot be changed"));
        assert!(wrong("rate").contains("name=value"));
        assert!(wrong("rate=fast").contains("rate = `fast`"));
    }
}
