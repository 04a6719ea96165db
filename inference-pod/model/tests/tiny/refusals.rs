//! What must not load, what must not run, and what is said about it.

use pagoda_gguf::{Gguf, GgufBuilder, TensorType, Value};
use pagoda_kernels::Format;
use pagoda_model::{
    CpuExecutor, CpuOptions, Executor, ExecutorError, KvBudget, LoadError, Logits, ModelFile,
    StepRow,
};

use crate::model::{Shape, Tiny, tensor_type, write};

fn model() -> Tiny {
    Tiny::new(Shape::odd(), 1, |_| Format::F32)
}

fn options() -> CpuOptions {
    CpuOptions {
        threads: 2,
        kv: KvBudget::Blocks(4),
        ..CpuOptions::default()
    }
}

fn refusal(bytes: &[u8]) -> LoadError {
    CpuExecutor::load(write(bytes).path(), &options(), |_, _| {})
        .map(|_| ())
        .unwrap_err()
}

#[track_caller]
fn assert_unsupported(bytes: &[u8], words: &[&str]) {
    let error = refusal(bytes);
    assert!(matches!(error, LoadError::UnsupportedModel(_)), "{error}");
    for word in words {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[track_caller]
fn assert_invalid(bytes: &[u8], words: &[&str]) {
    let error = refusal(bytes);
    assert!(
        !matches!(
            error,
            LoadError::UnsupportedModel(_) | LoadError::InvalidOptions(_)
        ),
        "{error}"
    );
    for word in words {
        assert!(error.to_string().contains(word), "{error}");
    }
}

#[test]
fn an_unknown_architecture_is_named() {
    let bytes = with_value(&model(), "general.architecture", "mamba\n");
    assert_unsupported(&bytes, &["mamba", "llama"]);
}

#[test]
fn an_unsupported_tensor_type_is_named_with_its_tensor() {
    let tiny = Tiny::new(Shape::wide(), 1, |_| Format::Q4_0);
    let bytes = tiny.gguf_with(|name, _, bytes| {
        if name != "blk.1.ffn_up.weight" {
            return Some(tensor_type(tiny.format(name)));
        }
        bytes.resize(bytes.len() / 18 * 32, 0);
        Some(TensorType::Other(24))
    });
    assert_unsupported(&bytes, &["blk.1.ffn_up.weight", "I8", "Q4_K"]);
}

#[test]
fn a_tensor_that_would_be_left_out_of_the_arithmetic_is_refused() {
    let mut builder = builder_of(&model().gguf(), "");
    builder = builder.tensor_f32("blk.0.attn_q.bias", &[84], &[0.0; 84]);
    assert_unsupported(&builder.build(), &["blk.0.attn_q.bias"]);
}

#[test]
fn missing_and_misshapen_tensors_are_named() {
    let tiny = model();
    let kind = |name: &str| Some(tensor_type(tiny.format(name)));
    let missing = tiny.gguf_with(|name, _, _| {
        if name == "blk.2.attn_v.weight" {
            None
        } else {
            kind(name)
        }
    });
    assert_invalid(&missing, &["blk.2.attn_v.weight"]);
    let turned = tiny.gguf_with(|name, dims, _| {
        if name == "blk.0.ffn_down.weight" {
            dims.reverse();
        }
        kind(name)
    });
    assert_invalid(&turned, &["blk.0.ffn_down.weight", "[37, 51]", "[51, 37]"]);
}

#[test]
fn nan_in_a_weight_or_a_norm_is_refused_with_its_place() {
    let tiny = model();
    for name in ["blk.1.attn_k.weight", "output_norm.weight"] {
        let bytes = tiny.gguf_with(|tensor, _, bytes| {
            if tensor == name {
                let at = bytes.len() - 4;
                bytes[at..].copy_from_slice(&f32::NAN.to_le_bytes());
            }
            Some(tensor_type(tiny.format(tensor)))
        });
        assert_invalid(&bytes, &[name, "NaN"]);
    }
}

#[test]
fn truncated_foreign_and_empty_files_are_errors() {
    let bytes = model().gguf();
    for len in [0, 3, 100, bytes.len() / 2, bytes.len() - 100] {
        assert!(
            matches!(refusal(&bytes[..len]), LoadError::Gguf(_)),
            "{len}"
        );
    }
    assert!(matches!(
        refusal(b"<html>not a model</html>"),
        LoadError::Gguf(_)
    ));
    let missing = CpuExecutor::load("/nonexistent/model.gguf".as_ref(), &options(), |_, _| {})
        .map(|_| ())
        .unwrap_err();
    assert!(
        matches!(missing, LoadError::Read { .. })
            && missing.to_string().contains("/nonexistent/model.gguf")
    );
}

#[test]
fn a_file_cut_off_between_opening_and_loading_is_an_error() {
    let bytes = model().gguf();
    let file = write(&bytes);
    let opened = ModelFile::open(file.path()).unwrap();
    std::fs::File::options()
        .write(true)
        .open(file.path())
        .unwrap()
        .set_len(bytes.len() as u64 / 2)
        .unwrap();
    let error = CpuExecutor::from_file(&opened, &options(), |_, _| {})
        .map(|_| ())
        .unwrap_err();
    assert!(matches!(error, LoadError::Read { .. }), "{error}");
}

#[test]
fn absurd_numbers_are_refused_before_memory_is_spent() {
    let tiny = model();
    for (key, value) in [
        ("llama.block_count", 0u64),
        ("llama.block_count", u64::MAX),
        ("llama.embedding_length", 1 << 40),
        ("llama.attention.head_count", 0),
        ("llama.attention.head_count_kv", 5),
        ("llama.attention.key_length", 1 << 20),
        ("llama.rope.dimension_count", 11),
        ("llama.rope.dimension_count", 16),
        ("llama.context_length", 1 << 40),
    ] {
        let bytes = with_value(&tiny, key, value);
        let error = refusal(&bytes);
        assert!(
            matches!(error, LoadError::Invalid(_)),
            "{key} {value}: {error}"
        );
    }
    assert_unsupported(&with_value(&tiny, "llama.expert_count", 8u32), &["experts"]);
}

/// The model with one metadata value changed or added.
fn with_value(tiny: &Tiny, key: &str, value: impl Into<Value>) -> Vec<u8> {
    builder_of(&tiny.gguf(), key).value(key, value).build()
}

/// A builder that holds all of a file but one metadata value.
fn builder_of(bytes: &[u8], without: &str) -> GgufBuilder {
    let parsed = Gguf::parse(bytes).unwrap();
    let mut builder = GgufBuilder::new();
    for (name, value) in parsed
        .metadata()
        .iter()
        .filter(|(name, _)| *name != without)
    {
        builder = builder.value(name, value.clone());
    }
    for tensor in parsed.tensors() {
        builder = builder.tensor(
            &tensor.name,
            &tensor.dims,
            tensor.kind,
            &bytes[tensor.range.clone()],
        );
    }
    builder
}

#[test]
fn options_that_cannot_work_are_refused_with_the_numbers() {
    let file = write(&model().gguf());
    let refused = |options: CpuOptions| {
        let error = CpuExecutor::load(file.path(), &options, |_, _| {})
            .map(|_| ())
            .unwrap_err();
        assert!(matches!(error, LoadError::InvalidOptions(_)), "{error}");
        error.to_string()
    };
    assert!(
        refused(CpuOptions {
            context_tokens: Some(201),
            ..options()
        })
        .contains("200")
    );
    refused(CpuOptions {
        context_tokens: Some(0),
        ..options()
    });
    refused(CpuOptions {
        kv: KvBudget::Bytes(100),
        ..options()
    });
    refused(CpuOptions {
        kv: KvBudget::Blocks(usize::MAX),
        ..options()
    });
}

#[test]
fn the_memory_plan_is_what_gets_held_and_progress_reaches_the_end() {
    let tiny = Tiny::new(Shape::wide(), 1, |_| Format::Q4_1);
    let file = write(&tiny.gguf());
    let opened = ModelFile::open(file.path()).unwrap();
    let options = CpuOptions {
        kv: KvBudget::Bytes(1 << 20),
        ..options()
    };
    let plan = opened.memory_plan(&options).unwrap();
    // Two layers of two heads of 64 keys and 64 values, 16 tokens, two bytes.
    assert_eq!(plan.block_bytes, 2 * 2 * 128 * 16 * 2);
    assert_eq!((plan.block_count, plan.kv_bytes), (64, 1 << 20));
    assert_eq!(
        plan.total_bytes(),
        plan.weight_bytes + plan.kv_bytes + plan.working_bytes
    );
    let mut calls = Vec::new();
    let executor = CpuExecutor::from_file(&opened, &options, |loaded, total| {
        calls.push((loaded, total));
    })
    .unwrap();
    assert!(
        calls
            .windows(2)
            .all(|w| w[0].0 < w[1].0 && w[0].1 == w[1].1)
    );
    let (loaded, total) = *calls.last().unwrap();
    assert_eq!(loaded, total);
    let info = executor.info();
    assert_eq!(
        (info.block_count, info.context_tokens, info.vocab_size),
        (64, 1024, 300)
    );
    assert_eq!(
        (
            info.quantization.as_str(),
            info.architecture.as_str(),
            info.name
        ),
        ("Q4_1", "llama", "cpu")
    );
    assert_eq!(info.weight_bytes, plan.weight_bytes);
}

#[test]
fn steps_that_cannot_be_computed_are_refused_and_change_nothing() {
    let tiny = model();
    let mut executor = tiny.executor(1, 4);
    let good = StepRow {
        tokens: &[1, 2, 3],
        start: 0,
        block_table: &[0],
        logits: 1,
    };
    let mut logits = Logits::default();
    executor.forward(&[good], &mut logits).unwrap();
    let before = logits.row(0).to_vec();
    let many = [1; 201];
    let all_blocks = [0, 1, 2, 3];
    let bad = [
        (
            StepRow {
                tokens: &[],
                ..good
            },
            ExecutorError::EmptyRow { row: 1 },
        ),
        (
            StepRow {
                tokens: &[1, 23],
                ..good
            },
            ExecutorError::TokenOutOfRange {
                row: 1,
                token: 23,
                vocab_size: 23,
            },
        ),
        (
            StepRow {
                tokens: &many,
                block_table: &all_blocks,
                ..good
            },
            ExecutorError::ContextExceeded {
                row: 1,
                start: 0,
                end: 201,
                context_tokens: 200,
            },
        ),
        (
            StepRow {
                start: usize::MAX,
                ..good
            },
            ExecutorError::ContextExceeded {
                row: 1,
                start: usize::MAX,
                end: usize::MAX,
                context_tokens: 200,
            },
        ),
        (
            StepRow { start: 14, ..good },
            ExecutorError::BlockTable {
                row: 1,
                end: 17,
                needed: 2,
                found: 1,
                block_count: 4,
            },
        ),
        (
            StepRow {
                block_table: &[4],
                ..good
            },
            ExecutorError::BlockTable {
                row: 1,
                end: 3,
                needed: 1,
                found: 1,
                block_count: 4,
            },
        ),
    ];
    for (row, expected) in bad {
        // The first row would overwrite the stored tokens if anything were computed.
        let first = StepRow {
            tokens: &[9, 9, 9],
            ..good
        };
        assert_eq!(executor.forward(&[first, row], &mut logits), Err(expected));
    }
    let next = StepRow {
        tokens: &[3],
        start: 2,
        ..good
    };
    executor.forward(&[next], &mut logits).unwrap();
    assert_eq!(logits.row(0), before);
}

#[test]
fn logits_of_more_tokens_than_a_row_has_are_refused() {
    let mut executor = model().executor(1, 4);
    let row = StepRow {
        tokens: &[1, 2, 3],
        start: 0,
        block_table: &[0],
        logits: 4,
    };
    let refused = ExecutorError::Logits {
        row: 0,
        wanted: 4,
        tokens: 3,
    };
    assert_eq!(
        executor.forward(&[row], &mut Logits::default()),
        Err(refused)
    );
}
