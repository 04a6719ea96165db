//! `spec.scaling.schedules` as something that can be asked when it begins.

use std::sync::Arc;

use cronexpr::{Crontab, parse_crontab};
use jiff::{
    Timestamp,
    civil::DateTime,
    tz::{TimeZone, TimeZoneDatabase},
};
use pagoda_crds::api::Schedule;

use super::ValidateError;

/// The first day of a leap year, so that February has its 29th in sight.
const LEAP_YEAR: i64 = 1_704_067_200;
const HOUR_SECONDS: i64 = 3600;
/// Clocks are changed by less than this.
const CLOCK_CHANGE_SECONDS: i64 = 3 * HOUR_SECONDS;
/// As many beginnings as there can be around a change of the clock.
const MOST_BEGINNINGS: usize = 1000;

/// A recurring time at which at least so many pods run.
#[derive(Clone, Debug)]
pub struct ScheduleSetting {
    /// Name that decisions call it by.
    pub name: Arc<str>,
    /// Fewest pods meanwhile.
    pub min_replicas: u32,
    duration_minutes: u32,
    cron: String,
    time_zone: String,
    /// Read as if for UTC: what it yields is civil time, which `zone` makes an instant of.
    crontab: Crontab,
    zone: TimeZone,
}

impl PartialEq for ScheduleSetting {
    fn eq(&self, other: &Self) -> bool {
        let of = |s: &Self| (s.name.clone(), s.min_replicas, s.duration_minutes);
        of(self) == of(other) && self.cron == other.cron && self.time_zone == other.time_zone
    }
}

impl Eq for ScheduleSetting {}

impl ScheduleSetting {
    /// How long it lasts.
    pub fn duration_seconds(&self) -> i64 {
        i64::from(self.duration_minutes) * 60
    }

    /// When it next begins after a moment, in seconds since 1970. None when it never does.
    ///
    /// A beginning that a change of the clock skips is moved by as much as the clock; one that comes twice counts the first time.
    pub fn begins_after(&self, unix_seconds: i64) -> Option<i64> {
        let civil = |seconds: i64| {
            let moment = Timestamp::from_second(seconds).ok()?;
            Some((self.zone.to_offset(moment), self.zone.to_datetime(moment)))
        };
        let (before, from) = civil(unix_seconds.checked_sub(CLOCK_CHANGE_SECONDS)?)?;
        let (after, to) = civil(unix_seconds.checked_add(CLOCK_CHANGE_SECONDS)?)?;
        if before == after {
            let (_, now) = civil(unix_seconds)?;
            return self.instant(self.next_civil(now)?);
        }
        self.begins_around_change(from, to, unix_seconds)
    }

    /// Around a change of the clock later civil times may be earlier instants: looks at all of them.
    fn begins_around_change(&self, from: DateTime, to: DateTime, unix_seconds: i64) -> Option<i64> {
        let (mut civil, mut earliest) = (from, None);
        for _ in 0..MOST_BEGINNINGS {
            civil = self.next_civil(civil)?;
            let begins = self.instant(civil)?;
            if begins > unix_seconds {
                earliest = Some(earliest.map_or(begins, |earliest: i64| earliest.min(begins)));
            }
            if civil > to {
                break;
            }
        }
        earliest
    }

    fn next_civil(&self, after: DateTime) -> Option<DateTime> {
        let as_utc = after.to_zoned(TimeZone::UTC).ok()?.timestamp();
        Some(self.crontab.find_next(as_utc).ok()?.datetime())
    }

    fn instant(&self, civil: DateTime) -> Option<i64> {
        let zoned = self.zone.to_ambiguous_zoned(civil).compatible().ok()?;
        Some(zoned.timestamp().as_second())
    }
}

pub(super) fn schedule(
    schedule: &Schedule,
    max_replicas: u32,
) -> Result<ScheduleSetting, ValidateError> {
    let wrong = |problem: String| ValidateError::Schedule {
        name: schedule.name.chars().take(63).collect(),
        problem,
    };
    if schedule.min_replicas > max_replicas {
        return Err(wrong(format!(
            "minReplicas ({}) is above scaling.maxReplicas ({max_replicas}): raise maxReplicas or lower minReplicas",
            schedule.min_replicas
        )));
    }
    if schedule.duration_minutes == 0 || schedule.min_replicas == 0 {
        return Err(wrong(
            "durationMinutes and minReplicas must be at least 1".into(),
        ));
    }
    let zone = TimeZoneDatabase::bundled()
        .get(&schedule.time_zone)
        .map_err(|_| {
            wrong(format!(
                "timeZone {:?} is no IANA time zone: write one such as Europe/Berlin or UTC",
                schedule.time_zone
            ))
        })?;
    let checked = ScheduleSetting {
        name: schedule.name.as_str().into(),
        min_replicas: schedule.min_replicas,
        duration_minutes: schedule.duration_minutes,
        crontab: crontab(&schedule.cron).map_err(wrong)?,
        cron: schedule.cron.clone(),
        time_zone: schedule.time_zone.clone(),
        zone,
    };
    if checked.begins_after(LEAP_YEAR).is_none() {
        return Err(wrong(format!(
            "cron {:?} names a day that never comes",
            schedule.cron
        )));
    }
    Ok(checked)
}

fn crontab(cron: &str) -> Result<Crontab, String> {
    if cron.split_ascii_whitespace().count() != 5 || cron.len() > 128 {
        return Err(format!(
            "cron {:?} must have five fields, minute, hour, day of the month, month and day of the week, such as \"0 8 * * 1-5\"",
            cron.chars().take(128).collect::<String>()
        ));
    }
    parse_crontab(&format!("{cron} UTC")).map_err(|error| {
        // The parser draws an arrow under the text; what follows it is the reason.
        let drawn = error.to_string();
        let reason = drawn.rsplit('^').next().unwrap_or_default().trim();
        format!("cron {cron:?} cannot be read: {reason}")
    })
}
