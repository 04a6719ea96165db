//! `./bench chaos`: seeded random chaos over a few hundred services and two operators, watched by an observer that trusts
//! neither. Ends when its time is over and all has come right.

mod cluster;
mod converged;
mod observer;
mod operators;
mod plan;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::ExitCode;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use futures::{StreamExt, TryStreamExt};
use kube::api::DynamicObject;
use kube::core::ApiResource;
use kube::runtime::watcher;
use kube::{Api, Client};
use pagoda_e2e::cache::Cache;
use pagoda_e2e::faults::{Fault, Match};
use pagoda_e2e::progress::Progress;
use rustix::process::Signal;
use serde_json::json;
use tokio::task::JoinHandle;

use crate::bed::audit::{AuditLog, Write, by_resource};
use crate::bed::services::{child_resources, resource};
use crate::bed::{self, Bed};
use cluster::{Services, Wanted};
use converged::Snapshot;
use observer::{Event, Observer, after_takeover};
use operators::Operators;
use plan::{Action, World};

const NAMESPACES: usize = 4;
const NODES: usize = 6;
/// How often an action is tried again that the API server did not do.
const ATTEMPTS: u32 = 5;
const AGAIN_AFTER: Duration = Duration::from_secs(1);
/// Lines of history that a failure shows.
const HISTORY: usize = 60;
/// How much of what is wrong is told at once.
const MOST_TOLD: usize = 12;

/// How long, over what, and along which plan.
#[derive(Debug, clap::Args)]
pub struct Arguments {
    /// Seconds of chaos; what follows until all is calm comes on top
    #[arg(long, default_value_t = 1800)]
    seconds: u64,
    /// Names of services, of which each twentieth is contested by somebody else's objects
    #[arg(long, default_value_t = 200, value_parser = clap::value_parser!(u32).range(20..=1000))]
    services: u32,
    /// The plan; the same seed does the same again. By default one drawn from the clock
    #[arg(long)]
    seed: Option<u64>,
    /// Seconds after which everything has to be right once all faults have ended
    #[arg(long, default_value_t = 240)]
    patience_seconds: u64,
}

/// Runs chaos; the exit code is 1 when an invariant was broken.
pub fn run(arguments: &Arguments, cache: &Cache, workspace: &Path) -> Result<ExitCode> {
    bed::inside(cache, || async {
        let seed = arguments
            .seed
            .unwrap_or_else(|| jiff::Timestamp::now().as_millisecond().unsigned_abs() % 1_000_000);
        let progress = Progress::start();
        progress.step(format!(
            "seed {seed}: ./bench chaos --seed {seed} --services {} plays it again",
            arguments.services
        ));
        let mut chaos = Chaos::start(arguments, seed, cache, workspace, &progress).await?;
        let outcome = chaos.play().await;
        Ok(chaos.conclude(outcome))
    })
}

struct Chaos<'a> {
    arguments: &'a Arguments,
    seed: u64,
    progress: &'a Progress,
    world: World,
    bed: Bed,
    operators: Operators,
    services: Services,
    eyes: Eyes,
    audit: AuditLog,
    writes: Vec<Write>,
    /// How many of them have been judged: see [`after_takeover`].
    judged: usize,
    violations: Vec<String>,
    steps: u64,
    calms: u64,
    /// Seconds that the longest way back to calm took.
    longest_calm: f64,
    done: BTreeMap<String, u64>,
    history: VecDeque<String>,
}

