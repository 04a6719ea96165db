//! Gemma-3-270M: formats mixed within a layer, norms everywhere, windows.

use super::argmax;
use super::distributions::{Compact, log_softmax};
use super::expected::{Gemma3File, load};
use super::running::{Sequence, executor_of};
use super::{CLOSE_LOGITS, DECISIVE_LOGITS, PERPLEXITY_TOLERANCE};

/// As `e2e/fetch-model gemma3` names it.
const FILE: &str = "gemma-3-270m-q4_k_m.gguf";
const POSITIONS_TOGETHER: usize = 64;

#[test]
#[ignore = "needs the 240 MB that `e2e/fetch-model gemma3` fetches"]
fn gemma_3_finds_a_text_as_likely_as_the_reference_does() {
    let file: Gemma3File = load("gemma3.json");
    let mut executor = executor_of(FILE, &file.model.sha256, file.ids.len());
    let compact = Compact::load(&file.compact_form.file);
    let mut sequence = Sequence::new(&mut executor);
    let (mut surprise, mut divergence, mut clear, mut differing) = (0.0, 0.0, 0, 0);
    let inputs = &file.ids[..file.ids.len() - 1];
    for (chunk, tokens) in inputs.chunks(POSITIONS_TOGETHER).enumerate() {
        let logits = sequence.extend_for_all(tokens);
        for row in 0..tokens.len() {
            let at = chunk * POSITIONS_TOGETHER + row;
            let log_probs = log_softmax(logits.row(row));
            surprise -= log_probs[file.ids[at + 1] as usize];
            divergence += compact.divergence(at, &log_probs);
            let differs = argmax(logits.row(row)) != file.best[at];
            let sure = file.gap[at] > DECISIVE_LOGITS;
            assert!(
                !(differs && sure),
                "position {at}: sure by {}",
                file.gap[at]
            );
            clear += usize::from(file.gap[at] > CLOSE_LOGITS);
            differing += usize::from(differs && file.gap[at] > CLOSE_LOGITS);
        }
    }
    let perplexity = (surprise / inputs.len() as f64).exp();
    let mean_kl = divergence / inputs.len() as f64;
    println!(
        "mean KL divergence {mean_kl:.6} (llama.cpp {:.6})",
        file.llama_cpp.mean_kl
    );
    assert!(mean_kl <= file.llama_cpp.mean_kl);
    println!(
        "perplexity {perplexity:.4} (reference {:.4}, llama.cpp {:.4}); {differing} of {clear} clear positions differ",
        file.perplexity, file.llama_cpp.perplexity
    );
    assert!((perplexity / file.perplexity - 1.0).abs() <= PERPLEXITY_TOLERANCE);
    assert!(
        differing * 100 <= clear,
        "{differing} of {clear} clear positions differ"
    );
}
