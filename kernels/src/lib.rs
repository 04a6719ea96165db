//! CPU kernels for quantised inference.
