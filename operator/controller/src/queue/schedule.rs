//! The queue as a value: time is an argument.

use std::{
    collections::{BTreeSet, HashMap, hash_map::Entry},
    time::{Duration, Instant},
};

use crate::key::Key;

/// What stands of each key.
#[derive(Clone, Copy, Debug, Default)]
struct State {
    /// When it is due; `None` while it only runs.
    due: Option<Instant>,
    running: bool,
}

/// Keys with the times at which they are due.
#[derive(Debug, Default)]
pub struct Schedule {
    states: HashMap<Key, State>,
    /// Keys that are due at some time and do not run.
    waiting: BTreeSet<(Instant, Key)>,
    running: usize,
    /// When a key last ended, or was due after nothing was.
    progressed: Option<Instant>,
}

impl Schedule {
    /// Wants a key at a time. True when it waits now and did not, or waited for a later time.
    pub fn add(&mut self, key: Key, due: Instant) -> bool {
        let state = self.states.entry(key.clone()).or_default();
        if state.due.is_some_and(|planned| planned <= due) {
            return false;
        }
        let planned = state.due.replace(due);
        if state.running {
            return false;
        }
        if let Some(planned) = planned {
            self.waiting.remove(&(planned, key.clone()));
        }
        self.waiting.insert((due, key))
    }

    /// The key that has been due for longest; or when the next one is.
    pub fn take(&mut self, now: Instant) -> Result<Key, Option<Instant>> {
        let due = self.waiting.first().map(|(due, _)| *due);
        if due.is_none_or(|due| due > now) {
            return Err(due);
        }
        if self.running == 0 {
            // Work that begins after idleness has not been stuck for as long as the idleness.
            self.progressed = self.progressed.max(due);
        }
        let Some((_, key)) = self.waiting.pop_first() else {
            return Err(None);
        };
        let state = State {
            due: None,
            running: true,
        };
        self.states.insert(key.clone(), state);
        self.running += 1;
        Ok(key)
    }

    /// A key that was taken is done with, and wanted again at a time.
    pub fn done(&mut self, key: &Key, again: Option<Instant>, now: Instant) {
        self.progressed = Some(now);
        let Entry::Occupied(mut entry) = self.states.entry(key.clone()) else {
            return;
        };
        let state = entry.get_mut();
        self.running -= usize::from(std::mem::take(&mut state.running));
        state.due = match (state.due, again) {
            (Some(a), Some(b)) => Some(a.min(b)),
            (a, b) => a.or(b),
        };
        match state.due {
            Some(due) => {
                self.waiting.insert((due, key.clone()));
            }
            None => {
                entry.remove();
            }
        }
    }

    /// Keys that are due, and keys that run.
    pub fn depth(&self, now: Instant) -> (usize, usize) {
        let due = self.waiting.iter().take_while(|(due, _)| *due <= now);
        (due.count(), self.running)
    }

    /// How long nothing has ended although something was due or ran.
    pub fn stuck(&self, now: Instant) -> Duration {
        let first_due = self.waiting.first().map(|(due, _)| *due);
        let overdue = first_due.filter(|due| *due <= now);
        let since = if self.running > 0 {
            self.progressed
        } else {
            // It waits for as long as it has been due, and not for longer than since the last end.
            overdue.map(|due| self.progressed.map_or(due, |end| end.max(due)))
        };
        since.map_or(Duration::ZERO, |since| now.saturating_duration_since(since))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[derive(Clone, Debug)]
    enum Step {
        Add(u8, u64),
        Take,
        Done(u8, Option<u64>),
        Wait(u64),
    }

    fn steps() -> impl Strategy<Value = Vec<Step>> {
        let step = prop_oneof![
            (0_u8..4, 0_u64..50).prop_map(|(k, d)| Step::Add(k, d)),
            Just(Step::Take),
            (0_u8..4, proptest::option::of(0_u64..50)).prop_map(|(k, d)| Step::Done(k, d)),
            (0_u64..30).prop_map(Step::Wait),
        ];
        proptest::collection::vec(step, 0..80)
    }

    fn key(number: u8) -> Key {
        Key::new("n", &number.to_string())
    }

    proptest! {
        #[test]
        fn nothing_runs_twice_at_once_and_nothing_that_was_asked_for_is_lost(steps in steps()) {
            let start = Instant::now();
            let mut now = start;
            let mut schedule = Schedule::default();
            let mut running: Vec<Key> = Vec::new();
            // What a schedule must still hand out, and since when.
            let mut owed: HashMap<Key, Instant> = HashMap::new();
            for step in steps {
                match step {
                    Step::Add(number, delay) => {
                        let due = now + Duration::from_millis(delay);
                        schedule.add(key(number), due);
                        owed.entry(key(number)).and_modify(|d| *d = (*d).min(due)).or_insert(due);
                    }
                    Step::Take => match schedule.take(now) {
                        Ok(taken) => {
                            prop_assert!(!running.contains(&taken));
                            prop_assert!(owed.remove(&taken).is_some_and(|due| due <= now));
                            running.push(taken);
                        }
                        Err(next) => {
                            let earliest = owed.iter().filter(|(k, _)| !running.contains(k)).map(|(_, d)| *d).min();
                            prop_assert_eq!(next, earliest);
                        }
                    },
                    Step::Done(number, again) => {
                        if let Some(at) = running.iter().position(|k| *k == key(number)) {
                            running.remove(at);
                            let again = again.map(|d| now + Duration::from_millis(d));
                            schedule.done(&key(number), again, now);
                            if let Some(again) = again {
                                owed.entry(key(number)).and_modify(|d| *d = (*d).min(again)).or_insert(again);
                            }
                        }
                    }
                    Step::Wait(delay) => now += Duration::from_millis(delay),
                }
                prop_assert_eq!(schedule.depth(now).1, running.len());
                prop_assert!(schedule.stuck(now) <= now - start);
            }
        }
    }

    #[test]
    fn idleness_is_not_being_stuck_and_a_reconcile_that_never_ends_is() {
        let start = Instant::now();
        let at = |seconds| start + Duration::from_secs(seconds);
        let mut schedule = Schedule::default();
        schedule.add(key(1), at(0));
        schedule.take(at(0)).expect("due");
        schedule.done(&key(1), Some(at(600)), at(1));
        assert_eq!(schedule.stuck(at(599)), Duration::ZERO);
        schedule.take(at(600)).expect("due");
        assert_eq!(schedule.stuck(at(601)), Duration::from_secs(1));
        assert_eq!(schedule.stuck(at(900)), Duration::from_mins(5));
    }

    #[test]
    fn work_that_nobody_takes_is_stuck() {
        let start = Instant::now();
        let mut schedule = Schedule::default();
        schedule.add(key(1), start + Duration::from_secs(10));
        assert_eq!(
            schedule.stuck(start + Duration::from_secs(70)),
            Duration::from_mins(1)
        );
    }
}
