use super::*;
use crate::{testing, validate::validate};
use serde_json::{Value, json};

const MONDAY: i64 = 4 * 86_400;

fn with(schedules: &Value) -> ScalingSettings {
    let spec = json!({"engine": {"executor": "simulated"},
        "scaling": {"minReplicas": 0, "maxReplicas": 10, "idleSeconds": 5, "schedules": schedules}});
    testing::checked(spec).scaling
}

fn office_hours() -> ScalingSettings {
    with(
        &json!([{"name": "office", "cron": "0 8 * * 1-5", "timeZone": "Europe/Berlin", "durationMinutes": 600, "minReplicas": 3}]),
    )
}

fn decided(settings: &ScalingSettings, current: u32, unix_seconds: i64) -> Decision {
    let at = Moment {
        now: 0,
        unix_seconds,
    };
    decide(settings, &seen(current, 0, 0), History::default(), at).0
}

/// Seconds since 1970 of a moment such as `2026-03-29T02:30:00[Europe/Berlin]`.
fn unix(text: &str) -> i64 {
    let zoned: jiff::Zoned = text.parse().expect("a moment of the test");
    zoned.timestamp().as_second()
}

#[test]
fn a_schedule_sets_the_minimum_while_it_lasts() {
    let settings = office_hours();
    let berlin = |hours: i64| MONDAY + hours * 3600;
    // 1970 knew no summer time: Berlin was an hour ahead.
    assert_eq!(decided(&settings, 0, berlin(7) - 1).replicas, 0);
    let begins = decided(&settings, 0, berlin(7));
    assert_eq!((begins.replicas, begins.reason), (3, Reason::Scheduled));
    assert_eq!(
        begins.to_string(),
        "Scheduled: InFlightRequests 0, target 8 a pod; schedule office asks for at least 3"
    );
    assert_eq!(decided(&settings, 0, berlin(17) - 1).replicas, 3);
    assert_eq!(decided(&settings, 0, berlin(17)).replicas, 0);
    assert_eq!(
        decided(&settings, 0, berlin(5 * 24 + 10)).replicas,
        0,
        "a Saturday"
    );
}

#[test]
fn a_service_goes_to_zero_only_once_its_schedule_is_over() {
    let settings = office_hours();
    let (mut history, mut current) = (History::default(), 3);
    for second in 0..1200_u64 {
        let at = Moment {
            now: second * 1000,
            unix_seconds: MONDAY + 17 * 3600 - 600 + second as i64,
        };
        let (decision, next) = decide(&settings, &seen(current, 0, 0), history, at);
        (history, current) = (next, decision.replicas);
        assert_eq!(current > 0, second < 600, "after {second} s");
        assert!(decision.next_look <= at.now + 5000);
    }
}

#[test]
fn of_several_schedules_the_largest_minimum_counts() {
    let settings = with(&json!([
        {"name": "night", "cron": "0 0 * * *", "durationMinutes": 1440, "minReplicas": 1},
        {"name": "noon", "cron": "0 12 * * *", "durationMinutes": 60, "minReplicas": 4}
    ]));
    let at = |hours: i64| {
        let decision = decided(&settings, 1, MONDAY + hours * 3600 + 1);
        (decision.replicas, decision.inputs.schedule)
    };
    assert_eq!(at(11), (1, Some("night".into())));
    assert_eq!(at(12), (4, Some("noon".into())));
    assert_eq!(at(13), (1, Some("night".into())));
}

#[test]
fn a_minimum_below_that_of_the_spec_changes_nothing() {
    let mut settings = office_hours();
    settings.min_replicas = 5;
    let decision = decided(&settings, 5, MONDAY + 9 * 3600);
    assert_eq!((decision.replicas, decision.inputs.schedule), (5, None));
}

