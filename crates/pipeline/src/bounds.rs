//! The bounds of a message: its size, and what it costs at most. `decode` checks them for each delivery, and `sluiced
//! try` for a message that it is given, so both say the same.

use sluiced_core::rate::Cost;
use sluiced_ports::downstream::UnfitReason;
use sluiced_ports::message::Message;

/// Whether a route takes a message of this size; `most`: its `max_body`, in bytes.
///
/// # Errors
/// When the body is larger.
pub fn check_size(message: &Message, most: u64) -> Result<(), UnfitReason> {
    let bytes = message.body.len() as u64;
    if bytes <= most {
        return Ok(());
    }
    Err(UnfitReason {
        what: "body".to_owned(),
        why: format!("{bytes} bytes; max_body is {most}"),
    })
}

/// Whether a limit can ever let a message pass; `most`: the largest cost that fits, in units of the limit.
///
/// # Errors
/// When it costs more.
pub fn check_cost(limit: &str, cost: Cost, most: u64) -> Result<(), UnfitReason> {
    if cost.units() <= most {
        return Ok(());
    }
    Err(too_costly(limit, most))
}

/// The reason for a message that costs more.
pub(crate) fn too_costly(limit: &str, most: u64) -> UnfitReason {
    UnfitReason {
        what: format!("limits.{limit}"),
        why: format!("it costs more than the {most} that can ever fit"),
    }
}
