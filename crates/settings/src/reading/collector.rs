//! Collects the faults of a configuration, each with its key and its place.

use std::collections::BTreeSet;
use std::mem;

use super::layers::Layers;
use crate::fault::{Fault, Faults, Place, Severity};
use crate::path::KeyPath;
use crate::types::ROOT;

/// Collects faults, and remembers which keys are broken so that nothing is reported twice.
#[derive(Default)]
pub(crate) struct Collector {
    pub(crate) layers: Layers,
    faults: Vec<Fault>,
    broken: BTreeSet<KeyPath>,
}

impl Collector {
    /// Begins with the faults of reading.
    pub(crate) fn new(mut layers: Layers) -> Self {
        Self {
            faults: mem::take(&mut layers.faults),
            layers,
            broken: BTreeSet::new(),
        }
    }

    /// The configuration as a whole.
    pub(crate) fn whole(&mut self, message: String) {
        self.faults.push(Fault::whole(Place::Default, message));
    }

    /// What is at `to` was taken from `from`, with its place and its faults.
    pub(super) fn inherit(&mut self, from: &KeyPath, to: &KeyPath) {
        self.layers.inherit(from, to);
        let from_there = self.broken.range(from.clone()..);
        let within = from_there.take_while(|path| path.is_within(from));
        let inherited: Vec<_> = within.map(|path| path.moved(from, to)).collect();
        self.broken.extend(inherited);
    }

    /// A fault of a key or value; the key counts as broken from now on. Nothing more is said of a value that was
    /// taken from a broken one.
    pub(super) fn broken(&mut self, path: &KeyPath, message: String) {
        if !self.broken.insert(path.clone()) {
            return;
        }
        self.at(Severity::Error, path, path, true, message);
    }

    /// A key that should not be there; its value is not shown.
    pub(super) fn unknown(&mut self, path: &KeyPath, message: String) {
        self.broken.insert(path.clone());
        self.at(Severity::Error, path, path, false, message);
    }

    /// A key that is missing in `table`.
    pub(super) fn missing(&mut self, table: &KeyPath, path: &KeyPath, message: String) {
        self.broken.insert(path.clone());
        if !self.layers.damaged {
            self.at(Severity::Error, table, path, false, message);
        }
    }

    /// A fault that involves several keys, reported at the first; silent if one of them is
    /// broken already, because its value is then only a stand-in.
    pub(crate) fn cross(
        &mut self,
        severity: Severity,
        paths: &[KeyPath],
        show: bool,
        message: String,
    ) {
        let is_spoilt = |path: &KeyPath| {
            let mut broken = self.broken.iter();
            broken.any(|broken| path.is_within(broken) || broken.is_within(path))
        };
        let Some(path) = paths.first() else {
            return;
        };
        if self.layers.damaged || paths.iter().any(is_spoilt) {
            return;
        }
        // At the key, or at the innermost table of it that was written.
        let depths = (1..=path.steps().len()).rev();
        let mut outwards = depths.map(|depth| path.first(depth));
        let place = outwards.find(|path| self.layers.has(path));
        self.at(severity, &place.unwrap_or_default(), path, show, message);
    }

    /// A fault of the key `path`, at `place`. `show`: the value too, if it is there and the table of keys
    /// marks it as plain.
    fn at(
        &mut self,
        severity: Severity,
        place: &KeyPath,
        path: &KeyPath,
        show: bool,
        message: String,
    ) {
        let show = show && place == path && ROOT.is_plain_at(path);
        self.faults.push(Fault {
            severity,
            place: self.layers.place(place, show),
            key: path.to_string(),
            message,
            excerpt: self.layers.excerpt(place, show),
        });
    }

    /// All faults: errors and warnings.
    pub(crate) fn finish(self) -> Faults {
        Faults::new(self.faults)
    }
}
