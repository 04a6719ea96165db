//! See `pagoda_hostile::request`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    pagoda_hostile::request(bytes);
});
