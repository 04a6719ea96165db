//! Which question is asked when: staggered, once for all who want it, ever more rarely while it fails. Pure.
//!
//! Two bounds keep bad queries from harming others. A server gets [`SLOTS`] questions at once, and no namespace more than
//! [`NAMESPACE_SLOTS`] of them, so that slow queries of one leave room for all others. And only what concerns every query,
//! such as a refused connection, makes a whole server wait.

use std::{
    collections::{BTreeMap, BTreeSet, HashMap},
    hash::{DefaultHasher, Hash, Hasher},
    sync::Arc,
    time::Duration,
};

/// Milliseconds of a clock that only goes on.
pub type Millis = u64;

/// Questions to one server at once.
const SLOTS: usize = 8;
/// Of these, the ones that come of one namespace.
const NAMESPACE_SLOTS: usize = 4;
/// New questions are spread over this long, or over their interval where that is shorter.
const SPREAD: Millis = 2_000;
const FIRST_PAUSE: Millis = 1_000;
/// Whatever fails is tried at least this often, or at its interval where that is longer.
const LONGEST_PAUSE: Millis = 30_000;

/// A query to a server. Services that want the same one share it.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Question {
    /// Name of the server.
    pub server: Arc<str>,
    /// PromQL.
    pub query: Arc<str>,
}

/// How often a question is wanted.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Wanted {
    /// At least this often.
    pub interval: Duration,
    /// One of the namespaces that want it.
    pub namespace: Arc<str>,
}

/// What came of asking.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The server answered.
    Answered,
    /// This question failed.
    QuestionFailed,
    /// All questions to this server would have.
    ServerFailed,
}

#[derive(Debug)]
struct Entry {
    wanted: Wanted,
    due: Millis,
    failures: u32,
    asking: bool,
    /// Nobody wants it any more; it goes when its answer has come.
    left: bool,
}

#[derive(Debug, Default)]
struct Load {
    asking: usize,
    by_namespace: BTreeMap<Arc<str>, usize>,
    failures: u32,
    silent_until: Millis,
}

impl Load {
    fn admits(&self, namespace: &str, now: Millis) -> bool {
        // One that failed is tried with one question first.
        let slots = if self.failures > 0 { 1 } else { SLOTS };
        let of_namespace = self.by_namespace.get(namespace).copied().unwrap_or(0);
        self.silent_until <= now && self.asking < slots && of_namespace < NAMESPACE_SLOTS
    }

    fn begin(&mut self, namespace: &Arc<str>) {
        self.asking += 1;
        *self.by_namespace.entry(namespace.clone()).or_default() += 1;
    }

    fn end(&mut self, namespace: &str) {
        self.asking = self.asking.saturating_sub(1);
        if let Some(asking) = self.by_namespace.get_mut(namespace) {
            *asking -= 1;
            if *asking == 0 {
                self.by_namespace.remove(namespace);
            }
        }
    }

    fn note(&mut self, outcome: Outcome, now: Millis) {
        match outcome {
            // Whoever fails one question can be reached.
            Outcome::Answered | Outcome::QuestionFailed => self.failures = 0,
            // Those that were under way together fail together: once is enough.
            Outcome::ServerFailed if self.silent_until <= now => {
                self.failures = self.failures.saturating_add(1);
                self.silent_until = now + pause(self.failures, LONGEST_PAUSE);
            }
            Outcome::ServerFailed => {}
        }
    }
}

/// All questions.
#[derive(Debug, Default)]
pub struct Schedule {
    entries: HashMap<Question, Entry>,
    /// Those that wait, by when they are due.
    waiting: BTreeSet<(Millis, Question)>,
    servers: BTreeMap<Arc<str>, Load>,
}

impl Schedule {
    /// Asks these from now on, and no others.
    pub fn want(&mut self, wanted: HashMap<Question, Wanted>, now: Millis) {
        for (question, entry) in &mut self.entries {
            entry.left = !wanted.contains_key(question);
        }
        for (question, wanted) in wanted {
            let Some(entry) = self.entries.get_mut(&question) else {
                self.add(question, wanted, now);
                continue;
            };
            // An answer that is under way is counted off the namespace that it was counted to.
            if entry.asking {
                entry.wanted.interval = wanted.interval;
                continue;
            }
            entry.wanted = wanted;
            let sooner = entry.due.min(now + millis(entry.wanted.interval));
            if entry.failures == 0 && sooner < entry.due {
                self.waiting.remove(&(entry.due, question.clone()));
                entry.due = sooner;
                self.waiting.insert((sooner, question));
            }
        }
        self.forget_left();
    }

    fn add(&mut self, question: Question, wanted: Wanted, now: Millis) {
        let due = now + phase(&question) % millis(wanted.interval).min(SPREAD);
        self.waiting.insert((due, question.clone()));
        let entry = Entry {
            wanted,
            due,
            failures: 0,
            asking: false,
            left: false,
        };
        self.entries.insert(question, entry);
    }

