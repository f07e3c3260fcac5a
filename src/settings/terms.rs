//! The terms of a limit: what of it may change while the fleet runs, as one line of text.
//!
//! `kind=paced rate=400/1s headroom=5ms horizon=120ms`: words as in the configuration, defaults
//! written out, in one order, so that two files that mean the same say the same. Replicas compare these
//! lines and the store keeps them. What is counted (`key`, `cost`, calendars) is no term: it is part of how
//! messages are read and needs a restart.

use std::fmt;
use std::str::FromStr;

use super::text::{Length, Quota};
use super::types::Limit;
use crate::core::rate::{Span, parse_duration};

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
            Self::Gcra(limit) => terms.extend([
                ("rate", limit.rate.0.to_string()),
                ("burst", limit.burst.to_string()),
            ]),
            Self::TokenBucket(limit) => terms.extend([
                ("capacity", limit.capacity.to_string()),
                ("refill", limit.refill.to_string()),
                ("interval", length(limit.interval)),
                ("borrow", limit.borrow.to_string()),
            ]),
            Self::FixedWindow(limit) => terms.push(("rate", limit.rate.to_string())),
            Self::SlidingLog(limit) => terms.push(("rate", limit.rate.0.to_string())),
            Self::Concurrency(limit) => terms.extend([
                ("limit", limit.limit.to_string()),
                ("lease", length(limit.lease)),
            ]),
        }
        terms
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
        let done = match (self, name) {
            (Self::Paced(limit), "rate") => put(&mut limit.rate, quota(value)),
            (Self::Paced(limit), "headroom") => put(&mut limit.headroom, length(value)),
            (Self::Paced(limit), "horizon") => put(&mut limit.horizon, length(value)),
            (Self::Gcra(limit), "rate") => put(&mut limit.rate, quota(value)),
            (Self::Gcra(limit), "burst") => put(&mut limit.burst, read(value)),
            (Self::TokenBucket(limit), "capacity") => put(&mut limit.capacity, read(value)),
            (Self::TokenBucket(limit), "refill") => put(&mut limit.refill, read(value)),
            (Self::TokenBucket(limit), "interval") => put(&mut limit.interval, length(value)),
            (Self::TokenBucket(limit), "borrow") => put(&mut limit.borrow, read(value)),
            (Self::FixedWindow(limit), "rate") => put(&mut limit.rate, value.parse()),
            (Self::SlidingLog(limit), "rate") => put(&mut limit.rate, quota(value)),
            (Self::Concurrency(limit), "limit") => put(&mut limit.limit, read(value)),
            (Self::Concurrency(limit), "lease") => put(&mut limit.lease, length(value)),
            _ => return Err(TermsError::Name(name.to_owned())),
        };
        done.map_err(|why| TermsError::Value {
            name: name.to_owned(),
            value: value.to_owned(),
            why,
        })
    }
}

/// Whether the limit has a term of this name (its kind is fixed).
#[must_use]
pub fn is_term(limit: &Limit, name: &str) -> bool {
    name != "kind" && limit.terms().iter().any(|(known, _)| *known == name)
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
            "kind = \"sliding_log\"\nrate = \"5/1h30m\"",
            "kind = \"concurrency\"\nlimit = 7\nlease = \"45s\"",
        ] {
            let limit: Limit = toml::from_str(text).unwrap();
            let line = limit.terms_line();
            assert_eq!(limit.under(&line).unwrap().terms_line(), line);
        }
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
