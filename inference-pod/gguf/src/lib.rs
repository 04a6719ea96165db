//! GGUF container parser.
