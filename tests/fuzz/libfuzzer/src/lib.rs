//! Nothing: what its dependency compiles is what counts.
