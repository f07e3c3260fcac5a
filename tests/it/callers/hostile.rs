//! Clients that are silent, slow, broken or many: others are served.
