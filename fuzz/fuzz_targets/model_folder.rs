//! See `pagoda_hostile::model_folder`.
#![no_main]

libfuzzer_sys::fuzz_target!(|bytes: &[u8]| {
    pagoda_hostile::model_folder(bytes);
});
