//! `serve`: listen at once, load, answer, and leave without cutting anybody off.

use std::process::ExitCode;
use std::sync::Arc;
use std::time::Duration;

use pagoda_source::ModelLock;
use tokio::net::TcpListener;
use tokio::sync::oneshot;
use tokio::task::JoinHandle;

use crate::app::App;
use crate::commands::Signals;
use crate::config::{Backend, ServeConfig};
use crate::drain::GRACE;
use crate::engine::EngineEnd;
use crate::failure::Fatal;
use crate::load::load;
use crate::{http, threads};

/// How long the engine and the connections get to say goodbye once everything is over.
const GOODBYE: Duration = Duration::from_secs(5);

/// What a second SIGTERM exits with: 128 and the signal's number, as shells have it.
const KILLED: u8 = 143;

/// Serves until told to leave. `threads` is what the process may use unless given.
pub fn serve(config: ServeConfig, threads: Option<usize>) -> Result<ExitCode, Fatal> {
    // Two threads are plenty for HTTP; the others belong to the forward pass.
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Fatal::internal(format!("cannot start the runtime: {error}")))?;
    let threads = threads.unwrap_or_else(threads::available);
    let outcome = runtime.block_on(run(config, threads));
    // A load under way cannot be interrupted, and the process ends anyway.
    runtime.shutdown_background();
    outcome
}

async fn run(config: ServeConfig, threads: usize) -> Result<ExitCode, Fatal> {
    let mut signals = Signals::new()?;
    let app = Arc::new(App::loading(config.names.clone()));
    let server = HttpServer::start(&config, &app).await?;
    // For as long as this serves: a cache that makes room passes over models that are held.
    let _lock = hold_model(&config.backend).await;
    let mut engine_end = tokio::select! {
        started = start_engine(&config, threads, &app) => started?,
        () = signals.next() => return Ok(ExitCode::SUCCESS),
    };
    tokio::select! {
        () = signals.next() => {}
        end = &mut engine_end => return Err(engine_crashed(end)),
    }
    tracing::info!(
        open_requests = app.drain.open_requests(),
        drain_seconds = config.drain.as_secs(),
        "draining"
    );
    let code = tokio::select! {
        left = app.drain.run(GRACE, config.drain) => {
            tracing::info!(open_requests = left, "drained");
            ExitCode::SUCCESS
        }
        () = signals.next() => ExitCode::from(KILLED),
        end = &mut engine_end => return Err(engine_crashed(end)),
    };
    goodbye(&app, engine_end, server).await;
    Ok(code)
}

/// Holds the model file against eviction. Where that cannot be done, loading says why, or nobody evicts.
async fn hold_model(backend: &Backend) -> Option<ModelLock> {
    let Backend::Cpu(path) = backend.clone() else {
        return None;
    };
    let held = tokio::task::spawn_blocking(move || (ModelLock::hold(&path), path)).await;
    match held {
        Ok((Ok(lock), _)) => Some(lock),
        Ok((Err(error), path)) => {
            tracing::warn!(path = %path.display(), %error, "cannot hold the model file");
            None
        }
        Err(error) => {
            tracing::warn!(%error, "cannot hold the model file");
            None
        }
    }
}

/// Loads the model and starts its engine; from then on the pod is ready.
async fn start_engine(
    config: &ServeConfig,
    threads: usize,
    app: &Arc<App>,
) -> Result<EngineEnd, Fatal> {
    let (backend, size, progress) = (config.backend.clone(), config.size.clone(), Arc::clone(app));
    let loading = tokio::task::spawn_blocking(move || {
        load(&backend, &size, threads, &mut |percent| {
            progress.set_loaded_percent(percent);
        })
    });
    let loaded = loading
        .await
        .map_err(|error| Fatal::internal(format!("loading crashed: {error}")))??;
    let (info, isa) = (loaded.info.clone(), loaded.executor.info().isa);
    let kv_blocks = loaded.limits.block_count;
    let end = app.start(loaded, http::unix_seconds());
    let end = end.map_err(|error| Fatal::invalid_config(error.to_string()))?;
    tracing::info!(?info, isa, threads, kv_blocks, "ready");
    Ok(end)
}

fn engine_crashed(end: Result<Result<(), String>, oneshot::error::RecvError>) -> Fatal {
    let detail = match end {
        Ok(Err(panic)) => panic,
        Ok(Ok(())) | Err(_) => "it left without being told to".into(),
    };
    Fatal::internal(format!("the engine stopped unexpectedly: {detail}"))
}

/// Ends what is left with error events, and lets connections send what they still hold.
async fn goodbye(app: &App, engine_end: EngineEnd, server: HttpServer) {
    if let Ok(served) = app.served() {
        served.engine.stop();
    }
    // Both only cost time when they fail.
    let _ = tokio::time::timeout(GOODBYE, engine_end).await;
    let _ = tokio::time::timeout(GOODBYE, server.stop()).await;
}

/// The listening side.
struct HttpServer {
    stop: oneshot::Sender<()>,
    task: JoinHandle<std::io::Result<()>>,
}

impl HttpServer {
    async fn start(config: &ServeConfig, app: &Arc<App>) -> Result<Self, Fatal> {
        let listener = TcpListener::bind(config.listen).await;
        let listener = listener.map_err(|error| {
            Fatal::invalid_config(format!("cannot listen on {}: {error}", config.listen))
        })?;
        // The port may have been 0, for the system to choose.
        let address = listener
            .local_addr()
            .map_or_else(|_| config.listen.to_string(), |address| address.to_string());
        tracing::info!(address, names = ?config.names, "listening");
        let (stop, stopped) = oneshot::channel::<()>();
        let serve =
            axum::serve(listener, http::router(Arc::clone(app))).with_graceful_shutdown(async {
                // A dropped sender means the same.
                let _ = stopped.await;
            });
        Ok(Self {
            stop,
            task: tokio::spawn(serve.into_future()),
        })
    }

    async fn stop(self) {
        let _ = self.stop.send(());
        if let Ok(Err(error)) = self.task.await {
            tracing::warn!(%error, "the HTTP server failed");
        }
    }
}
