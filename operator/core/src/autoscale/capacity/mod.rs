//! What pods carry, learned from what they do.
//!
//! Each second the counters of every pod say what it computed and in what time. From that three costs are learned for each
//! revision on each kind of hardware (`regression`): of a prompt token, of a step, and of each further sequence in a step. The
//! counters of all pods together say what a request costs at present (`cost`). A queueing model (`queueing`) turns both
//! into the requests per second that a pod can be given so that a percentile of a latency stays within its target, and
//! the measured percentile corrects it (`correction`). Pods of several kinds count by what each of them carries
//! (`supply`). All constants are in `tuning`.

mod correction;
mod cost;
mod entry;
mod growth;
mod headroom;
pub mod histogram;
mod queueing;
mod recommend;
mod regression;
mod supply;
mod track;
pub mod tuning;
mod window;

#[cfg(test)]
mod tests;

pub use cost::RequestCost;
pub use recommend::{Advice, Asked, Basis};

use std::sync::Arc;

use pagoda_crds::api::{CapacityStatus, Metric};

use self::{
    correction::Correction,
    cost::CostMeter,
    entry::Entry,
    headroom::Headroom,
    queueing::{Mix, PodModel},
    track::Track,
    tuning::MOST_ENTRIES,
    window::LatencyWindow,
};
use super::{Millis, PodSeen, by_pod::ByPod};

/// A revision of which no pod was seen for so long, while others were, is gone.
const GONE_MILLIS: Millis = 600_000;

/// What is known of the pods of a service.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Learner {
    tracks: ByPod<Track>,
    entries: Vec<Entry>,
    cost: CostMeter,
    first_token: LatencyWindow,
    inter_token: LatencyWindow,
    headroom: Headroom,
    first_token_correction: Correction,
    inter_token_correction: Correction,
    /// When pods were last looked at.
    noted: Option<Millis>,
    ready: u32,
    /// When the number of pods that answer last changed.
    ready_changed: Millis,
    window: Millis,
}

impl Learner {
    /// Goes on with what a status tells of an earlier life.
    pub fn restore(capacity: &[CapacityStatus]) -> Self {
        let entries = capacity.iter().take(MOST_ENTRIES).map(Entry::restore);
        Self {
            entries: entries.collect(),
            ..Self::default()
        }
    }

    /// Takes in how all living pods are at `now`. `window` is how long percentiles are measured.
    pub fn note(&mut self, pods: &[PodSeen], window: Millis, now: Millis) {
        let passed = self.noted.map_or(0, |noted| now.saturating_sub(noted));
        self.noted = Some(now);
        self.window = window.max(1);
        self.cost.pass(passed as f64 / 1000.0);
        self.first_token.pass(window, now);
        self.inter_token.pass(window, now);
        self.note_ready(pods, now);
        let mut tracks = std::mem::take(&mut self.tracks);
        let mut arrived = Some(0.0);
        for pod in pods {
            let came = self.follow(pod, tracks.of(&pod.name), passed, now);
            if pod.ready {
                arrived = arrived.zip(came).map(|(sum, came)| sum + came);
            }
        }
        tracks.settle(pods.iter().map(|pod| &pod.name));
        self.tracks = tracks;
        if let (Some(arrived), true) = (arrived, passed > 0 && self.ready > 0) {
            self.cost.note_arrivals(arrived, passed as f64 / 1000.0);
        }
        self.forget(now);
    }

    fn note_ready(&mut self, pods: &[PodSeen], now: Millis) {
        let ready = pods.iter().filter(|pod| pod.ready).count() as u32;
        if ready != self.ready {
            (self.ready, self.ready_changed) = (ready, now);
        }
    }

    /// What came of a pod since it was last seen: requests, if that look was the last one.
    fn follow(
        &mut self,
        pod: &PodSeen,
        track: &mut Track,
        passed: Millis,
        now: Millis,
    ) -> Option<f64> {
        let at = self.entry(&pod.revision, &pod.hardware, now);
        if let Some(entry) = at.map(|at| &mut self.entries[at])
            && let Some(start) = track.start_millis(pod, entry.has_started())
        {
            entry.note_start(start);
        }
        let reading = pod.reading.as_ref()?;
        let (seen, growth) = track.take(reading, now);
        if let Some(growth) = &growth {
            self.cost.note(growth);
            if let Some((earlier, _)) = &seen {
                self.note_latencies(earlier, reading);
            }
        }
        if let Some(entry) = at.map(|at| &mut self.entries[at]) {
            entry.note_state(reading);
            if let Some(while_) = growth.as_ref().and_then(|growth| track.while_over(growth)) {
                entry.note(&while_);
            }
        }
        let was_last = seen.is_some_and(|(_, at)| now.saturating_sub(at) == passed);
        let arrived = growth.and_then(|growth| growth.arrived);
        arrived.filter(|_| was_last)
    }