    fn forget_left(&mut self) {
        let waiting = &mut self.waiting;
        self.entries.retain(|question, entry| {
            let keep = !entry.left || entry.asking;
            if !keep {
                waiting.remove(&(entry.due, question.clone()));
            }
            keep
        });
        let entries = &self.entries;
        let is_named = |server: &Arc<str>| entries.keys().any(|q| q.server == *server);
        self.servers.retain(|server, _| is_named(server));
    }

    /// Questions to ask now. Each is to be told [`Self::done`] of.
    pub fn take_due(&mut self, now: Millis) -> Vec<Question> {
        let mut taken = Vec::new();
        for (due, question) in &self.waiting {
            if *due > now {
                break;
            }
            let Some(entry) = self.entries.get_mut(question) else {
                continue;
            };
            let load = self.servers.entry(question.server.clone()).or_default();
            if load.admits(&entry.wanted.namespace, now) {
                load.begin(&entry.wanted.namespace);
                entry.asking = true;
                taken.push((*due, question.clone()));
            }
        }
        for waited in &taken {
            self.waiting.remove(waited);
        }
        taken.into_iter().map(|(_, question)| question).collect()
    }

    /// What came of a question that was taken.
    pub fn done(&mut self, question: &Question, outcome: Outcome, now: Millis) {
        let Some(entry) = self.entries.get_mut(question) else {
            return;
        };
        let load = self.servers.entry(question.server.clone()).or_default();
        load.end(&entry.wanted.namespace);
        load.note(outcome, now);
        entry.asking = false;
        if entry.left {
            self.entries.remove(question);
            return;
        }
        let interval = millis(entry.wanted.interval);
        entry.due = match outcome {
            Outcome::Answered => {
                entry.failures = 0;
                next_in_phase(phase(question), interval, now)
            }
            Outcome::QuestionFailed => {
                entry.failures = entry.failures.saturating_add(1);
                now + pause(entry.failures, LONGEST_PAUSE).max(interval)
            }
            // As soon as the server may be asked again.
            Outcome::ServerFailed => load.silent_until.max(now + interval.min(FIRST_PAUSE)),
        };
        self.waiting.insert((entry.due, question.clone()));
    }

    /// When there may be something to take next; `None` while nothing waits.
    pub fn next_due(&self) -> Option<Millis> {
        self.waiting.first().map(|(due, _)| *due)
    }
}

/// Each question has a moment of its own within the interval, so that they do not all come at once.
fn next_in_phase(phase: u64, interval: Millis, now: Millis) -> Millis {
    let offset = phase % interval;
    let passed = (now + interval - offset) % interval;
    let next = now + interval - passed;
    // Never two at once when a question was late.
    if next - now < interval / 2 {
        next + interval
    } else {
        next
    }
}

fn phase(question: &Question) -> u64 {
    let mut hasher = DefaultHasher::new();
    question.hash(&mut hasher);
    hasher.finish()
}

/// Twice as long with each failure.
fn pause(failures: u32, longest: Millis) -> Millis {
    (FIRST_PAUSE << failures.saturating_sub(1).min(16)).min(longest)
}

