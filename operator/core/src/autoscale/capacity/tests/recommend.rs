use std::sync::Arc;

use pagoda_crds::api::Metric;
use proptest::prelude::*;

use super::play::{Dice, Engine, Pod, Request, Requests, Speed};
use crate::{
    autoscale::{
        PodSeen,
        capacity::{
            Advice, Asked, Basis, Learner,
            correction::{Correction, Standing},
            supply::{Kind, needed},
        },
    },
    validate::{TargetSetting, TargetValue},
};

const WINDOW: u64 = 30_000;
const SPEED: Speed = Speed {
    prompt_rate: 5_000.0,
    step: 0.02,
    sequence: 0.0005,
    noise: 0.1,
};
const ONE: Requests = Requests {
    rate: 1.0,
    prompt: 1_000.0,
    generated: 150.0,
    hit: 0.0,
};

fn target(metric: Metric, percentile: u32, milliseconds: u32) -> TargetSetting {
    TargetSetting {
        metric,
        value: TargetValue::Latency {
            percentile,
            milliseconds,
        },
    }
}

fn ttft(milliseconds: u32) -> TargetSetting {
    target(Metric::TimeToFirstToken, 95, milliseconds)
}

struct Service {
    learner: Learner,
    pods: Vec<Pod>,
    second: u64,
    made: u64,
}

impl Service {
    fn new(pods: usize, engine: Engine) -> Self {
        let mut service = Self {
            learner: Learner::default(),
            pods: Vec::new(),
            second: 0,
            made: 0,
        };
        service.scale(pods, engine);
        service
    }

    fn scale(&mut self, pods: usize, engine: Engine) {
        self.pods.truncate(pods);
        while self.pods.len() < pods {
            self.made += 1;
            let mut pod = Pod::new(
                &format!("pod-{:03}", self.made),
                SPEED,
                engine,
                77 * self.made,
            );
            pod.play(self.second as f64, &Requests { rate: 0.0, ..ONE });
            self.pods.push(pod);
        }
    }

    /// Plays on, all pods sharing the rate; returns the last advice.
    fn run(&mut self, seconds: u64, requests: &Requests, target: &TargetSetting) -> Option<Advice> {
        let each = Requests {
            rate: requests.rate / self.pods.len() as f64,
            ..*requests
        };
        let mut advice = None;
        for _ in 0..seconds {
            self.second += 1;
            for pod in &mut self.pods {
                pod.play(self.second as f64, &each);
            }
            let seen = self.seen();
            self.learner.note(&seen, WINDOW, self.second * 1000);
            let asked = Asked {
                rate_milli: (requests.rate * 1000.0) as u64,
                queued: 0,
            };
            advice = self
                .learner
                .recommend(target, asked, &seen, self.second * 1000);
        }
        advice
    }

    fn seen(&self) -> Vec<PodSeen> {
        self.pods.iter().map(Pod::seen).collect()
    }
}

/// The 95th percentile of the times to first token of so many pods behind a gateway that sends each request to the one
/// of two that has less to do.
fn played_percentile(pods: usize, requests: &Requests, seconds: f64) -> f64 {
    let none = Requests {
        rate: 0.0,
        ..*requests
    };
    let mut pods: Vec<Pod> = (0..pods as u64)
        .map(|i| Pod::new("a", SPEED, Engine::Pagoda, 1 + 2 * i))
        .collect();
    let (mut dice, mut now) = (Dice(99), 0.0);
    while now < seconds {
        now += dice.exponential(1.0 / requests.rate);
        let (a, b) = (dice.below(pods.len()), dice.below(pods.len()));
        for at in [a, b] {
            pods[at].play(now, &none);
        }
        let at = if pods[a].in_flight() <= pods[b].in_flight() {
            a
        } else {
            b
        };
        pods[at].offer(Request::draw(&mut dice, requests, now));
    }
    let mut all: Vec<f64> = pods
        .iter()
        .flat_map(|pod| pod.first_token_seconds.clone())
        .collect();
    all.sort_by(f64::total_cmp);
    all[all.len() * 95 / 100]
}