    fn note_latencies(&mut self, earlier: &super::PodReading, now: &super::PodReading) {
        let (Some(earlier), Some(now)) = (&earlier.latencies, &now.latencies) else {
            return;
        };
        if let (Some(earlier), Some(now)) = (&earlier.first_token, &now.first_token) {
            self.first_token.note(earlier, now);
        }
        if let (Some(earlier), Some(now)) = (&earlier.inter_token, &now.inter_token) {
            self.inter_token.note(earlier, now);
        }
    }

    /// The entry of such pods; none when there is no room for it.
    fn entry(&mut self, revision: &Arc<str>, hardware: &Arc<str>, now: Millis) -> Option<usize> {
        let same = |e: &Entry| e.revision == *revision && e.hardware == *hardware;
        let at = self.entries.iter().position(same).or_else(|| {
            (self.entries.len() < MOST_ENTRIES).then(|| {
                let (revision, hardware) = (Arc::clone(revision), Arc::clone(hardware));
                // Nearly all services have one.
                self.entries.reserve_exact(1);
                self.entries.push(Entry::new(revision, hardware));
                self.entries.len() - 1
            })
        })?;
        self.entries[at].seen = Some(now);
        Some(at)
    }

    /// Forgets revisions that are gone. Without any pod all are kept: they are what the next pods will be.
    fn forget(&mut self, now: Millis) {
        if self.tracks.is_empty() {
            return;
        }
        for entry in &mut self.entries {
            entry.seen.get_or_insert(now);
        }
        let stays = |e: &Entry| e.seen.is_none_or(|s| now.saturating_sub(s) < GONE_MILLIS);
        self.entries.retain(stays);
    }

    /// What a request costs at present; none before a few were seen.
    pub fn request_cost(&self) -> Option<RequestCost> {
        self.cost.cost()
    }

    /// Milliseconds from the creation of a pod until it answers: of the slowest kind, for nobody knows which kind the next
    /// one is of.
    pub fn start_millis(&self) -> Option<Millis> {
        self.entries.iter().filter_map(Entry::start_millis).max()
    }

    /// The percentile of a latency over the window, in milliseconds; none while nothing was observed, or for another metric.
    pub fn measured_millis(&self, metric: Metric, percentile: u32) -> Option<u32> {
        self.latencies(metric)?.percentile_millis(percentile)
    }

    fn latencies(&self, metric: Metric) -> Option<&LatencyWindow> {
        match metric {
            Metric::TimeToFirstToken => Some(&self.first_token),
            Metric::InterTokenLatency => Some(&self.inter_token),
            _ => None,
        }
    }

    /// What each of the pods carries against the mean of them all: 1 for every pod where they are of one kind. None while
    /// that is not known, or is the same for all.
    pub fn relative_capacity(&self, pods: &[PodSeen]) -> Option<Vec<f64>> {
        let first = pods.first()?;
        let alike =
            |pod: &PodSeen| pod.hardware == first.hardware && pod.revision == first.revision;
        if pods.iter().all(alike) {
            return None;
        }
        let mix = self.cost.mix()?;
        let speed = |pod: &PodSeen| {
            let model = self.model_of(&pod.revision, &pod.hardware)?;
            Some(1.0 / model.work(&mix, model.most_sequences / 2.0)).filter(|s| s.is_finite())
        };
        let speeds: Vec<Option<f64>> = pods.iter().map(speed).collect();
        let known: Vec<f64> = speeds.iter().copied().flatten().collect();
        let mean = known.iter().sum::<f64>() / known.len() as f64;
        let relative = |speed: &Option<f64>| speed.map_or(1.0, |speed| speed / mean);
        (!known.is_empty()).then(|| speeds.iter().map(relative).collect())
    }

    /// What such a pod's steps take. A new revision is taken to be like another one on the same hardware until it has been
    /// seen at work.
    fn model_of(&self, revision: &str, hardware: &str) -> Option<PodModel> {
        let of = |e: &&Entry| *e.hardware == *hardware;
        let own = self
            .entries
            .iter()
            .filter(of)
            .find(|e| *e.revision == *revision);
        own.and_then(Entry::model).or_else(|| {
            let mut others = self.entries.iter().filter(of).rev();
            others.find_map(Entry::model)
        })
    }

    fn mix(&self) -> Option<Mix> {
        self.cost.mix()
    }

    /// As the status has it, unrounded; see [`crate::status`] for what is written. Sorted by revision and hardware.
    pub fn entries(&self) -> Vec<CapacityStatus> {
        let mut entries: Vec<CapacityStatus> =
            self.entries.iter().filter_map(Entry::status).collect();
        entries.sort_by(|a, b| (&a.revision, &a.hardware).cmp(&(&b.revision, &b.hardware)));
        entries
    }
}
