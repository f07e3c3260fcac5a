//! What an error of a library was caused by.

use std::error::Error;
use std::io;

/// The innermost error of a kind.
pub fn find<'a, T: Error + 'static>(error: &'a (dyn Error + 'static)) -> Option<&'a T> {
    causes(error)
        .filter_map(|cause| cause.downcast_ref())
        .last()
}

/// An error and what caused it. An `io::Error` that wraps another skips that in `source`.
pub(crate) fn causes<'a>(
    error: &'a (dyn Error + 'static),
) -> impl Iterator<Item = &'a (dyn Error + 'static)> {
    std::iter::successors(Some(error), |&cause| {
        match cause.downcast_ref::<io::Error>().map(io::Error::get_ref) {
            Some(Some(inner)) => Some(inner as &(dyn Error + 'static)),
            _ => cause.source(),
        }
    })
}
