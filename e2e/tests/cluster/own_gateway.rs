//! A gateway of a test's own: a process of this machine that the operator counts among the installed ones and that no other
//! test's requests come to, so that it can be ended in mid-work.

use std::net::{SocketAddr, TcpListener};
use std::process::{ExitStatus, Stdio};

use anyhow::{Context, Result, ensure};
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::discovery::v1::EndpointSlice;
use kube::api::{DeleteParams, Patch, PatchParams};
use kube::{Api, ResourceExt};
use pagoda_e2e::charts::SYSTEM_NAMESPACE;
use pagoda_e2e::cluster::{Cluster, HOST_ADDRESS};
use pagoda_e2e::openai::OpenAi;
use pagoda_e2e::process::ProcessIdentity;
use rustix::process::Signal;
use serde_json::json;
use tokio::process::{Child, Command};

use crate::bed::{Bed, PATIENCE, eventually};

/// See the module's documentation.
pub struct OwnGateway {
    /// Its side for clients.
    pub client: OpenAi,
    admin: String,
    process: Child,
    slices: Api<EndpointSlice>,
    slice: String,
}

impl OwnGateway {
    /// Starts one that follows the whole cluster, and waits until the operator may ask it.
    pub async fn start(bed: &Bed) -> Result<Self> {
        let cluster = Cluster::local()?;
        let (listen, admin) = (free_address()?, free_address()?);
        let mut command = Command::new(program()?);
        command
            .args(["--listen", &listen.to_string()])
            .args(["--admin-listen", &admin.to_string()])
            .args(["--shutdown-grace-seconds", "1", "--access-log", "off"])
            .env("KUBECONFIG", cluster.paths().kubeconfig())
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .kill_on_drop(true);
        // A proxy that the user's environment names does not lead to a cluster on this machine.
        for name in ["HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"] {
            command.env_remove(name);
        }
        let process = command
            .spawn()
            .context("build it first: cargo build --workspace --bin pagoda-gateway")?;
        let own = Self {
            client: OpenAi::new(&format!("http://{listen}"))?,
            admin: format!("http://{admin}"),
            process,
            slices: Api::namespaced(bed.client.clone(), SYSTEM_NAMESPACE),
            slice: format!("{}-gateway", bed.namespace),
        };
        eventually("a gateway of the test is ready", PATIENCE, async || {
            own.admin_text("/readyz").await.map(drop)
        })
        .await?;
        own.announce(bed, admin).await?;
        Ok(own)
    }

    /// The operator asks every address behind the gateways' Service that serves. As one that is ending it gets no clients.
    async fn announce(&self, bed: &Bed, admin: SocketAddr) -> Result<()> {
        let namespaces: Api<Namespace> = Api::all(bed.client.clone());
        let owner = namespaces.get(&bed.namespace).await?;
        let slice = json!({
            "apiVersion": "discovery.k8s.io/v1",
            "kind": "EndpointSlice",
            "metadata": {
                "name": self.slice,
                "labels": {
                    "kubernetes.io/service-name": "pagoda-gateway",
                    "endpointslice.kubernetes.io/managed-by": "pagoda-e2e",
                },
                // A test that fails leaves no gateway behind that never answers.
                "ownerReferences": [{
                    "apiVersion": "v1", "kind": "Namespace", "name": owner.name_any(), "uid": owner.uid().unwrap_or_default(),
                }],
            },
            "addressType": "IPv4",
            "endpoints": [{
                "addresses": [admin.ip().to_string()],
                "conditions": {"ready": false, "serving": true, "terminating": true},
            }],
            "ports": [{"name": "admin", "port": admin.port(), "protocol": "TCP"}],
        });
        let params = PatchParams::apply("e2e").force();
        self.slices
            .patch(&self.slice, &params, &Patch::Apply(&slice))
            .await?;
        Ok(())
    }

    /// Waits until it has learnt of a service.
    pub async fn knows(&self, model: &str) -> Result<()> {
        eventually("the gateway knows the service", PATIENCE, async || {
            let url = self.client.url(&format!("/v1/models/{model}"));
            let status = self.client.http().get(url).send().await?.status();
            ensure!(status.is_success(), "it says {status}");
            Ok(())
        })
        .await
    }

    /// A metric of one service; 0 when there is no such series yet.
    pub async fn metric(&self, bed: &Bed, service: &str, name: &str) -> Result<u64> {
        let text = self.admin_text("/metrics").await?;
        let start = format!(
            "pagoda_gateway_{name}{{namespace=\"{}\",service=\"{service}\"}} ",
            bed.namespace
        );
        let found = text.lines().find_map(|line| line.strip_prefix(&start));
        Ok(found.map(str::parse).transpose()?.unwrap_or(0))
    }

    async fn admin_text(&self, path: &str) -> Result<String> {
        let url = format!("{}{path}", self.admin);
        let answer = self.client.http().get(url).send().await?;
        Ok(answer.error_for_status()?.text().await?)
    }

    /// Sends a signal, and waits until the process has ended by it.
    pub async fn end(mut self, signal: Signal) -> Result<ExitStatus> {
        let pid = self.process.id().context("it has ended already")?;
        let process = i32::try_from(pid).ok().and_then(ProcessIdentity::observe);
        process.context("it has ended already")?.signal(signal)?;
        let ended = tokio::time::timeout(PATIENCE, self.process.wait()).await;
        self.slices
            .delete(&self.slice, &DeleteParams::default())
            .await?;
        Ok(ended.context("it does not end")??)
    }
}

/// The debug build beside this test.
fn program() -> Result<std::path::PathBuf> {
    let own = std::env::current_exe()?;
    let mut folders = own.ancestors();
    let debug = folders.find(|folder| folder.ends_with("debug"));
    Ok(debug
        .context("this test is no debug build")?
        .join("pagoda-gateway"))
}

/// An address of the host's that the cluster's pods reach.
fn free_address() -> Result<SocketAddr> {
    let listener = TcpListener::bind((HOST_ADDRESS, 0)).context("the local cluster is not up")?;
    Ok(listener.local_addr()?)
}
