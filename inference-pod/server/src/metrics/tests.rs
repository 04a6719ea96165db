use super::*;

fn metrics() -> Metrics {
    let metrics = Metrics::new("m");
    metrics.finished("stop", None);
    metrics.first_token(7, Duration::from_millis(3));
    metrics.set_load(pagoda_engine_core::Load {
        running: 2,
        waiting: 1,
        used_blocks: 5,
        total_blocks: 10,
        ..pagoda_engine_core::Load::default()
    });
    metrics
}

#[test]
fn carries_the_names_that_dashboards_and_autoscalers_read() {
    let text = metrics().prometheus_text().unwrap();
    for line in [
        "# TYPE vllm:request_success_total counter",
        "vllm:request_success_total{model_name=\"m\",finished_reason=\"stop\"} 1",
        "vllm:num_requests_running{model_name=\"m\"} 2",
        "vllm:num_requests_waiting{model_name=\"m\"} 1",
        "vllm:kv_cache_usage_perc{model_name=\"m\"} 0.5",
        "vllm:prompt_tokens_total{model_name=\"m\"} 7",
        "pagoda_prompt_tokens_total{model_name=\"m\"} 7",
        "vllm:time_to_first_token_seconds_bucket{model_name=\"m\",le=\"0.005\"} 1",
    ] {
        assert!(
            text.lines().any(|other| other == line),
            "{line} is not in\n{text}"
        );
    }
    assert!(!text.contains("# EOF"));
}

#[test]
fn the_load_is_told_in_a_text_short_enough_for_every_second() {
    let metrics = metrics();
    let step = StepShape {
        prefill_tokens: 500,
        decode_tokens: 3,
    };
    metrics.step(step, Duration::from_millis(250));
    let text = metrics.load_text().unwrap();
    for line in [
        "vllm:num_requests_running 2",
        "vllm:request_success_total{finished_reason=\"stop\"} 1",
        "vllm:time_to_first_token_seconds_bucket{le=\"0.005\"} 1",
        "pagoda_engine_prefill_tokens_total 500",
        "pagoda_engine_decode_steps_total 1",
        "pagoda_engine_decode_tokens_total 3",
        "pagoda_engine_busy_seconds_total 0.25",
    ] {
        assert!(text.lines().any(|other| other == line), "{line}\n{text}");
    }
    let whole = metrics.prometheus_text().unwrap();
    assert!(
        text.len() * 4 < whole.len(),
        "{} of {}",
        text.len(),
        whole.len()
    );
}

#[test]
fn every_sample_of_the_older_format_belongs_to_the_type_line_above_it() {
    let text = metrics().prometheus_text().unwrap();
    let mut current = "";
    for line in text.lines() {
        if let Some(rest) = line.strip_prefix("# TYPE ") {
            current = rest.split(' ').next().unwrap();
        } else if !line.starts_with('#') {
            let name = line.split(['{', ' ']).next().unwrap();
            let suffix = name
                .strip_prefix(current)
                .unwrap_or_else(|| panic!("{name} under {current}"));
            assert!(
                ["", "_bucket", "_sum", "_count"].contains(&suffix),
                "{name} under {current}"
            );
        }
    }
}

#[test]
fn what_the_scheduler_counts_is_told_once_however_often_it_is_looked_at() {
    let metrics = metrics();
    let mut counters = pagoda_engine_core::Counters {
        prefix_queries: 100,
        prefix_hits: 60,
        drafted_tokens: 9,
        accepted_tokens: 4,
        ..pagoda_engine_core::Counters::default()
    };
    metrics.set_counters(&counters);
    metrics.set_counters(&counters);
    counters.prefix_hits = 70;
    metrics.set_counters(&counters);
    let (whole, load) = (
        metrics.prometheus_text().unwrap(),
        metrics.load_text().unwrap(),
    );
    for line in [
        "vllm:prefix_cache_queries_total{model_name=\"m\"} 100",
        "vllm:prefix_cache_hits_total{model_name=\"m\"} 70",
        "pagoda_prefix_cache_hits_total{model_name=\"m\"} 70",
        "pagoda_draft_tokens_total{model_name=\"m\"} 9",
        "pagoda_draft_accepted_tokens_total{model_name=\"m\"} 4",
    ] {
        assert!(whole.lines().any(|other| other == line), "{line}\n{whole}");
    }
    for line in [
        "vllm:prefix_cache_queries_total 100",
        "vllm:prefix_cache_hits_total 70",
    ] {
        assert!(load.lines().any(|other| other == line), "{line}\n{load}");
    }
}

#[test]
fn places_in_blocks_that_hold_no_token_are_told_as_a_part() {
    let metrics = metrics();
    metrics.set_engine("cpu", false, 16, 10, Duration::ZERO);
    metrics.set_load(pagoda_engine_core::Load {
        used_blocks: 5,
        total_blocks: 10,
        unfilled_tokens: 8,
        ..pagoda_engine_core::Load::default()
    });
    let text = metrics.prometheus_text().unwrap();
    assert!(
        text.contains("pagoda_kv_unfilled_perc{model_name=\"m\"} 0.1\n"),
        "{text}"
    );
}
