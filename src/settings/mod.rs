//! Configuration: plain data in `types`, loading with origins, checks across keys.

pub mod text;
pub mod types;