#[test]
fn as_many_pods_as_advised_keep_the_target_and_few_fewer_do_not() {
    for (rate, millis) in [(20.0, 1_000), (8.0, 1_500), (6.0, 900)] {
        let requests = Requests { rate, ..ONE };
        let mut service = Service::new(rate as usize, Engine::Pagoda);
        let advice = service
            .run(150, &requests, &ttft(millis))
            .expect("enough was seen");
        assert_eq!(advice.basis, Basis::Capacity);
        let (enough, target) = (advice.replicas as usize, f64::from(millis) / 1000.0);
        let kept = played_percentile(enough, &requests, 300.0);
        assert!(kept < target * 1.15, "{kept} of {target}: {advice:?}");
        let fewer = played_percentile(enough * 7 / 10, &requests, 300.0);
        assert!(fewer > target, "{fewer} of {target}: {advice:?}");
    }
}

#[test]
fn demand_follows_the_rate() {
    let target = ttft(800);
    let mut service = Service::new(10, Engine::Pagoda);
    service.run(120, &Requests { rate: 10.0, ..ONE }, &target);
    let seen = service.seen();
    let mut at = |rate: u64| {
        let asked = Asked {
            rate_milli: rate * 1000,
            queued: 0,
        };
        service
            .learner
            .recommend(&target, asked, &seen, 120_000)
            .expect("known")
            .replicas
    };
    let (ten, twenty, hundred) = (at(10), at(20), at(100));
    assert!(twenty >= 2 * ten - 1 && twenty <= 2 * ten, "{ten} {twenty}");
    assert!(
        hundred >= 10 * ten - 9 && hundred <= 10 * ten,
        "{ten} {hundred}"
    );
}

#[test]
fn a_backlog_is_served_beside_what_comes() {
    let target = ttft(800);
    let mut service = Service::new(10, Engine::Pagoda);
    service.run(120, &Requests { rate: 10.0, ..ONE }, &target);
    let seen = service.seen();
    let mut with = |queued: u64| {
        let asked = Asked {
            rate_milli: 10_000,
            queued,
        };
        service
            .learner
            .recommend(&target, asked, &seen, 120_000)
            .expect("known")
            .replicas
    };
    assert!(with(200) >= 3 * with(0) / 2 - 1);
}

#[test]
fn a_falling_hit_rate_asks_for_more_pods_before_latency_does() {
    let target = ttft(1_500);
    let mut service = Service::new(10, Engine::Pagoda);
    let cached = Requests {
        rate: 12.0,
        hit: 0.9,
        ..ONE
    };
    let before = service.run(200, &cached, &target).expect("known");
    let after = service
        .run(10, &Requests { hit: 0.0, ..cached }, &target)
        .expect("known");
    assert!(
        after.replicas > before.replicas + before.replicas / 4,
        "{before:?} {after:?}"
    );
    assert!(
        after.measured_millis.is_some_and(|millis| millis < 1_500),
        "{after:?}"
    );
}

#[test]
fn a_target_that_no_pod_can_keep_is_said_and_not_chased() {
    let target = ttft(50);
    let mut service = Service::new(4, Engine::Pagoda);
    let requests = Requests { rate: 4.0, ..ONE };
    let advice = service.run(120, &requests, &target).expect("known");
    let Basis::Unreachable { least_millis } = advice.basis else {
        panic!("{advice:?}")
    };
    assert!(least_millis > 300, "{advice:?}");
    let kept = service
        .run(1, &requests, &ttft(1_000))
        .expect("known")
        .replicas;
    assert!(advice.replicas <= 6 * kept, "{advice:?} against {kept}");
}

