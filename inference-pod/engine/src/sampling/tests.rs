use super::*;
use proptest::prelude::*;

fn greedy() -> SamplingParams {
    SamplingParams {
        temperature: 0.0,
        ..SamplingParams::default()
    }
}

fn token(sampler: &mut Sampler, logits: &[f32]) -> u32 {
    sampler.sample(&mut logits.to_vec(), None).unwrap().token
}

/// Frequencies of tokens over many draws from the same logits.
fn frequencies(params: &SamplingParams, logits: &[f32], draws: u32) -> Vec<f64> {
    let mut counts = vec![0u32; logits.len()];
    let sampler = Sampler::new(params.clone());
    for draw in 0..draws {
        let mut sampler = Sampler {
            drawn: u64::from(draw),
            ..sampler.clone()
        };
        counts[sampler.sample(&mut logits.to_vec(), None).unwrap().token as usize] += 1;
    }
    counts
        .iter()
        .map(|count| f64::from(*count) / f64::from(draws))
        .collect()
}

/// The same choice by the plain definition: sort everything, cut, renormalise.
fn expected(params: &SamplingParams, logits: &[f32]) -> Vec<f64> {
    let weights: Vec<f64> = logits
        .iter()
        .map(|logit| (f64::from(*logit) / f64::from(params.temperature)).exp())
        .collect();
    let mut order: Vec<usize> = (0..logits.len()).collect();
    order.sort_by(|a, b| weights[*b].total_cmp(&weights[*a]).then(a.cmp(b)));
    let best = weights[order[0]];
    order.retain(|token| weights[*token] >= f64::from(params.min_p) * best);
    if params.top_k > 0 {
        order.truncate(params.top_k as usize);
    }
    let total: f64 = order.iter().map(|token| weights[*token]).sum();
    let mut kept = Vec::new();
    let mut mass = 0.0;
    for token in order {
        if mass < f64::from(params.top_p) * total || kept.is_empty() {
            mass += weights[token];
            kept.push(token);
        }
    }
    let mut out = vec![0.0; logits.len()];
    for token in kept {
        out[token] = weights[token] / mass;
    }
    out
}

#[test]
fn temperature_zero_takes_the_best_and_the_smaller_id_among_equals() {
    let mut sampler = Sampler::new(greedy());
    assert_eq!(token(&mut sampler, &[0.0, 3.0, 1.0, 3.0]), 1);
}

#[test]
fn draws_follow_the_definition_of_every_parameter() {
    let logits = [1.0, 2.5, 0.1, 2.4, -1.0, 2.0, 0.0];
    let base = SamplingParams {
        seed: 11,
        ..SamplingParams::default()
    };
    let cases = [
        base.clone(),
        SamplingParams {
            temperature: 0.5,
            ..base.clone()
        },
        SamplingParams {
            temperature: 2.0,
            ..base.clone()
        },
        SamplingParams {
            top_k: 3,
            ..base.clone()
        },
        SamplingParams {
            top_p: 0.8,
            ..base.clone()
        },
        SamplingParams {
            min_p: 0.3,
            ..base.clone()
        },
        SamplingParams {
            temperature: 1.5,
            top_k: 5,
            top_p: 0.7,
            min_p: 0.1,
            ..base
        },
    ];
    for params in cases {
        let draws = 40_000;
        for (token, (seen, wanted)) in frequencies(&params, &logits, draws)
            .into_iter()
            .zip(expected(&params, &logits))
            .enumerate()
        {
            // Five standard deviations of a frequency, none where the token must never appear.
            let allowed = 5.0 * (wanted * (1.0 - wanted) / f64::from(draws)).sqrt();
            assert!(
                (seen - wanted).abs() <= allowed,
                "token {token}: {seen} instead of {wanted} with {params:?}"
            );
        }
    }
}

#[test]
fn a_seed_repeats_its_answer_and_another_one_does_not() {
    let answer = |seed| {
        let mut sampler = Sampler::new(SamplingParams {
            seed,
            ..SamplingParams::default()
        });
        (0..64)
            .map(|_| sampler.sample(&mut [0.0; 16], None).unwrap().token)
            .collect::<Vec<_>>()
    };
    assert_eq!(answer(7), answer(7));
    assert_ne!(answer(7), answer(8));
}