impl<'a> Chaos<'a> {
    async fn start(
        arguments: &'a Arguments,
        seed: u64,
        cache: &Cache,
        workspace: &Path,
        progress: &'a Progress,
    ) -> Result<Self> {
        let world = World {
            slots: arguments.services as usize,
            namespaces: NAMESPACES,
            nodes: NODES,
        };
        let bed = Bed::start(cache, workspace, NODES, progress).await?;
        let operators = Operators::start(&bed).await?;
        let services = Services::new(bed.client.clone(), world);
        for index in 0..NAMESPACES {
            bed.plane
                .kubectl()
                .run(&["create", "namespace", &Services::namespace(index)])?;
        }
        Ok(Self {
            arguments,
            seed,
            progress,
            world,
            operators,
            eyes: Eyes::open(&bed.client),
            audit: bed.audit(),
            services,
            bed,
            writes: Vec::new(),
            judged: 0,
            violations: Vec::new(),
            steps: 0,
            calms: 0,
            longest_calm: 0.0,
            done: BTreeMap::new(),
            history: VecDeque::new(),
        })
    }

    /// The whole of it. An error names what may never be.
    async fn play(&mut self) -> Result<()> {
        for slot in (0..self.world.slots).filter(|slot| !World::is_contested(*slot)) {
            self.put(slot, |_| Wanted {
                pods: u32::from(slot % 2 == 0),
                mark: 0,
            })
            .await?;
        }
        self.progress.step(format!(
            "{} services, two operators: waiting until all is right",
            self.world.slots
        ));
        self.calm().await?;
        let end = Instant::now() + Duration::from_secs(self.arguments.seconds);
        while Instant::now() < end {
            let (action, wait) = plan::step(self.seed, self.steps, self.world);
            self.note(&action);
            self.steps += 1;
            self.act_patiently(&action).await?;
            self.pass(wait).await?;
        }
        self.progress.step("the last calm");
        self.calm().await?;
        self.fresh_operator().await
    }

    fn note(&mut self, action: &Action) {
        let words = format!("{action:?}");
        let kind = words
            .split([' ', '(', '{'])
            .next()
            .unwrap_or_default()
            .to_owned();
        *self.done.entry(kind).or_default() += 1;
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        self.history.push_back(format!(
            "{:7.1} s  step {:<6}{words}",
            self.progress.seconds(),
            self.steps
        ));
    }

