//! Pure control-plane decisions: validate, build, decide, status.
