//! The fuzz targets' entry points on inputs that are the same everywhere, few enough for every run of the tests.

use pagoda_gguf::GgufBuilder;
use pagoda_hostile::{
    Mutator, chat_template, folder_inputs, folder_seeds, gguf, gguf_inputs, gguf_seeds,
    model_folder, request, request_inputs, request_seeds, template_inputs, template_seeds,
};

const SEED: u64 = 20_261_130;

/// Shows the input that failed, which a fuzz target takes as a file.
fn run(entry: fn(&[u8]) -> bool, input: &[u8]) -> bool {
    let shown = input.escape_ascii().to_string();
    let result = std::panic::catch_unwind(|| entry(input));
    result.unwrap_or_else(|_| panic!("with the input b\"{shown}\""))
}

/// Seeds are accepted, whatever their beginnings are; of the changed ones some are, or nothing but the front door was tried.
fn run_all(entry: fn(&[u8]) -> bool, seeds: &[Vec<u8>], mut inputs: Mutator, count: usize) {
    for seed in seeds {
        assert!(
            run(entry, seed),
            "a seed is refused: {}",
            seed.escape_ascii()
        );
        for end in (0..seed.len()).step_by(seed.len() / 40 + 1) {
            run(entry, &seed[..end]);
        }
    }
    let accepted = (0..count)
        .filter(|_| run(entry, &inputs.next_input()))
        .count();
    assert!(
        accepted > count / 50 && accepted < count,
        "{accepted} of {count} were accepted"
    );
}

#[test]
fn model_files_are_accepted_whole_or_refused() {
    run_all(gguf, &gguf_seeds(), gguf_inputs(SEED), 3_000);
}

// Few: what loops runs until its budget is spent, some tenths of a second in a debug build.
#[test]
fn chat_templates_render_or_say_why_not() {
    run_all(chat_template, &template_seeds(), template_inputs(SEED), 120);
}

#[test]
fn model_folders_are_accepted_whole_or_refused() {
    run_all(model_folder, &folder_seeds(), folder_inputs(SEED), 2_000);
}

#[test]
fn requests_are_answered_or_refused_and_harm_nobody() {
    run_all(request, &request_seeds(), request_inputs(SEED), 3_000);
}

#[test]
fn the_seed_of_a_model_file_is_one_that_would_be_loaded() {
    for seed in gguf_seeds() {
        let file = pagoda_gguf::Gguf::parse(&seed).unwrap();
        pagoda_text::Tokenizer::from_metadata(file.metadata()).unwrap();
        let path = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(path.path(), &seed).unwrap();
        pagoda_model::ModelFile::open(path.path()).unwrap();
    }
}

#[test]
fn metadata_that_hold_no_number_where_one_should_be_are_the_same_in_whatever_pieces() {
    let builder = GgufBuilder::new().value("general.odd", f32::NAN);
    assert!(run(gguf, &builder.build()));
}