    /// Lets time pass, tends the operators, and looks whether anything was seen that may never be.
    async fn pass(&mut self, length: Duration) -> Result<()> {
        let until = Instant::now() + length;
        loop {
            self.operators.tend(&self.bed).await?;
            let seen = self.eyes.violations();
            self.record(seen);
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return Ok(());
            }
            tokio::time::sleep(left.min(Duration::from_millis(100))).await;
        }
    }

    /// Tells what was seen that may never be, with what led to it, and goes on: one fault must not hide the next.
    fn record(&mut self, wrong: Vec<String>) {
        if self.violations.is_empty() && !wrong.is_empty() {
            self.progress.step("the last steps:");
            self.history.iter().for_each(|step| eprintln!("  {step}"));
        }
        for what in wrong {
            if self.violations.len() < MOST_TOLD {
                self.progress
                    .step(format!("VIOLATED at step {}: {what}", self.steps));
            }
            self.violations.push(what);
        }
    }

    /// An API server that has just come back may refuse a user as well; all actions can be done again.
    async fn act_patiently(&mut self, action: &Action) -> Result<()> {
        for _ in 0..ATTEMPTS {
            match self.act(action).await {
                Err(error) if error.is::<kube::Error>() => self.pass(AGAIN_AFTER).await?,
                other => return other,
            }
        }
        self.act(action).await
    }

    async fn act(&mut self, action: &Action) -> Result<()> {
        match *action {
            Action::Calm => self.calm().await,
            Action::Create { slot } => {
                self.put(slot, |wanted| wanted.unwrap_or(Wanted { pods: 1, mark: 0 }))
                    .await
            }
            Action::Change { slot, mark } => {
                self.put(slot, |wanted| Wanted {
                    mark,
                    ..wanted.unwrap_or(Wanted { pods: 1, mark })
                })
                .await
            }
            Action::Resize { slot, pods } => {
                self.put(slot, |wanted| Wanted {
                    pods,
                    ..wanted.unwrap_or(Wanted { pods, mark: 0 })
                })
                .await
            }
            Action::Delete { slot } => {
                self.touch(slot);
                self.services.delete(slot).await
            }
            Action::Recreate { slot } => {
                self.touch(slot);
                let before = self.services.slots[slot].wanted.clone();
                self.services.delete(slot).await?;
                self.put(slot, |_| before.unwrap_or(Wanted { pods: 1, mark: 0 }))
                    .await
            }
            Action::DeleteChild { slot, kind } => {
                self.touch(slot);
                self.services.delete_child(slot, kind).await
            }
            Action::EditChild { slot, kind } => {
                self.touch(slot);
                self.services.edit_child(slot, kind).await
            }
            Action::DeletePod { slot } => {
                self.touch(slot);
                self.services.delete_pod(slot).await
            }
            _ => self.act_around(action).await,
        }
    }

    async fn act_around(&mut self, action: &Action) -> Result<()> {
        match *action {
            Action::Foreign { slot, kind } => self.contest(slot, kind).await,
            Action::ForeignGone { slot } => {
                self.touch(slot);
                if let Some((_, uid)) = &self.services.slots[slot].foreign {
                    self.eyes.observer().release(uid);
                }
                self.services.delete_foreign(slot).await
            }
            Action::LoseNode { node } => self.lose_node(node).await,
            Action::Quota { namespace } => self.services.close(namespace).await,
            Action::QuotaGone { namespace } => self.services.open(namespace).await,
            Action::KillApiServer => self.lose_control_plane(),
            _ => self.act_on_operator(action).await,
        }
    }

    /// Kubernetes' own garbage collector, when it lists anew, sees no deletion of what was made again under the same name meanwhile, and
    /// for ever leaves what the deleted one owned, such as a Deployment's ReplicaSet. One that starts with the API server knows
    /// better.
    fn lose_control_plane(&mut self) -> Result<()> {
        self.bed.plane.restart("apiserver")?;
        self.bed.plane.restart("controller-manager")
    }

    async fn act_on_operator(&mut self, action: &Action) -> Result<()> {
        let operators = &mut self.operators;
        // The lease is left out where all writes fail: that is another fault, and comes by itself.
        let writes = || Match::writes().except("leases");
        match *action {
            Action::Kill(which) => operators.signal(which, Signal::KILL)?,
            Action::Stop(which) => operators.signal(which, Signal::TERM)?,
            Action::Pause(which, length) => operators.pause(which, length)?,
            Action::Refuse(which, status, length) => {
                let answer = Fault::Answer {
                    status,
                    retry_after: (status == 429).then_some(1),
                };
                operators.fault(which, writes(), answer, length).await;
            }
            Action::StrikeWatches(which, strike) => operators.strike(which, strike),
            Action::Silence(which, length) => operators.silence(which, length),
            Action::Unreachable(which, length) => operators.cut_off(which, length).await,
            Action::Slow(which, length) => {
                operators
                    .fault(
                        which,
                        Match::any(),
                        Fault::Delay(Duration::from_millis(300)),
                        length,
                    )
                    .await;
            }
            Action::LoseAnswers(which, length) => {
                operators
                    .fault(which, writes(), Fault::LoseAnswer, length)
                    .await;
            }
            _ => {}
        }
        Ok(())
    }

    fn touch(&self, slot: usize) {
        self.eyes.observer().touch(self.services.key(slot));
    }

    async fn put(
        &mut self,
        slot: usize,
        change: impl FnOnce(Option<Wanted>) -> Wanted,
    ) -> Result<()> {
        self.touch(slot);
        let wanted = change(self.services.slots[slot].wanted.clone());
        self.services.put(slot, wanted).await
    }

    async fn contest(&mut self, slot: usize, kind: usize) -> Result<()> {
        if let Some((uid, version)) = self.services.make_foreign(slot, kind).await? {
            self.eyes.observer().guard(uid, version);
        }
        self.put(slot, |wanted| wanted.unwrap_or(Wanted { pods: 1, mark: 0 }))
            .await
    }

    /// Deletes a node; the next calm brings it back.
    async fn lose_node(&mut self, node: usize) -> Result<()> {
        let name = format!("node-{node}");
        // Touched before and after, for a pod may be bound to it in between.
        self.touch_node(&name).await?;
        self.bed
            .plane
            .kubectl()
            .run(&["delete", "node", &name, "--ignore-not-found"])?;
        self.touch_node(&name).await
    }

    async fn touch_node(&mut self, name: &str) -> Result<()> {
        for key in self.services.on_node(name).await? {
            self.eyes.observer().touch(key);
        }
        Ok(())
    }

    /// All faults end, and within the patience everything is as it has to be.
    async fn calm(&mut self) -> Result<()> {
        let began = Instant::now();
        self.operators.heal().await?;
        for namespace in 0..NAMESPACES {
            self.services.open(namespace).await?;
        }
        self.bed.plane.add_nodes(NODES)?;
        let patience = Duration::from_secs(self.arguments.patience_seconds);
        let mut said = Instant::now();
        loop {
            self.pass(Duration::from_millis(500)).await?;
            let wrong = match Snapshot::read(&self.services).await {
                Ok(snapshot) => snapshot.wrong(&self.services),
                Err(error) => vec![format!("the cluster cannot be read: {error:#}")],
            };
            if wrong.is_empty() {
                break;
            }
            if began.elapsed() > patience {
                let told: Vec<&str> = wrong.iter().take(MOST_TOLD).map(String::as_str).collect();
                bail!(
                    "{} s after all faults had ended {} things are still wrong:\n{}",
                    patience.as_secs(),
                    wrong.len(),
                    told.join("\n")
                );
            }
            if said.elapsed() > Duration::from_secs(10) {
                self.progress.step(format!(
                    "{} things not yet right, such as {}",
                    wrong.len(),
                    wrong[0]
                ));
                said = Instant::now();
            }
        }
        self.pass(Duration::from_secs(1)).await?;
        let seconds = began.elapsed().as_secs_f64();
        self.longest_calm = self.longest_calm.max(seconds);
        self.calms += 1;
        self.writes.extend(self.audit.read_on()?);
        let late = after_takeover(&self.writes[self.judged..]);
        self.record(late);
        // Whoever leads now may have taken the lease a while ago.
        self.judged = self
            .writes
            .iter()
            .rposition(Write::is_of_lease)
            .unwrap_or_default();
        self.eyes.observer().all_calm();
        self.progress.step(format!(
            "step {}: all right {seconds:.1} s after the faults ended; {} writes by operators, {} operators started again",
            self.steps,
            self.writes.iter().filter(|write| write.is_work()).count(),
            self.operators.restarts()
        ));
        Ok(())
    }

    /// An operator that has seen nothing of it finds nothing to do.
    async fn fresh_operator(&mut self) -> Result<()> {
        self.operators.stop().await?;
        self.audit.skip()?;
        let operator = self.bed.leading_operator("chaos-fresh").await?;
        tokio::time::sleep(Duration::from_secs(15)).await;
        let writes: Vec<Write> = self
            .audit
            .read_on()?
            .into_iter()
            .filter(Write::is_work)
            .collect();
        operator.stop().await?;
        let told =
            |(what, count): (String, usize)| format!("a fresh operator did {count} times: {what}");
        let found: Vec<String> = by_resource(writes.iter())
            .into_iter()
            .map(told)
            .chain(self.eyes.violations())
            .collect();
        self.record(found);
        Ok(())
    }

    fn conclude(&self, outcome: Result<()>) -> ExitCode {
        let done: Vec<String> = self
            .done
            .iter()
            .map(|(kind, count)| format!("{count} {kind}"))
            .collect();
        println!("{} steps: {}", self.steps, done.join(", "));
        let line = json!({
            "bench": "chaos",
            "seed": self.seed,
            "services": self.world.slots,
            "seconds": self.arguments.seconds,
            "steps": self.steps,
            "calms": self.calms,
            "longest_calm_s": (self.longest_calm * 10.0).round() / 10.0,
            "operators_started_again": self.operators.restarts(),
            "operator_writes": self.writes.iter().filter(|write| write.is_work()).count(),
            "violations": self.violations.len() + usize::from(outcome.is_err()),
        });
        if outcome.is_ok() && self.violations.is_empty() {
            println!("every invariant held\n{line}");
            return ExitCode::SUCCESS;
        }
        if let Err(error) = outcome {
            println!("the last steps:");
            self.history.iter().for_each(|step| println!("  {step}"));
            println!(
                "{}\n\nSTOPPED after step {}: {error:#}",
                self.operators.log_tails(),
                self.steps
            );
        }
        println!("{} violations", self.violations.len());
        self.violations
            .iter()
            .take(MOST_TOLD)
            .for_each(|what| println!("  {what}"));
        println!(
            "play it again: ./bench chaos --seed {} --services {}\n{line}",
            self.seed, self.world.slots
        );
        ExitCode::FAILURE
    }
}

