//! Whether a schedule asks for pods at this moment.
//!
//! What a schedule means is a matter of civil time: it begins at each time of its cron on the calendar and clock of its time zone, and lasts so
//! many minutes of real time. A beginning that a clock change skips counts from the moment after the gap, and one that comes twice counts once.

use std::sync::Arc;

use crate::validate::ScheduleSetting;

/// Schedules are looked at anew after so long, whatever was found.
const LONGEST_SECONDS: i64 = 6 * 3600;

/// The schedule that asks for the most at some moment, and for how long that stands.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct InEffect {
    /// Which schedules this was found of.
    of: Option<Schedules>,
    /// From and until when it stands, by the wall clock.
    from: i64,
    until: i64,
    best: Option<(Arc<str>, u32)>,
}

/// Identity of the schedules of a spec: the list itself, kept alive so that no other can take its place.
#[derive(Clone, Debug)]
struct Schedules(Arc<[ScheduleSetting]>);

impl PartialEq for Schedules {
    fn eq(&self, other: &Self) -> bool {
        Arc::ptr_eq(&self.0, &other.0) || self.0 == other.0
    }
}

impl Eq for Schedules {}

impl InEffect {
    /// The schedule in effect that asks for the most pods, and how many.
    pub fn at(
        &mut self,
        schedules: &Arc<[ScheduleSetting]>,
        unix_seconds: i64,
    ) -> Option<(Arc<str>, u32)> {
        if schedules.is_empty() {
            *self = Self::default();
            return None;
        }
        let known = self
            .of
            .as_ref()
            .is_some_and(|of| Arc::ptr_eq(&of.0, schedules));
        if !known || !(self.from..self.until).contains(&unix_seconds) {
            *self = Self::found(schedules, unix_seconds);
        }
        self.best.clone()
    }

    /// When the answer may become another one, by the wall clock.
    pub fn until(&self) -> Option<i64> {
        self.of.is_some().then_some(self.until)
    }

    fn found(schedules: &Arc<[ScheduleSetting]>, now: i64) -> Self {
        let mut until = now.saturating_add(LONGEST_SECONDS);
        let mut best: Option<(Arc<str>, u32)> = None;
        for schedule in schedules.iter() {
            let Some(begins) =
                schedule.begins_after(now.saturating_sub(schedule.duration_seconds()))
            else {
                continue;
            };
            let in_effect = begins <= now;
            let changes = if in_effect {
                begins.saturating_add(schedule.duration_seconds())
            } else {
                begins
            };
            until = until.min(changes);
            if in_effect
                && best
                    .as_ref()
                    .is_none_or(|(_, most)| schedule.min_replicas > *most)
            {
                best = Some((schedule.name.clone(), schedule.min_replicas));
            }
        }
        Self {
            of: Some(Schedules(schedules.clone())),
            from: now,
            until: until.max(now + 1),
            best,
        }
    }
}