#[test]
fn time_between_tokens_bounds_how_many_decode_at_once() {
    let mut service = Service::new(8, Engine::Pagoda);
    let requests = Requests {
        rate: 16.0,
        prompt: 50.0,
        ..ONE
    };
    service.run(180, &requests, &ttft(2_000));
    let wide = target(Metric::InterTokenLatency, 90, 40);
    let narrow = target(Metric::InterTokenLatency, 90, 24);
    let many = service.run(1, &requests, &narrow).expect("known").replicas;
    let few = service.run(1, &requests, &wide).expect("known").replicas;
    assert!(many > few, "{many} {few}");
}

#[test]
fn nothing_known_is_no_advice_and_nothing_asked_is_one_pod() {
    let mut learner = Learner::default();
    let asked = Asked {
        rate_milli: 1_000,
        queued: 0,
    };
    assert_eq!(learner.recommend(&ttft(500), asked, &[], 0), None);
    let idle = learner
        .recommend(&ttft(500), Asked::default(), &[], 0)
        .expect("idle");
    assert_eq!((idle.replicas, idle.basis), (1, Basis::Idle));
    let other = TargetSetting {
        metric: Metric::InFlightRequests,
        value: TargetValue::Each { milli: 1 },
    };
    assert_eq!(learner.recommend(&other, asked, &[], 0), None);
}

#[test]
fn without_a_model_the_measured_percentile_at_most_doubles_and_waits_for_its_pods() {
    let mut service = Service::new(2, Engine::Vllm);
    for pod in &mut service.pods {
        pod.hide_what_teaches();
    }
    let (slow, requests) = (ttft(100), Requests { rate: 6.0, ..ONE });
    let advice = service.run(60, &requests, &slow).expect("measured");
    assert_eq!((advice.basis, advice.replicas), (Basis::Measured, 4));
    service.scale(4, Engine::Vllm);
    for pod in &mut service.pods {
        pod.hide_what_teaches();
    }
    assert_eq!(
        service.run(10, &requests, &slow),
        None,
        "the new pods count for nothing yet"
    );
    assert_eq!(service.run(1, &requests, &ttft(60_000)), None);
    service.run(60, &requests, &slow);
    assert_eq!(
        service.run(1, &requests, &ttft(60_000)).map(|a| a.replicas),
        Some(3),
        "one fewer at a time"
    );
}

#[test]
fn pods_of_a_new_revision_count_as_the_old_ones_on_the_same_hardware() {
    let target = ttft(800);
    let mut service = Service::new(6, Engine::Pagoda);
    let requests = Requests { rate: 6.0, ..ONE };
    let before = service.run(120, &requests, &target).expect("known");
    let mut seen = service.seen();
    for pod in &mut seen[..3] {
        pod.revision = Arc::from("two");
        pod.name = format!("new-{}", pod.name).into();
    }
    let now = service.second * 1000 + 1000;
    service.learner.note(&seen, WINDOW, now);
    let asked = Asked {
        rate_milli: 6_000,
        queued: 0,
    };
    let after = service
        .learner
        .recommend(&target, asked, &seen, now)
        .expect("known");
    assert!(
        after.replicas.abs_diff(before.replicas) <= 1,
        "{before:?} {after:?}"
    );
}

#[test]
fn slow_pods_count_by_what_they_carry() {
    let kind = |rate: f64, pods: u32| Kind { rate, pods };
    assert_eq!(
        needed(10.0, &[kind(2.0, 3), kind(1.0, 4)]),
        Some(7),
        "just enough"
    );
    assert_eq!(
        needed(12.0, &[kind(2.0, 3), kind(1.0, 4)]),
        Some(9),
        "two more typical ones"
    );
    assert_eq!(
        needed(4.0, &[kind(2.0, 3), kind(1.0, 4)]),
        Some(4),
        "the slow ones may be left"
    );
    assert_eq!(needed(5.0, &[kind(2.0, 3), kind(1.0, 4)]), Some(5));
    assert_eq!(needed(5.0, &[kind(2.0, 0)]), Some(3), "none there yet");
    assert_eq!(needed(5.0, &[]), None);
    assert_eq!(needed(5.0, &[kind(0.0, 3)]), None);
}

