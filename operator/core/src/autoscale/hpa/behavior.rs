//! How fast the number of pods may follow what is recommended: stabilise first, then limit the rate.
//!
//! Source: `pkg/controller/podautoscaler/horizontal.go` (`stabilizeRecommendationWithBehaviors`,
//! `convertDesiredReplicasWithBehaviorRate`, `storeScaleEvent`). An HPA whose spec has no `behavior` at all goes an older way
//! there, in which the up-limit is `max(2 * current, 4)` at each sync of 15 seconds and the stabilisation window holds numbers up as
//! well as down; here whatever is left out is as the defaults of `behavior` have it, because looks are a second apart.

use std::collections::VecDeque;

use pagoda_crds::api::{PolicyKind, ScalingPolicy, SelectPolicy};

use crate::{
    autoscale::Millis,
    validate::{BehaviorSettings, RulesSettings},
};

/// More recommendations than this are merged, so that memory is bounded; what is merged holds changes back for longer, never less.
const MOST_RECOMMENDATIONS: usize = 128;
/// The same for changes.
const MOST_EVENTS: usize = 128;

/// Recommendations and changes of the last while.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(in crate::autoscale) struct Pace {
    /// `(when, recommended)`, oldest first and growing: an older and larger one can never be the minimum.
    lows: VecDeque<(Millis, u32)>,
    /// The same, falling: an older and smaller one can never be the maximum.
    highs: VecDeque<(Millis, u32)>,
    added: Events,
    removed: Events,
}

impl Pace {
    /// Records a recommendation.
    pub fn note(&mut self, recommended: u32, now: Millis) {
        push(&mut self.lows, recommended, now, |old, new| old >= new);
        push(&mut self.highs, recommended, now, |old, new| old <= new);
    }

    /// Brings the present number between the smallest recommendation of the up window and the largest of the down window,
    /// and records what is recommended now.
    pub fn stabilize(
        &mut self,
        behavior: &BehaviorSettings,
        current: u32,
        recommended: u32,
        now: Millis,
    ) -> u32 {
        let (up, down) = (window(&behavior.up), window(&behavior.down));
        forget(&mut self.lows, up, now);
        forget(&mut self.highs, down, now);
        let lowest = self
            .lows
            .front()
            .map_or(recommended, |(_, low)| (*low).min(recommended));
        let highest = self
            .highs
            .front()
            .map_or(recommended, |(_, high)| (*high).max(recommended));
        self.note(recommended, now);
        current.max(lowest).min(highest)
    }

    /// The same for a moment at which too little is known to recommend anything: the number stays, and fewer must be wished for
    /// anew; what was recommended before counts for more as it did.
    pub fn hold(&mut self, behavior: &BehaviorSettings, current: u32, now: Millis) -> u32 {
        forget(&mut self.lows, window(&behavior.up), now);
        forget(&mut self.highs, window(&behavior.down), now);
        push(&mut self.highs, current, now, |old, new| old <= new);
        current
    }

    /// What the policies allow on the way to `wanted`; bounds are not looked at.
    pub fn limit(
        &self,
        behavior: &BehaviorSettings,
        current: u32,
        wanted: u32,
        now: Millis,
    ) -> u32 {
        let start = |policy: &ScalingPolicy| {
            let period = Millis::from(policy.period_seconds) * 1000;
            let added = self.added.within(period, now);
            let removed = self.removed.within(period, now);
            i64::from(current) - added + removed
        };
        let (from, to) = (i64::from(current), i64::from(wanted));
        let allowed = if wanted > current {
            to.min(up_limit(&behavior.up, start).unwrap_or(from).max(from))
        } else {
            to.max(down_limit(&behavior.down, start).unwrap_or(from).min(from))
        };
        u32::try_from(allowed).unwrap_or(current)
    }

    /// Records that the number of pods changed.
    pub fn note_change(&mut self, behavior: &BehaviorSettings, from: u32, to: u32, when: Millis) {
        let (events, rules) = if to > from {
            (&mut self.added, &behavior.up)
        } else {
            (&mut self.removed, &behavior.down)
        };
        events.note(from.abs_diff(to), longest(rules), when);
    }
}