#[test]
fn penalties_count_the_answer_and_nothing_else() {
    let params = SamplingParams {
        presence_penalty: 1.0,
        frequency_penalty: 0.5,
        ..greedy()
    };
    let mut sampler = Sampler::new(params);
    let logits = [3.0, 2.0, 0.0];
    // 3.0 | 1.5, 2.0 | 1.5, 0.5 | 1.0, 0.5 | 0.5, 0.5 (smaller id)
    let answer: Vec<u32> = (0..5)
        .map(|_| sampler.sample(&mut logits.to_vec(), None).unwrap().token)
        .collect();
    assert_eq!(answer, [0, 1, 0, 0, 0]);
}

#[test]
fn a_bias_of_100_forces_a_token_and_minus_100_bans_it() {
    let force = SamplingParams {
        logit_bias: [(2, 100.0)].into(),
        ..greedy()
    };
    assert_eq!(token(&mut Sampler::new(force), &[9.0, 8.0, -5.0]), 2);
    let ban = SamplingParams {
        logit_bias: [(0, -100.0)].into(),
        ..greedy()
    };
    assert_eq!(token(&mut Sampler::new(ban), &[9.0, 8.0, -5.0]), 1);
}

#[test]
fn a_bias_for_a_token_outside_the_vocabulary_does_nothing() {
    let params = SamplingParams {
        logit_bias: [(77, 100.0)].into(),
        ..greedy()
    };
    assert_eq!(token(&mut Sampler::new(params), &[1.0, 2.0]), 1);
}

#[test]
fn nan_is_never_drawn_and_all_nan_is_an_error() {
    for params in [
        greedy(),
        SamplingParams::default(),
        SamplingParams {
            top_k: 2,
            top_p: 0.9,
            ..SamplingParams::default()
        },
    ] {
        for draw in 0..50 {
            let mut sampler = Sampler {
                drawn: draw,
                ..Sampler::new(params.clone())
            };
            assert_ne!(token(&mut sampler, &[f32::NAN, 0.5, f32::NAN, 0.4]) % 2, 0);
        }
        let broken = Sampler::new(params).sample(&mut [f32::NAN; 3], None);
        assert_eq!(broken, Err(SampleError::NoFiniteLogit { vocabulary: 3 }));
    }
}

#[test]
fn an_infinite_logit_wins() {
    let mut sampler = Sampler::new(SamplingParams::default());
    assert_eq!(token(&mut sampler, &[1.0, f32::INFINITY, 2.0]), 1);
}

#[test]
fn names_the_parameter_that_is_out_of_range() {
    let wrong = |params: SamplingParams| params.check().unwrap_err().to_string();
    assert_eq!(
        wrong(SamplingParams {
            temperature: -1.0,
            ..SamplingParams::default()
        }),
        "temperature must be between 0 and 2, got -1"
    );
    assert!(
        wrong(SamplingParams {
            top_p: 0.0,
            ..SamplingParams::default()
        })
        .starts_with("top_p must be above 0")
    );
    assert!(
        wrong(SamplingParams {
            min_p: f32::NAN,
            ..SamplingParams::default()
        })
        .starts_with("min_p")
    );
    assert!(
        wrong(SamplingParams {
            logit_bias: [(1, 101.0)].into(),
            ..SamplingParams::default()
        })
        .starts_with("logit_bias")
    );
    assert_eq!(SamplingParams::default().check(), Ok(()));
}

proptest! {
    #[test]
    fn any_logits_give_a_token_with_a_finite_or_infinite_logit_or_an_error(
        logits in prop::collection::vec(prop_oneof![Just(f32::NAN), Just(f32::INFINITY), Just(f32::NEG_INFINITY), -50f32..50.0], 1..40),
        temperature in prop_oneof![Just(0f32), 0.01f32..2.0], top_k in 0u32..50, top_p in 0.01f32..=1.0, min_p in 0f32..=1.0, seed: u64,
    ) {
        let params = SamplingParams { temperature, top_k, top_p, min_p, seed, ..SamplingParams::default() };
        match Sampler::new(params).sample(&mut logits.clone(), None) {
            Ok(sampled) => prop_assert!(logits[sampled.token as usize] > f32::NEG_INFINITY),
            Err(_) => prop_assert!(logits.iter().all(|logit| logit.is_nan() || *logit == f32::NEG_INFINITY)),
        }
    }
}

