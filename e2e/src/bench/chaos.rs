//! `./bench chaos`: seeded random chaos over a few hundred services and two operators, watched by an observer that trusts
//! neither. Ends when its time is over and all has come right.

mod acts;
mod cluster;
mod converged;
mod eyes;
mod observer;
mod operators;
mod plan;

use std::collections::{BTreeMap, VecDeque};
use std::path::Path;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::{Result, bail};
use pagoda_e2e::cache::Cache;
use pagoda_e2e::progress::Progress;
use serde_json::json;

use crate::bed::audit::{AuditLog, Write, by_resource};
use crate::bed::{self, Bed};
use cluster::{Services, Wanted};
use converged::Snapshot;
use eyes::Eyes;
use observer::after_takeover;
use operators::Operators;
use plan::{Action, World};

const NAMESPACES: usize = 4;
const NODES: usize = 6;
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
