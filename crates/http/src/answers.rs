//! What comes back from a downstream, and what it means.
//!
//! - `reader`: from an answer to a judgement, with as much of it as is read (`body`), without what compresses it
//!   (`encoding`);
//! - `judge`: what an answer means, `table`: that for an operator;
//! - `redirect`: where a redirect leads.

mod body;
mod encoding;
mod judge;
pub(super) mod reader;
mod redirect;
pub(super) mod table;