#[test]
fn log_probabilities_are_of_the_logits_as_they_came() {
    let logits = [1.0, 3.0, 2.0, f32::NAN, f32::NEG_INFINITY];
    let total: f64 = [1f64, 3.0, 2.0].iter().map(|logit| logit.exp()).sum();
    for (temperature, bias) in [(0.0, 0.0), (0.5, 0.0), (2.0, -50.0)] {
        let mut sampler = Sampler::new(SamplingParams {
            temperature,
            logit_bias: [(1, bias)].into(),
            logprobs: Some(4),
            ..SamplingParams::default()
        });
        let sampled = sampler.sample(&mut logits.to_vec(), None).unwrap();
        let found = sampled.logprobs.unwrap();
        let expected = f64::from(logits[sampled.token as usize]) - total.ln();
        assert!((f64::from(found.logprob) - expected).abs() < 1e-6);
        let order: Vec<u32> = found.top.iter().map(|(token, _)| *token).collect();
        assert_eq!(order, [1, 2, 0, 4]);
        assert!(found.top[3].1 < -9998.0);
    }
}

#[test]
fn nobody_pays_for_log_probabilities_that_nobody_wants() {
    let mut sampler = Sampler::new(greedy());
    assert_eq!(
        sampler.sample(&mut [1.0, 2.0], None).unwrap().logprobs,
        None
    );
}

#[test]
fn tokens_out_of_range_and_infinite_logits_have_a_log_probability_that_json_can_say() {
    assert!(logprobs_of(&[0.0, 0.0], 7, 0).logprob < -9998.0);
    for logits in [
        [f32::INFINITY, 0.0],
        [f32::NAN, f32::NAN],
        [f32::NEG_INFINITY; 2],
    ] {
        let found = logprobs_of(&logits, 0, 2);
        assert!(found.logprob.is_finite(), "{logits:?}");
        assert!(
            found.top.iter().all(|(_, value)| value.is_finite()),
            "{logits:?}"
        );
    }
}

#[test]
fn a_mask_leaves_only_what_it_allows() {
    // Tokens 3 and 35 of 40; there is no word for tokens from 64 on.
    let words = [1 << 3, 1 << 3];
    let mut sampler = Sampler::new(SamplingParams {
        temperature: 2.0,
        seed: 5,
        ..SamplingParams::default()
    });
    for _ in 0..100 {
        let drawn = sampler.sample(&mut [0.0; 70], Some(AllowedTokens(&words)));
        assert!([3, 35].contains(&drawn.unwrap().token));
    }
    let nothing = sampler.sample(&mut [0.0; 70], Some(AllowedTokens(&[])));
    assert_eq!(nothing, Err(SampleError::NoFiniteLogit { vocabulary: 70 }));
}

proptest! {
    #[test]
    fn the_most_probable_tokens_are_the_first_of_all_sorted(
        logits in prop::collection::vec(-20f32..20.0, 1..60), top in 0usize..70, token in 0u32..60,
    ) {
        let found = logprobs_of(&logits, token, top);
        let mut all: Vec<u32> = (0..logits.len() as u32).collect();
        all.sort_by(|a, b| logits[*b as usize].total_cmp(&logits[*a as usize]).then(a.cmp(b)));
        all.truncate(top);
        let tokens: Vec<u32> = found.top.iter().map(|(token, _)| *token).collect();
        prop_assert_eq!(tokens, all);
        let whole = logprobs_of(&logits, token, logits.len());
        let mass: f64 = whole.top.iter().map(|(_, value)| f64::from(*value).exp()).sum();
        prop_assert!((mass - 1.0).abs() < 1e-4, "{}", mass);
    }
}
