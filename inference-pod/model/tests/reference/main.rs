//! The CPU executor beside the independent reference in `e2e/reference`, whose README says what its files hold.

mod distributions;
mod expected;
mod gemma3;
mod running;

use distributions::{Compact, log_softmax};
use expected::{DistributionsFile, GreedyFile, GreedyPrompt, load};
use pagoda_model::CpuExecutor;
use running::{Sequence, executor};

/// Where the reference's two best logits are closer than this, either token is right.
const CLOSE_LOGITS: f32 = 0.2;
/// How far perplexity may lie from the reference's, relative.
const PERPLEXITY_TOLERANCE: f64 = 0.005;
/// Positions whose logits are held at once: 50 MB for a vocabulary of 50,000.
const POSITIONS_TOGETHER: usize = 256;

/// Quantised activations move the distance of two logits by up to about 0.6 on this model, llama.cpp's as well as ours:
/// above this, another token than the reference's is a fault.
const DECISIVE_LOGITS: f32 = 1.0;

#[test]
fn greedy_tokens_are_the_references_until_its_two_best_logits_lie_close() {
    let file: GreedyFile = load("greedy.json");
    let mut executor = executor(&file.model.sha256, 1024);
    assert_eq!(file.prompts.len(), 10);
    for prompt in &file.prompts {
        let chosen = free_running(&mut executor, prompt);
        let close = prompt
            .steps
            .iter()
            .position(|step| step.gap <= CLOSE_LOGITS)
            .unwrap_or(prompt.steps.len());
        let expected: Vec<u32> = prompt.steps.iter().map(|step| step.token).collect();
        assert_eq!(chosen[..close], expected[..close], "prompt {}", prompt.name);
    }
}

#[test]
fn the_next_token_after_the_references_own_text_is_the_references_at_every_step_but_close_ones() {
    let file: GreedyFile = load("greedy.json");
    let mut executor = executor(&file.model.sha256, 1024);
    let (mut clear, mut differing) = (0, 0);
    for prompt in &file.prompts {
        let mut sequence = Sequence::new(&mut executor);
        let mut logits = sequence.extend(&prompt.ids);
        for (number, step) in prompt.steps.iter().enumerate() {
            let differs = argmax(&logits) != step.token;
            let decisive = step.gap > DECISIVE_LOGITS;
            assert!(
                !(differs && decisive),
                "prompt {}, step {number}: the reference is sure by {}",
                prompt.name,
                step.gap
            );
            clear += usize::from(step.gap > CLOSE_LOGITS);
            differing += usize::from(differs && step.gap > CLOSE_LOGITS);
            logits = sequence.extend(&[step.token]);
        }
    }
    println!("{differing} of {clear} clear steps differ");
    assert!(clear > 250, "only {clear} steps were compared");
    assert!(
        differing * 100 <= clear,
        "{differing} of {clear} clear steps differ"
    );
}

/// The tokens that the executor generates of its own, as many as the reference's.
fn free_running(executor: &mut CpuExecutor, prompt: &GreedyPrompt) -> Vec<u32> {
    let mut sequence = Sequence::new(executor);
    let mut chosen = vec![argmax(&sequence.extend(&prompt.ids))];
    while chosen.len() < prompt.steps.len() {
        let token = chosen[chosen.len() - 1];
        chosen.push(argmax(&sequence.extend(&[token])));
    }
    chosen
}

#[test]
fn perplexity_and_divergence_on_a_text_are_the_references_and_no_worse_than_llama_cpps() {
    let file: DistributionsFile = load("distributions.json");
    let compact = Compact::load(&file.compact_form.file);
    assert_eq!(compact.positions.len(), file.ids.len() - 1);
    let mut executor = executor(&file.model.sha256, file.ids.len());
    let mut sequence = Sequence::new(&mut executor);
    let (mut surprise, mut divergence) = (0.0, 0.0);
    let inputs = &file.ids[..file.ids.len() - 1];
    for (chunk, tokens) in inputs.chunks(POSITIONS_TOGETHER).enumerate() {
        let logits = sequence.extend_for_all(tokens);
        for row in 0..tokens.len() {
            let position = chunk * POSITIONS_TOGETHER + row;
            let log_probs = log_softmax(logits.row(row));
            surprise -= log_probs[file.ids[position + 1] as usize];
            divergence += compact.divergence(position, &log_probs);
        }
    }
    let count = inputs.len() as f64;
    let perplexity = (surprise / count).exp();
    let mean_kl = divergence / count;
    println!(
        "perplexity {perplexity:.4} (reference {:.4}, llama.cpp {:.4})",
        file.perplexity, file.llama_cpp.perplexity
    );
    println!(
        "mean KL divergence {mean_kl:.6} (llama.cpp {:.6})",
        file.llama_cpp.mean_kl
    );
    assert!(
        (perplexity / file.perplexity - 1.0).abs() <= PERPLEXITY_TOLERANCE,
        "perplexity {perplexity} is more than 0.5 % from the reference's {}",
        file.perplexity
    );
    assert!(
        mean_kl <= file.llama_cpp.mean_kl,
        "mean KL divergence from the reference is {mean_kl}, llama.cpp's only {}",
        file.llama_cpp.mean_kl
    );
}

#[test]
fn divergence_from_the_compact_form_is_nothing_for_the_reference_itself_and_grows_with_distance() {
    let compact = Compact::parse(&two_token_file()).unwrap();
    // Over three tokens: 0.5, 0.25 (drawn) and 0.25.
    let own: Vec<f64> = [0.5_f64, 0.25, 0.25].map(f64::ln).to_vec();
    assert!(compact.divergence(0, &own).abs() < 1e-6);
    let near: Vec<f64> = [0.4_f64, 0.3, 0.3].map(f64::ln).to_vec();
    let far: Vec<f64> = [0.1_f64, 0.45, 0.45].map(f64::ln).to_vec();
    let exact = |q: &[f64]| {
        own.iter()
            .zip(q)
            .map(|(p, q)| p.exp() * (p - q))
            .sum::<f64>()
    };
    assert!((compact.divergence(0, &near) - exact(&near)).abs() < 1e-6);
    assert!((compact.divergence(0, &far) - exact(&far)).abs() < 1e-6);
    assert!(exact(&far) > exact(&near));
}

/// One position: token 0 with probability 0.5 on top; token 1 with 0.25 drawn for the other half.
fn two_token_file() -> Vec<u8> {
    let mut bytes = b"PGDD".to_vec();
    for number in [1_u32, 1, 1, 1] {
        bytes.extend(number.to_le_bytes());
    }
    bytes.extend(0.5_f32.to_le_bytes());
    bytes.extend([0_u16, 1].map(u16::to_le_bytes).concat());
    bytes.extend([0.5_f32.ln(), 0.25_f32.ln()].map(f32::to_le_bytes).concat());
    bytes
}

fn argmax(logits: &[f32]) -> u32 {
    let best = logits.iter().enumerate().max_by(|a, b| a.1.total_cmp(b.1));
    best.map_or(0, |(token, _)| token as u32)
}
