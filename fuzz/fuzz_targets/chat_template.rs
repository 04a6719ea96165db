//! See `pagoda_hostile::chat_template`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    pagoda_hostile::chat_template(bytes);
});