fn window(rules: &RulesSettings) -> Millis {
    Millis::from(rules.window_seconds) * 1000
}

fn longest(rules: &RulesSettings) -> Millis {
    let periods = rules.policies.iter().map(|policy| policy.period_seconds);
    Millis::from(periods.max().unwrap_or(0)) * 1000
}

fn push(
    recommendations: &mut VecDeque<(Millis, u32)>,
    recommended: u32,
    now: Millis,
    useless: fn(u32, u32) -> bool,
) {
    while recommendations
        .back()
        .is_some_and(|(_, old)| useless(*old, recommended))
    {
        recommendations.pop_back();
    }
    recommendations.push_back((now, recommended));
    if recommendations.len() > MOST_RECOMMENDATIONS {
        merge_closest(recommendations);
    }
}

/// Merges the two that differ least: the older, stronger one counts for as long as the younger would.
fn merge_closest(recommendations: &mut VecDeque<(Millis, u32)>) {
    let difference = |i: &usize| recommendations[*i].1.abs_diff(recommendations[*i + 1].1);
    if let Some(i) = (0..recommendations.len() - 1).min_by_key(difference) {
        recommendations[i].0 = recommendations[i + 1].0;
        recommendations.remove(i + 1);
    }
}

fn forget(recommendations: &mut VecDeque<(Millis, u32)>, window: Millis, now: Millis) {
    while recommendations
        .front()
        .is_some_and(|(when, _)| when.saturating_add(window) <= now)
    {
        recommendations.pop_front();
    }
}

fn up_limit(rules: &RulesSettings, start: impl Fn(&ScalingPolicy) -> i64) -> Option<i64> {
    let allowed = rules.policies.iter().map(|policy| match policy.kind {
        PolicyKind::Pods => start(policy) + i64::from(policy.value),
        PolicyKind::Percent => {
            (start(policy) as f64 * (1.0 + f64::from(policy.value) / 100.0)).ceil() as i64
        }
    });
    match rules.select {
        SelectPolicy::Max => allowed.max(),
        SelectPolicy::Min => allowed.min(),
        SelectPolicy::Disabled => None,
    }
}

fn down_limit(rules: &RulesSettings, start: impl Fn(&ScalingPolicy) -> i64) -> Option<i64> {
    let allowed = rules.policies.iter().map(|policy| match policy.kind {
        PolicyKind::Pods => start(policy) - i64::from(policy.value),
        PolicyKind::Percent => {
            (start(policy) as f64 * (1.0 - f64::from(policy.value) / 100.0)) as i64
        }
    });
    // The largest change leaves the fewest pods.
    match rules.select {
        SelectPolicy::Max => allowed.min(),
        SelectPolicy::Min => allowed.max(),
        SelectPolicy::Disabled => None,
    }
}

/// Changes in one direction.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Events(Vec<Event>);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Event {
    when: Millis,
    pods: u32,
    /// Older than every policy of its own direction, and so the next to be overwritten. Until then a longer policy of the other
    /// direction counts it, as in the original.
    outdated: bool,
}

impl Events {
    fn note(&mut self, pods: u32, longest: Millis, when: Millis) {
        for event in &mut self.0 {
            event.outdated |= event.when.saturating_add(longest) < when;
        }
        let new = Event {
            when,
            pods,
            outdated: false,
        };
        match self.0.iter().rposition(|event| event.outdated) {
            Some(i) => self.0[i] = new,
            None if self.0.len() < MOST_EVENTS => self.0.push(new),
            // Counted for longer than it should be.
            None => {
                if let Some(last) = self.0.last_mut() {
                    last.pods = last.pods.saturating_add(pods);
                    last.when = when;
                }
            }
        }
    }

    fn within(&self, period: Millis, now: Millis) -> i64 {
        let counted = self
            .0
            .iter()
            .filter(|event| event.when.saturating_add(period) > now);
        counted.map(|event| i64::from(event.pods)).sum()
    }
}
