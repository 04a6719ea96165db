//! What all tests share: the control plane with the charts in it, and those who stand for pods and gateways.

use std::future::Future;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU8, Ordering};
use std::sync::{Arc, OnceLock};

use anyhow::{Context, Result};
use kube::Client;
use pagoda_e2e::cache::Cache;
use pagoda_e2e::charts;
use pagoda_e2e::cluster::ControlPlane;
use pagoda_e2e::operator_process::{allow_leases, debug_program};
use pagoda_e2e::progress::Progress;
use pagoda_e2e::replicas_seen::ReplicasSeen;
use pagoda_e2e::sources::Sources;
use tokio::runtime::Runtime;

use crate::stage::Stage;

const NODES: usize = 2;
/// Names the operator to test when it is not the debug build beside this program.
const PROGRAM_VARIABLE: &str = "PAGODA_OPERATOR_PROGRAM";

/// Shared by all tests; built once the sandbox is there.
#[derive(Clone)]
pub struct Ground(Arc<OnceLock<Built>>);

/// The parts.
pub struct Built {
    pub client: Client,
    pub plane: ControlPlane,
    pub sources: Sources,
    pub seen: ReplicasSeen,
    pub operator: PathBuf,
    stages: AtomicU8,
    /// Last, because the others' tasks run on it.
    runtime: Runtime,
}

impl Ground {
    /// For listing tests.
    pub fn unbuilt() -> Self {
        Self(Arc::default())
    }

    /// Starts everything.
    pub fn build() -> Result<Self> {
        let runtime = Runtime::new()?;
        let built = runtime.block_on(parts())?;
        let (client, plane, sources, seen, operator) = built;
        let ground = Self::unbuilt();
        ground.0.get_or_init(|| Built {
            client,
            plane,
            sources,
            seen,
            operator,
            stages: AtomicU8::new(1),
            runtime,
        });
        Ok(ground)
    }

    /// Runs a test on a stage of its own. When it fails, what its operator said last is part of the reason.
    pub fn stage<F, Fut>(&self, name: &str, test: F) -> Result<()>
    where
        F: FnOnce(Arc<Stage>) -> Fut,
        Fut: Future<Output = Result<()>>,
    {
        let built = self.0.get().context("the control plane is not there")?;
        let number = built.stages.fetch_add(1, Ordering::Relaxed);
        built.runtime.block_on(async {
            let stage = Arc::new(Stage::set(self.clone(), name, number).await?);
            let outcome = test(stage.clone()).await;
            let outcome = outcome.and_then(|()| stage.ensure_sound());
            stage.leave().await;
            outcome.with_context(|| stage.report())
        })
    }

    /// The parts of one that was built.
    pub fn built(&self) -> &Built {
        self.0
            .get()
            .expect("stages stand on a ground that was built")
    }
}

async fn parts() -> Result<(Client, ControlPlane, Sources, ReplicasSeen, PathBuf)> {
    let progress = Progress::start();
    let operator = std::env::var_os(PROGRAM_VARIABLE).map(PathBuf::from);
    let operator = operator.map_or_else(debug_program, Ok)?;
    let mut sources = Sources::start(&operator.with_file_name("pagoda-engine")).await?;
    let plane = ControlPlane::start(&Cache::from_env()?, NODES, &progress)?;
    let images = charts::pullable_images("registry.invalid/pagoda", "test");
    let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("../charts");
    let settings = ["metricsApi.enabled=true".to_owned()];
    charts::install(&plane.target(), &folder, &images, &settings, &progress)?;
    let client = plane.client().await?;
    allow_leases(&client).await?;
    sources.follow(client.clone());
    let seen = ReplicasSeen::watch(&client);
    Ok((client, plane, sources, seen, operator))
}
