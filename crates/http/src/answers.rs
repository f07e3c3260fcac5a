//! What comes back from a downstream, and what it means.
//!
//! - `reader`: from an answer to a judgement, with as much of it as is read (`body`), without what compresses it
//!   (`encoding`);
//! - `judge`: what an answer means, `table`: that for an operator;
//! - `redirect`: where a redirect leads;
//! - `failure`: why a call has no answer, and whether the downstream may have it.

mod body;
mod encoding;
pub(super) mod failure;
mod judge;
pub(super) mod reader;
mod redirect;
pub(super) mod table;
