//! See `pagoda_hostile::gguf`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    pagoda_hostile::gguf(bytes);
});
