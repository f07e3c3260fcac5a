//! What is made of the table of keys and of settings for a reader: the settings in force (`show`), the commented
//! defaults (`reference`), the schema for editors (`json_schema`), and what limits and routes will do, in words
//! (`words`).

pub(crate) mod json_schema;
pub(crate) mod reference;
pub(crate) mod show;
mod words;
