use std::fmt::Write as _;

use proptest::prelude::*;

use super::*;

/// What Pagoda's own engine says each second.
const OURS: &str = r#"# HELP vllm:num_requests_running Running.
# TYPE vllm:num_requests_running gauge
vllm:num_requests_running 3
vllm:num_requests_waiting 1
vllm:kv_cache_usage_perc 0.375
vllm:prompt_tokens_total 7000
vllm:generation_tokens_total 900
vllm:request_success_total{finished_reason="stop"} 8
vllm:request_success_total{finished_reason="length"} 2
# TYPE vllm:time_to_first_token_seconds histogram
vllm:time_to_first_token_seconds_sum 2.5
vllm:time_to_first_token_seconds_count 10
vllm:time_to_first_token_seconds_bucket{le="0.25"} 6
vllm:time_to_first_token_seconds_bucket{le="1.0"} 9
vllm:time_to_first_token_seconds_bucket{le="+Inf"} 10
pagoda_engine_busy_seconds_total 12.5
pagoda_engine_prefill_tokens_total 5000
pagoda_engine_decode_steps_total 400
pagoda_engine_decode_tokens_total 890
pagoda_engine_max_sequences 32
pagoda_engine_max_step_tokens 2048
"#;

fn first_token(reading: &PodReading) -> Option<&Histogram> {
    reading.latencies.as_deref()?.first_token.as_ref()
}

#[test]
fn reads_what_our_own_engine_tells_of_its_work() {
    let reading = PodReading::parse(OURS).expect("ours");
    assert_eq!(
        (reading.running, reading.waiting, reading.in_flight()),
        (3, 1, 4)
    );
    assert_eq!(
        (reading.finished, reading.prompt_tokens),
        (Some(10), Some(7_000))
    );
    assert_eq!(reading.kv_usage_milli, Some(375));
    let work = reading.work.expect("told");
    assert_eq!((work.busy_micros, work.prefill_tokens), (12_500_000, 5_000));
    assert_eq!((work.decode_steps, work.decode_tokens), (400, 890));
    assert_eq!((work.most_sequences, work.most_step_tokens), (32, 2_048));
    let histogram = first_token(&reading).expect("told");
    assert_eq!((histogram.count(), histogram.sum_micros()), (10, 2_500_000));
    assert_eq!(histogram.percentile_micros(90), Some(1_000_000));
}

#[test]
fn engines_of_one_pod_are_summed_and_their_use_is_averaged() {
    let mut text = String::new();
    for engine in 0..2 {
        let labels = format!("engine=\"{engine}\",model_name=\"m\"");
        for (name, value) in [
            ("num_requests_running", 2.0),
            ("kv_cache_usage_perc", 0.2 + 0.2 * f64::from(engine)),
        ] {
            writeln!(text, "vllm:{name}{{{labels}}} {value}").expect("memory");
        }
        for (le, count) in [("0.1", 1), ("0.5", 4), ("+Inf", 5)] {
            writeln!(
                text,
                "vllm:time_to_first_token_seconds_bucket{{{labels},le=\"{le}\"}} {count}.0"
            )
            .expect("memory");
        }
        writeln!(
            text,
            "vllm:time_to_first_token_seconds_count{{{labels}}} 5.0"
        )
        .expect("memory");
    }
    let reading = PodReading::parse(&text).expect("vLLM's");
    assert_eq!((reading.running, reading.kv_usage_milli), (4, Some(300)));
    assert_eq!(first_token(&reading).map(Histogram::count), Some(10));
}

#[test]
fn an_old_name_beside_the_new_one_is_not_counted_twice() {
    let text = "vllm:num_requests_running 1\nvllm:gpu_prefix_cache_queries_total 7\nvllm:prefix_cache_queries_total 70\n\
        vllm:gpu_cache_usage_perc 0.9\nvllm:kv_cache_usage_perc 0.5\n\
        vllm:time_per_output_token_seconds_bucket{le=\"1\"} 3\nvllm:time_per_output_token_seconds_count 3\n\
        vllm:inter_token_latency_seconds_bucket{le=\"1\"} 5\nvllm:inter_token_latency_seconds_count 5\n\
        vllm:time_per_output_token_seconds_count 3\n";
    let reading = PodReading::parse(text).expect("vLLM's");
    assert_eq!(
        (reading.cache_queries, reading.kv_usage_milli),
        (70, Some(500))
    );
    let latencies = reading.latencies.expect("told");
    assert_eq!(
        latencies.inter_token.as_ref().map(Histogram::count),
        Some(5)
    );
}

#[test]
fn sglang_and_llama_server_tell_what_they_tell() {
    let sglang = "sglang:num_running_reqs{model_name=\"m\"} 2.0\nsglang:num_queue_reqs{model_name=\"m\"} 1.0\n\
        sglang:token_usage{model_name=\"m\"} 0.28\nsglang:prompt_tokens_total{model_name=\"m\"} 800.0\n\
        sglang:cached_tokens_total{model_name=\"m\"} 300.0\nsglang:num_requests_total{model_name=\"m\"} 9.0\n\
        sglang:time_to_first_token_seconds_bucket{le=\"0.1\",model_name=\"m\"} 4.0\n\
        sglang:time_to_first_token_seconds_count{model_name=\"m\"} 5.0\n";
    let reading = PodReading::parse(sglang).expect("SGLang's");
    assert_eq!(
        (reading.kv_usage_milli, reading.prompt_tokens),
        (Some(280), Some(800))
    );
    assert_eq!((reading.cache_queries, reading.cache_hits), (800, 300));
    assert_eq!(first_token(&reading).map(Histogram::count), Some(5));
    let llama = "llamacpp:requests_processing 2\nllamacpp:prompt_tokens_total 55\nllamacpp:kv_cache_usage_ratio 0.1\n";
    let reading = PodReading::parse(llama).expect("llama-server's");
    assert_eq!(
        (
            reading.prompt_tokens,
            reading.kv_usage_milli,
            reading.finished
        ),
        (Some(55), Some(100), None)
    );
}

