use super::*;

const MS: Nanos = MILLISECOND;

#[test]
fn a_lone_request_takes_its_prompt_in_chunks_and_then_a_step_a_token() {
    // 600 tokens in steps of 256, 256 and 88; then four more tokens.
    let (bench, times) = run(profile(), &[request(0, 600, 5)], None);
    assert_eq!(times, [(600 * MS, 640 * MS)]);
    assert_eq!(bench.pod.counters().generated_tokens, 5);
    assert_eq!(bench.pod.counters().prefill_tokens, 600);
    assert_eq!(bench.pod.counters().decode_steps, 4);
    assert_eq!(bench.pod.counters().busy_nanos, 640 * MS);
}

#[test]
fn an_answer_of_one_token_ends_with_its_prompt() {
    let (_, times) = run(profile(), &[request(5, 100, 1)], None);
    assert_eq!(times, [(5 + 100 * MS, 5 + 100 * MS)]);
}

#[test]
fn a_sequence_of_the_batch_adds_to_a_step_what_it_costs() {
    let profile = PodProfile {
        sequence_nanos: MS,
        ..profile()
    };
    // Both prompts go in one step of 0.2 s; then two decode together, 12 ms a step.
    let arrivals = [request(0, 100, 3), request(0, 100, 3)];
    let (_, times) = run(profile, &arrivals, None);
    // The first begins alone at once; the second's prompt goes beside the first's decode: 11 + 100 ms.
    assert_eq!(times[0], (100 * MS, (100 + 111 + 12) * MS));
    assert_eq!(times[1], (211 * MS, (211 + 12 + 11) * MS));
}

#[test]
fn a_prompt_that_comes_lengthens_the_steps_of_those_who_decode() {
    let arrivals = [request(0, 100, 100), request(300 * MS, 250, 1)];
    let (_, times) = run(profile(), &arrivals, None);
    // It comes at a step's end, whose next one is under way then: it joins at 310 ms, one of 260 ms, with a budget of
    // 255 beside one decode.
    assert_eq!(times[1].0, (310 + 260) * MS);
    // 99 further tokens: 98 steps of 10 ms and one of 260.
    assert_eq!(times[0].1, (100 + 98 * 10 + 260) * MS);
}

#[test]
fn more_than_the_places_wait_for_the_first_to_leave() {
    let profile = PodProfile {
        max_sequences: 1,
        ..profile()
    };
    let arrivals = [request(0, 100, 11), request(0, 100, 11)];
    let (_, times) = run(profile, &arrivals, None);
    assert_eq!(times[0], (100 * MS, 200 * MS));
    assert_eq!(times[1], (300 * MS, 400 * MS));
}

#[test]
fn a_request_waits_while_its_prompt_does_not_fit_the_kv_cache() {
    let profile = PodProfile {
        kv_blocks: 10,
        ..profile()
    };
    // 100 tokens are 7 blocks, and one must be left for each that runs.
    let arrivals = [request(0, 100, 11), request(0, 100, 11)];
    let (_, times) = run(profile, &arrivals, None);
    assert_eq!(times[0].1, 200 * MS);
    assert_eq!(times[1].0, 300 * MS);
}

#[test]
fn the_newest_sequence_loses_its_blocks_to_the_oldest_and_is_computed_again() {
    let profile = PodProfile {
        kv_blocks: 6,
        ..profile()
    };
    // Two of 2 blocks each grow to 4: there is room for one of them.
    let arrivals = [request(0, 32, 33), request(0, 32, 33)];
    let (bench, times) = run(profile, &arrivals, None);
    assert!(bench.pod.counters().preemptions > 0);
    assert!(times[0].1 < times[1].1);
    assert_eq!(bench.pod.counters().generated_tokens, 66);
}

#[test]
fn a_prompt_that_begins_like_an_earlier_one_skips_what_is_kept_of_it() {
    let profile = PodProfile {
        prefix_cache: true,
        step_tokens: 4096,
        ..profile()
    };
    let with = |at, ids: &[u64]| Arrival {
        prefix: ids.into(),
        ..request(at, 1100, 2)
    };
    let arrivals = [
        with(0, &[1, 2]),
        with(10 * SECOND, &[1, 2]),
        with(20 * SECOND, &[1, 3]),
    ];
    let (bench, times) = run(profile, &arrivals, None);
    let waited: Vec<Nanos> = times
        .iter()
        .zip(&arrivals)
        .map(|(t, a)| (t.0 - a.at) / MS)
        .collect();
    assert_eq!(waited, [1100, 1100 - 1024, 1100 - 512]);
    assert_eq!(bench.pod.counters().cache_hits, 1024 + 512);
    assert_eq!(bench.pod.counters().prompt_tokens, 3300);
}

#[test]
fn a_prompt_that_is_kept_whole_still_computes_its_end() {
    let profile = PodProfile {
        prefix_cache: true,
        ..profile()
    };
    let whole = |at| Arrival {
        prefix: [7, 8].into(),
        ..request(at, 1024, 1)
    };
    let (bench, _) = run(profile, &[whole(0), whole(10 * SECOND)], None);
    assert_eq!(bench.pod.counters().cache_hits, 512);
}

#[test]
fn what_is_kept_of_prompts_gives_way_to_those_that_run() {
    let profile = PodProfile {
        prefix_cache: true,
        kv_blocks: 80,
        ..profile()
    };
    let of = |at, ids: &[u64]| Arrival {
        prefix: ids.into(),
        ..request(at, 1025, 2)
    };
    // 65 blocks each, 64 of them kept: the second takes the room of the first's.
    let arrivals = [
        of(0, &[1, 2]),
        of(10 * SECOND, &[3, 4]),
        of(20 * SECOND, &[1, 2]),
    ];
    let (bench, _) = run(profile, &arrivals, None);
    assert_eq!(bench.pod.counters().cache_hits, 0);
}

#[test]
fn a_step_takes_what_the_simulated_executor_takes() {
    let profile = profile();
    assert_eq!(profile.step(0, 500), 500 * MS);
    assert_eq!(profile.step(7, 0), 10 * MS);
    assert_eq!(profile.step(7, 500), 510 * MS);
}

#[test]
fn limits_that_cannot_work_are_refused_with_what_to_change() {
    let small = PodProfile {
        step_tokens: 4,
        ..profile()
    };
    let error = small.check().expect_err("too small");
    assert!(error.to_string().contains("raise engine.stepTokens"));
    let slow = PodProfile {
        prefill_tokens_per_second: 0.0,
        ..profile()
    };
    assert!(slow.check().is_err());
    let odd = PodProfile {
        block_tokens: 24,
        ..profile()
    };
    assert!(odd.check().is_err());
}