#[test]
fn a_miss_corrects_only_while_the_pods_should_have_sufficed() {
    let note = |correction: &mut Correction,
                miss: Option<f64>,
                load: f64,
                seconds: std::ops::Range<u64>| {
        for second in seconds {
            correction.note(
                &Standing {
                    miss,
                    load,
                    backlog: false,
                    window: WINDOW,
                },
                second * 1000,
            );
        }
    };
    let mut short = Correction::default();
    note(&mut short, Some(3.0), 1.5, 0..600);
    assert!(
        (short.factor() - 1.0).abs() < 1e-9,
        "too few pods say nothing of each"
    );
    let mut late = Correction::default();
    for second in 0..600 {
        let standing = Standing {
            miss: Some(3.0),
            load: 0.5,
            backlog: true,
            window: WINDOW,
        };
        late.note(&standing, second * 1000);
    }
    assert!(
        (late.factor() - 1.0).abs() < 1e-9,
        "who waited for pods tells nothing of them"
    );
    let mut wrong = Correction::default();
    note(&mut wrong, Some(1.5), 0.9, 0..300);
    assert!(
        wrong.factor() < 0.7 && wrong.factor() >= 0.4,
        "{}",
        wrong.factor()
    );
    let before = wrong.factor();
    note(&mut wrong, None, 0.9, 300..7_500);
    assert!(
        wrong.factor() > before + 0.1,
        "forgotten bit by bit: {}",
        wrong.factor()
    );
    let mut fast = Correction::default();
    note(&mut fast, Some(0.2), 0.95, 0..600);
    assert!(
        fast.factor() > 1.1 && fast.factor() <= 1.5001,
        "{}",
        fast.factor()
    );
    let mut idle = Correction::default();
    note(&mut idle, Some(0.2), 0.2, 0..600);
    assert!(
        (idle.factor() - 1.0).abs() < 1e-9,
        "a pod that does little says little"
    );
}

proptest! {
    #[test]
    fn advice_is_a_number_of_pods_whatever_is_asked(
        rate_milli in any::<u64>(), queued in any::<u64>(), milliseconds in 1u32..u32::MAX, percentile in 0u32..200,
        first in any::<bool>(), step in 0i64..i64::MAX, sequence in 0i64..i64::MAX, prefill in any::<i64>(),
    ) {
        let status = pagoda_crds::api::CapacityStatus {
            revision: "one".into(), hardware: "gpu".into(), tokens_per_second: Some(step),
            prefill_tokens_per_second: Some(prefill), decode_step_microseconds: Some(step),
            decode_sequence_microseconds: Some(sequence), start_milliseconds: Some(prefill),
        };
        let mut learner = Learner::restore(&[status]);
        let mut pod = Pod::new("a", SPEED, Engine::Pagoda, 3);
        for second in 0..20_u64 {
            pod.play(second as f64, &Requests { rate: 3.0, generated: 10.0, ..ONE });
            learner.note(&[pod.seen()], WINDOW, second * 1000);
        }
        let metric = if first { Metric::TimeToFirstToken } else { Metric::InterTokenLatency };
        let advice = learner.recommend(
            &target(metric, percentile, milliseconds), Asked { rate_milli, queued }, &[pod.seen()], 20_000);
        prop_assert!(advice.is_none_or(|advice| advice.replicas >= 1));
    }

    #[test]
    fn more_is_never_carried_by_fewer(
        kinds in proptest::collection::vec((0.01f64..100.0, 0u32..50), 1..5), rate in 0.0f64..1e4, more in 0.0f64..1e4,
    ) {
        let kinds: Vec<Kind> = kinds.into_iter().map(|(rate, pods)| Kind { rate, pods }).collect();
        let (few, many) = (needed(rate, &kinds), needed(rate + more, &kinds));
        prop_assert!(few <= many, "{few:?} {many:?}");
    }
}