#[test]
fn nonsense_about_the_load_spoils_the_text_and_about_the_rest_only_that() {
    for value in ["NaN", "-1", "+Inf", "many"] {
        assert!(
            PodReading::parse(&OURS.replace("running 3", &format!("running {value}"))).is_err()
        );
        assert!(
            PodReading::parse(&OURS.replace("tokens_total 900", &format!("tokens_total {value}")))
                .is_err()
        );
        let usage = PodReading::parse(&OURS.replace("perc 0.375", &format!("perc {value}")));
        assert_eq!(
            usage.expect("load is there").kv_usage_milli,
            None,
            "{value}"
        );
        let bucket =
            PodReading::parse(&OURS.replace("le=\"0.25\"} 6", &format!("le=\"0.25\"}} {value}")));
        assert_eq!(bucket.expect("load is there").latencies, None, "{value}");
    }
    let percent =
        PodReading::parse(&OURS.replace("perc 0.375", "perc 37.5")).expect("load is there");
    assert_eq!(percent.kv_usage_milli, None, "another unit");
    for label in ["le=\"x\"", "le=\"-1\"", "el=\"1\""] {
        let text = OURS.replace("le=\"0.25\"", label);
        assert_eq!(
            PodReading::parse(&text).expect("load is there").latencies,
            None,
            "{label}"
        );
    }
    let falls = OURS.replace("le=\"0.25\"} 6", "le=\"0.25\"} 60");
    assert_eq!(
        PodReading::parse(&falls).expect("load is there").latencies,
        None
    );
}

#[test]
fn absurdly_many_buckets_take_no_memory() {
    let mut text = OURS.to_owned();
    for i in 0..100_000 {
        writeln!(
            text,
            "vllm:inter_token_latency_seconds_bucket{{le=\"{}\"}} {i}",
            1.0 + f64::from(i) * 1e-4
        )
        .expect("memory");
    }
    let latencies = PodReading::parse(&text)
        .expect("load is there")
        .latencies
        .expect("told");
    assert_eq!(latencies.inter_token, None);
    assert!(latencies.first_token.is_some());
}

#[test]
fn counts_that_no_one_can_have_do_not_overflow() {
    let text = "vllm:num_requests_running 1e300\nvllm:num_requests_waiting 1e300\nvllm:prompt_tokens_total 1e308\n\
        vllm:prompt_tokens_total{a=\"b\"} 1e308\npagoda_engine_busy_seconds_total 1e308\n";
    let reading = PodReading::parse(text).expect("finite");
    assert!(reading.in_flight() > 0 && reading.prompt_tokens.is_some());
}

proptest! {
    #[test]
    fn no_text_panics(
        lines in proptest::collection::vec(
            "(vllm|sglang|llamacpp):(num_requests_running|token_usage|kv_cache_usage_perc|time_to_first_token_seconds_bucket)\
             (\\{le=\"[0-9.+Inf]{0,6}\"\\})? ?[0-9.eNa-]{0,8}", 0..30),
        noise in ".{0,60}",
    ) {
        let _ = PodReading::parse(&lines.join("\n"));
        let _ = PodReading::parse(&noise);
    }
}

/// A figure for people, not a test of time: `cargo test --release ... -- --ignored --nocapture cost_of_reading`.
#[test]
#[ignore = "prints a figure"]
fn cost_of_reading() {
    let mut text = String::from("vllm:num_requests_running 3\nvllm:num_requests_waiting 1\n");
    for family in ["time_to_first_token_seconds", "inter_token_latency_seconds"] {
        writeln!(
            text,
            "# TYPE vllm:{family} histogram\nvllm:{family}_sum 2.5\nvllm:{family}_count 10"
        )
        .expect("memory");
        for i in 0..18 {
            writeln!(text, "vllm:{family}_bucket{{le=\"0.{i:02}1\"}} {i}").expect("memory");
        }
    }
    text.push_str(
        OURS.split_once("vllm:kv")
            .expect("ours")
            .1
            .trim_start_matches(|c| c != '\n'),
    );
    let whole: String = (0..12)
        .flat_map(|i| {
            text.lines()
                .map(move |line| line.replace("seconds_", &format!("seconds{i}_")) + "\n")
        })
        .collect();
    let whole = text.clone() + &whole.replace("vllm:", "vllm:request_");
    for text in [&text, &whole] {
        let began = std::time::Instant::now();
        for _ in 0..20_000 {
            std::hint::black_box(PodReading::parse(std::hint::black_box(text)).expect("ours"));
        }
        println!("{} bytes: {:?} each", text.len(), began.elapsed() / 20_000);
    }
}