/// The watches, and what they have shown that may never be.
struct Eyes {
    shared: Arc<Mutex<(Observer, Vec<String>)>>,
    watches: Vec<JoinHandle<()>>,
}

impl Eyes {
    fn open(client: &Client) -> Self {
        let shared = Arc::default();
        let kinds = child_resources()
            .into_iter()
            .chain([resource(), cluster::pods()]);
        let watches = kinds
            .map(|kind| tokio::spawn(watch(client.clone(), kind, Arc::clone(&shared))))
            .collect();
        Self { shared, watches }
    }

    fn observer(&self) -> ObserverGuard<'_> {
        ObserverGuard(lock(&self.shared))
    }

    fn violations(&self) -> Vec<String> {
        std::mem::take(&mut lock(&self.shared).1)
    }
}

impl Drop for Eyes {
    fn drop(&mut self) {
        self.watches.iter().for_each(JoinHandle::abort);
    }
}

struct ObserverGuard<'a>(MutexGuard<'a, (Observer, Vec<String>)>);

impl std::ops::Deref for ObserverGuard<'_> {
    type Target = Observer;

    fn deref(&self) -> &Observer {
        &self.0.0
    }
}

impl std::ops::DerefMut for ObserverGuard<'_> {
    fn deref_mut(&mut self) -> &mut Observer {
        &mut self.0.0
    }
}

fn lock(shared: &Mutex<(Observer, Vec<String>)>) -> MutexGuard<'_, (Observer, Vec<String>)> {
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

async fn watch(client: Client, kind: ApiResource, shared: Arc<Mutex<(Observer, Vec<String>)>>) {
    let api: Api<DynamicObject> = Api::all_with(client, &kind);
    let mut events = watcher(api, watcher::Config::default()).boxed();
    loop {
        let (object, deleted, listed) = match events.try_next().await {
            Ok(Some(watcher::Event::Apply(object))) => (object, false, false),
            Ok(Some(watcher::Event::InitApply(object))) => (object, false, true),
            Ok(Some(watcher::Event::Delete(object))) => (object, true, false),
            Ok(Some(_)) => continue,
            Ok(None) => return,
            Err(_) => {
                tokio::time::sleep(Duration::from_millis(200)).await;
                continue;
            }
        };
        let Ok(object) = serde_json::to_value(object) else {
            continue;
        };
        let mut shared = lock(&shared);
        let wrong = shared.0.see(&Event {
            kind: kind.kind.clone(),
            object,
            deleted,
            listed,
        });
        shared.1.extend(wrong);
    }
}
