//! What pods carry, in figures that change seldom enough to be written.

use pagoda_crds::api::CapacityStatus;

use super::load::two_digits;

/// A change of less is no news.
const NEWS_PERCENT: i64 = 20;
/// A sequence adds so little to a step that it may double without anybody feeling it: a change of less than this share of the
/// step is no news either.
const SEQUENCE_NEWS_PERCENT: i64 = 2;
/// As many as a status holds.
const MOST: usize = 16;

/// What the status says of what was learned, given what it said before.
pub fn told(before: &[CapacityStatus], now: Vec<CapacityStatus>) -> Vec<CapacityStatus> {
    let same = |a: &CapacityStatus, b: &CapacityStatus| {
        (&a.revision, &a.hardware) == (&b.revision, &b.hardware)
    };
    let none = CapacityStatus::default();
    let one = |now: CapacityStatus| {
        let before = before
            .iter()
            .find(|before| same(before, &now))
            .unwrap_or(&none);
        entry(before, now)
    };
    now.into_iter().take(MOST).map(one).collect()
}

fn entry(before: &CapacityStatus, now: CapacityStatus) -> CapacityStatus {
    let step = now
        .decode_step_microseconds
        .or(before.decode_step_microseconds);
    let least = step.unwrap_or(0) * SEQUENCE_NEWS_PERCENT / 100;
    CapacityStatus {
        tokens_per_second: figure(before.tokens_per_second, now.tokens_per_second, 0),
        prefill_tokens_per_second: figure(
            before.prefill_tokens_per_second,
            now.prefill_tokens_per_second,
            0,
        ),
        decode_step_microseconds: figure(
            before.decode_step_microseconds,
            now.decode_step_microseconds,
            0,
        ),
        decode_sequence_microseconds: figure(
            before.decode_sequence_microseconds,
            now.decode_sequence_microseconds,
            least,
        ),
        start_milliseconds: figure(before.start_milliseconds, now.start_milliseconds, 0),
        revision: now.revision,
        hardware: now.hardware,
    }
}

/// The new figure to two digits if it says something that the old one did not.
fn figure(before: Option<i64>, now: Option<i64>, least: i64) -> Option<i64> {
    let (Some(old), Some(new)) = (before, now) else {
        return now.map(|now| two_digits(now as f64)).or(before);
    };
    let change = old.abs_diff(new);
    let small = change * 100 < NEWS_PERCENT as u64 * old.max(new).unsigned_abs();
    Some(if small || change <= least.unsigned_abs() {
        old
    } else {
        two_digits(new as f64)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn learned(step: i64, sequence: i64) -> CapacityStatus {
        CapacityStatus {
            revision: "r".into(),
            hardware: "gpu".into(),
            decode_step_microseconds: Some(step),
            decode_sequence_microseconds: Some(sequence),
            ..CapacityStatus::default()
        }
    }

    #[test]
    fn small_changes_are_no_news_and_large_ones_are_told_to_two_digits() {
        let told_first = told(&[], vec![learned(20_345, 117)]);
        assert_eq!(told_first, [learned(20_000, 120)]);
        assert_eq!(told(&told_first, vec![learned(23_000, 300)]), told_first);
        assert_eq!(
            told(&told_first, vec![learned(31_234, 900)]),
            [learned(31_000, 900)]
        );
    }

    #[test]
    fn what_is_not_known_at_the_moment_stands_and_what_is_gone_goes() {
        let before = [learned(20_000, 120)];
        let unknown = CapacityStatus {
            decode_step_microseconds: None,
            decode_sequence_microseconds: None,
            ..learned(0, 0)
        };
        assert_eq!(told(&before, vec![unknown]), before);
        assert_eq!(told(&before, vec![]), []);
    }

    #[test]
    fn no_more_is_told_than_a_status_holds() {
        assert_eq!(told(&[], vec![learned(1, 1); 40]).len(), MOST);
    }

    proptest! {
        #[test]
        fn what_wavers_is_written_once(step in 1_000i64..1_000_000_000, waver in proptest::collection::vec(0.95f64..1.05, 1..20)) {
            let mut status = told(&[], vec![learned(step, 10)]);
            let first = status.clone();
            for factor in waver {
                status = told(&status, vec![learned((step as f64 * factor) as i64, 10)]);
                prop_assert_eq!(&status, &first);
            }
        }
    }
}