fn millis(duration: Duration) -> Millis {
    (duration.as_millis() as u64).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn question(server: &str, query: usize) -> Question {
        Question {
            server: server.into(),
            query: format!("q{query}").into(),
        }
    }

    fn wanted(seconds: u64, namespace: &str) -> Wanted {
        Wanted {
            interval: Duration::from_secs(seconds),
            namespace: namespace.into(),
        }
    }

    /// Runs for some seconds; each question takes `takes` and ends as `outcome` says. Returns when each was asked.
    fn run(
        schedule: &mut Schedule,
        seconds: u64,
        takes: Millis,
        outcome: impl Fn(&Question) -> Outcome,
    ) -> BTreeMap<Question, Vec<Millis>> {
        let mut asked: BTreeMap<Question, Vec<Millis>> = BTreeMap::new();
        let mut under_way: Vec<(Millis, Question)> = Vec::new();
        for now in (0..seconds * 1000).step_by(50) {
            let (over, still) = under_way.into_iter().partition(|(end, _)| *end <= now);
            under_way = still;
            for (_, question) in Vec::<(Millis, Question)>::from_iter(over) {
                schedule.done(&question, outcome(&question), now);
            }
            for question in schedule.take_due(now) {
                under_way.push((now + takes, question.clone()));
                asked.entry(question).or_default().push(now);
            }
        }
        asked
    }

    #[test]
    fn every_question_is_asked_once_an_interval_and_not_all_at_one_moment() {
        let mut schedule = Schedule::default();
        let all = (0..200).map(|q| (question("a", q), wanted(10, "n")));
        schedule.want(all.collect(), 0);
        let asked = run(&mut schedule, 100, 10, |_| Outcome::Answered);
        assert_eq!(asked.len(), 200);
        let mut at_once: BTreeMap<Millis, usize> = BTreeMap::new();
        for times in asked.values() {
            assert!(
                (9..=11).contains(&times.len()),
                "asked {} times",
                times.len()
            );
            for time in times {
                *at_once.entry(time / 1000).or_default() += 1;
            }
        }
        let most = at_once
            .iter()
            .filter(|(second, _)| **second > 15)
            .map(|(_, n)| *n)
            .max();
        assert!(most < Some(60), "{most:?} of 200 in one second");
    }

    #[test]
    fn a_server_that_is_out_of_reach_gets_one_question_at_a_time_and_ever_fewer() {
        let mut schedule = Schedule::default();
        let dead = (0..50).map(|q| (question("dead", q), wanted(1, "n")));
        let alive = (0..2).map(|q| (question("alive", q), wanted(1, "n")));
        schedule.want(dead.chain(alive).collect(), 0);
        let outcome = |q: &Question| {
            if &*q.server == "dead" {
                Outcome::ServerFailed
            } else {
                Outcome::Answered
            }
        };
        let asked = run(&mut schedule, 120, 50, outcome);
        let count = |server: &str| -> usize {
            let of_server = asked.iter().filter(|(q, _)| &*q.server == server);
            of_server.map(|(_, times)| times.len()).sum()
        };
        assert!(
            count("dead") < 25,
            "a dead server was asked {} times",
            count("dead")
        );
        assert!(
            count("alive") > 200,
            "the other was asked {} times",
            count("alive")
        );
        let again = run(&mut schedule, 200, 50, |_| Outcome::Answered);
        assert!(
            again.iter().filter(|(q, _)| &*q.server == "dead").count() == 50,
            "all are asked again"
        );
    }

    #[test]
    fn a_question_that_fails_is_asked_ever_more_rarely_and_the_others_as_before() {
        let mut schedule = Schedule::default();
        schedule.want(
            [
                (question("a", 0), wanted(5, "n")),
                (question("a", 1), wanted(5, "n")),
            ]
            .into(),
            0,
        );
        let bad = question("a", 0);
        let outcome = |q: &Question| {
            if *q == bad {
                Outcome::QuestionFailed
            } else {
                Outcome::Answered
            }
        };
        let asked = run(&mut schedule, 1200, 50, outcome);
        assert!(asked[&bad].len() < 50, "{:?}", asked[&bad]);
        assert!(asked[&question("a", 1)].len() > 230);
    }

    #[test]
    fn slow_questions_of_one_namespace_leave_room_for_others() {
        let mut schedule = Schedule::default();
        let slow = (0..100).map(|q| (question("a", q), wanted(1, "slow")));
        let quick = (100..104).map(|q| (question("a", q), wanted(1, "quick")));
        schedule.want(slow.chain(quick).collect(), 0);
        let taken = schedule.take_due(SPREAD);
        assert_eq!(taken.len(), 2 * NAMESPACE_SLOTS, "{taken:?}");
        let of_quick = taken.iter().filter(|q| q.query.len() == 4).count();
        assert_eq!(of_quick, 4);
    }

    #[test]
    fn a_shorter_interval_counts_at_once_and_a_question_nobody_wants_is_not_asked() {
        let mut schedule = Schedule::default();
        let q = question("a", 0);
        schedule.want([(q.clone(), wanted(3600, "n"))].into(), 0);
        assert_eq!(schedule.take_due(SPREAD), std::slice::from_ref(&q));
        schedule.done(&q, Outcome::Answered, SPREAD);
        schedule.want([(q.clone(), wanted(1, "n"))].into(), SPREAD);
        assert_eq!(schedule.take_due(SPREAD + 1000), std::slice::from_ref(&q));
        schedule.want(HashMap::new(), SPREAD + 1000);
        schedule.done(&q, Outcome::Answered, SPREAD + 1001);
        assert_eq!(schedule.take_due(u64::MAX / 2), []);
        assert!(schedule.entries.is_empty() && schedule.waiting.is_empty());
    }

    proptest! {
        #[test]
        fn nothing_is_asked_twice_at_once_or_forgotten(
            steps in proptest::collection::vec((0_u8..4, 0_usize..4, 0_u64..4000), 1..80)
        ) {
            let mut schedule = Schedule::default();
            let (mut now, mut asking) = (0, BTreeSet::new());
            for (what, number, passes) in steps {
                now += passes;
                match what {
                    0 => schedule.want((0..number).map(|q| (question("a", q), wanted(1 + q as u64, "n"))).collect(), now),
                    1 => for q in schedule.take_due(now) {
                        prop_assert!(asking.insert(q));
                    },
                    _ => if let Some(q) = asking.pop_first() {
                        let outcome = [Outcome::Answered, Outcome::QuestionFailed, Outcome::ServerFailed][number % 3];
                        schedule.done(&q, outcome, now);
                    },
                }
                let loads: usize = schedule.servers.values().map(|load| load.asking).sum();
                prop_assert_eq!(loads, asking.len());
                for (q, entry) in &schedule.entries {
                    prop_assert_eq!(entry.asking, asking.contains(q));
                    prop_assert_eq!(!entry.asking, schedule.waiting.contains(&(entry.due, q.clone())));
                }
            }
        }
    }
}
