//! What a ready pod tells of the model that it loaded.

use std::time::Duration;

use pagoda_crds::{names, wire::ModelInfo};
use pagoda_operator_core::status::PodView;
use serde::Deserialize;

use crate::{context::Context, key::Key};

const TIMEOUT: Duration = Duration::from_secs(2);
/// Of each text in the facts; a pod may be anything that a user put there.
const TEXT_BYTES: usize = 64;

#[derive(Deserialize)]
struct Models {
    data: Vec<Entry>,
}

#[derive(Deserialize)]
struct Entry {
    pagoda: Option<ModelInfo>,
}

/// Facts of a revision's model: asked for once, then remembered. `None` while no pod tells them.
pub async fn model_facts(
    context: &Context,
    key: &Key,
    revision: &str,
    pods: &[PodView],
) -> Option<ModelInfo> {
    if let Some((known, facts)) = context.recall(key).model
        && known == revision
    {
        return Some(facts);
    }
    let ready = pods
        .iter()
        .find(|p| p.ready && !p.leaving && p.revision.as_deref() == Some(revision))?;
    let url = format!(
        "http://{}:{}/v1/models",
        address(ready.ip.as_deref()?),
        names::ENGINE_PORT
    );
    match context.http.get(&url, TIMEOUT).await {
        Ok(body) => {
            let models: Models = serde_json::from_slice(&body).ok()?;
            let facts = models
                .data
                .into_iter()
                .find_map(|entry| entry.pagoda)
                .filter(is_bounded)?;
            context.remember(key, |memory| {
                memory.model = Some((revision.to_owned(), facts.clone()));
            });
            Some(facts)
        }
        Err(error) => {
            tracing::debug!(%error, "a ready pod does not tell its model");
            None
        }
    }
}

fn is_bounded(facts: &ModelInfo) -> bool {
    [&facts.executor, &facts.architecture, &facts.quantization]
        .iter()
        .all(|text| text.len() <= TEXT_BYTES)
}

/// An address as URLs write it.
pub fn address(ip: &str) -> String {
    if ip.contains(':') {
        format!("[{ip}]")
    } else {
        ip.to_owned()
    }
}