#[test]
fn a_beginning_that_summer_time_skips_counts_from_after_the_gap() {
    let settings = with(
        &json!([{"name": "s", "cron": "30 2 * * *", "timeZone": "Europe/Berlin", "durationMinutes": 60, "minReplicas": 2}]),
    );
    // On 29 March 2026 clocks went from 2:00 to 3:00.
    let at = |text: &str| decided(&settings, 0, unix(text)).replicas;
    assert_eq!(at("2026-03-29T01:59:59[Europe/Berlin]"), 0);
    assert_eq!(at("2026-03-29T03:29:59[Europe/Berlin]"), 0);
    assert_eq!(at("2026-03-29T03:30:00[Europe/Berlin]"), 2);
    assert_eq!(at("2026-03-29T04:29:59[Europe/Berlin]"), 2);
    assert_eq!(at("2026-03-29T04:30:00[Europe/Berlin]"), 0);
}

#[test]
fn a_beginning_that_comes_twice_counts_once() {
    let settings = with(
        &json!([{"name": "s", "cron": "30 2 * * *", "timeZone": "Europe/Berlin", "durationMinutes": 45, "minReplicas": 2}]),
    );
    // On 25 October 2026 clocks went from 3:00 back to 2:00: 2:30 in summer time is 0:30 UTC, in winter time 1:30 UTC.
    let first = unix("2026-10-25T00:30:00Z[UTC]");
    for minute in -60..180 {
        let on = (0..45).contains(&minute);
        assert_eq!(
            decided(&settings, 0, first + minute * 60).replicas > 0,
            on,
            "minute {minute}"
        );
    }
}

#[test]
fn a_clock_that_is_set_is_followed() {
    let settings = office_hours();
    let mut history = History::default();
    for (hours, expected) in [(9, 3), (20, 0), (9, 3), (130, 0), (8, 3)] {
        let at = Moment {
            now: 0,
            unix_seconds: MONDAY + hours * 3600,
        };
        let (decision, next) = decide(&settings, &seen(0, 0, 0), history, at);
        assert_eq!(decision.replicas, expected, "at {hours} h");
        history = next;
    }
}

#[test]
fn a_changed_spec_is_followed_at_once() {
    let at = Moment {
        now: 0,
        unix_seconds: MONDAY + 9 * 3600,
    };
    let (_, history) = decide(&office_hours(), &seen(3, 0, 0), History::default(), at);
    let other = with(
        &json!([{"name": "office", "cron": "0 8 * * 1-5", "durationMinutes": 600, "minReplicas": 7}]),
    );
    assert_eq!(decide(&other, &seen(3, 0, 0), history, at).0.replicas, 7);
}

#[test]
fn schedules_that_cannot_be_kept_are_refused_with_what_to_write() {
    let refused = |schedule: Value| {
        let spec = json!({"engine": {"executor": "simulated"}, "scaling": {"maxReplicas": 10, "schedules": [schedule]}});
        validate(&testing::service(spec))
            .expect_err("cannot be kept")
            .to_string()
    };
    let one = |cron: &str, zone: &str, min: u32| json!({"name": "s", "cron": cron, "timeZone": zone, "durationMinutes": 60, "minReplicas": min});
    for (schedule, word) in [
        (one("61 8 * * *", "UTC", 1), "cannot be read: "),
        (one("0 8 * * MOO", "UTC", 1), "cannot be read: "),
        (one("0 8 * *", "UTC", 1), "five fields"),
        (one("0 8 * * * Asia/Tokyo", "UTC", 1), "five fields"),
        (one("0 8 31 2 *", "UTC", 1), "never comes"),
        (one("0 8 * * *", "Mars/Base", 1), "no IANA time zone"),
        (one("0 8 * * *", "UTC", 11), "above scaling.maxReplicas"),
        (one("0 8 * * *", "UTC", 0), "at least 1"),
    ] {
        let message = refused(schedule.clone());
        assert!(
            message.starts_with("scaling.schedules: s: ") && message.contains(word),
            "{schedule}: {message}"
        );
        assert!(!message.contains('\n'), "{message:?}");
    }
}

#[test]
fn the_last_day_of_february_comes() {
    let settings = with(
        &json!([{"name": "leap", "cron": "0 0 29 2 *", "durationMinutes": 1440, "minReplicas": 2}]),
    );
    assert_eq!(
        decided(&settings, 0, unix("2028-02-29T12:00:00Z[UTC]")).replicas,
        2
    );
    assert_eq!(
        decided(&settings, 0, unix("2027-02-28T12:00:00Z[UTC]")).replicas,
        0
    );
}
