//! Being told to leave.

use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Fatal;

/// SIGTERM from the kubelet, SIGINT from a terminal.
pub struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    /// Listens from now on.
    pub fn new() -> Result<Self, Fatal> {
        let listen = |kind| {
            signal(kind)
                .map_err(|error| Fatal::internal(format!("cannot listen for signals: {error}")))
        };
        Ok(Self {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
        })
    }

    /// The next one.
    pub async fn next(&mut self) {
        tokio::select! {
            _ = self.terminate.recv() => {}
            _ = self.interrupt.recv() => {}
        }
    }
}

/// Returns when told to leave.
pub fn wait() -> Result<(), Fatal> {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build();
    let runtime =
        runtime.map_err(|error| Fatal::internal(format!("cannot start the runtime: {error}")))?;
    runtime.block_on(async {
        Signals::new()?.next().await;
        Ok(())
    })
}
