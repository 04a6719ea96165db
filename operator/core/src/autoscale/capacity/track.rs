//! One pod from look to look.

use super::{
    growth::Growth,
    tuning::{LONGEST_INTERVAL_MILLIS, OUTSIDE_INTERVAL_MILLIS},
};
use crate::autoscale::{Millis, PodReading, PodSeen};

/// See the module's text.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Track {
    /// What it told last, and when.
    last: Option<(PodReading, Millis)>,
    /// It was seen before it was ready.
    began_in_sight: bool,
    /// Its start was counted, or cannot be.
    started: bool,
    /// What it did since an interval began, where its engine does not tell its work.
    since: Option<Box<Growth>>,
}

impl Track {
    /// How long the pod took to be ready, when it just became so; told once. Readiness that comes and goes would make starts
    /// longer than they are, so a pod that was ready at first sight counts only while no better is known.
    pub fn start_millis(&mut self, pod: &PodSeen, any_known: bool) -> Option<Millis> {
        if self.started {
            return None;
        }
        if !pod.ready {
            self.began_in_sight = true;
            return None;
        }
        self.started = true;
        let took = pod.age_millis.checked_sub(pod.ready_age_millis?)?;
        (self.began_in_sight || !any_known).then_some(took)
    }

    /// Takes in what the pod tells; returns what it told before and when, and what it did since. Nothing when that is too long
    /// ago, or its server was started anew.
    pub fn take(
        &mut self,
        reading: &PodReading,
        now: Millis,
    ) -> (Option<(PodReading, Millis)>, Option<Growth>) {
        let before = self.last.replace((reading.clone(), now));
        let growth = before.as_ref().and_then(|(earlier, at)| {
            let millis = now.saturating_sub(*at);
            let usable = (1..=LONGEST_INTERVAL_MILLIS).contains(&millis);
            let growth = Growth::between(earlier, reading, millis as f64 / 1000.0);
            growth.filter(|_| usable)
        });
        if growth.is_none() {
            self.since = None;
        }
        (before, growth)
    }

    /// What a step's costs are learned from: each look where the engine tells its work, else looks enough for its counters
    /// to mean something.
    pub fn while_over(&mut self, growth: &Growth) -> Option<Growth> {
        if growth.work.is_some() {
            return Some(*growth);
        }
        let since = match self.since.take() {
            Some(since) => since.then(growth),
            None => *growth,
        };
        if since.seconds * 1000.0 >= OUTSIDE_INTERVAL_MILLIS as f64 {
            return Some(since);
        }
        self.since = Some(Box::new(since));
        None
    }
}
