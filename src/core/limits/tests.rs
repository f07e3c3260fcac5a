//! The kinds, one by one and all alike.
