//! The plots of a plan, for a terminal of 80 columns and as a picture for light and dark pages: messages that
//! wait, and messages that come and are called, over the same time.
//!
//! Not `plotters` (four more crates): it writes colours into each element, in whole pixels, so a picture cannot follow
//! a dark page or be read aloud. Not `poloto` (two): it has neither two panels over one axis nor an axis of a clock.

mod axes;
pub(super) mod picture;
pub(super) mod terminal;
