//! How many pods a service has, while load runs.

use std::str::FromStr;

use anyhow::{Context, Result};
use futures::StreamExt;
use kube::api::{Api, ApiResource, DynamicObject, GroupVersionKind};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::runtime::watcher::watch_object;
use kube::{Client, Config};
use tokio::sync::watch;

/// `namespace/name` of an InferenceService.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceName {
    /// Its namespace.
    pub namespace: String,
    /// Its name.
    pub name: String,
}

impl FromStr for ServiceName {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        match text.split_once('/') {
            Some((namespace, name))
                if !namespace.is_empty() && !name.is_empty() && !name.contains('/') =>
            {
                Ok(Self {
                    namespace: namespace.into(),
                    name: name.into(),
                })
            }
            _ => Err("expected NAMESPACE/NAME".into()),
        }
    }
}

/// Pods of a service.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Replicas {
    /// There.
    pub replicas: i64,
    /// Of these, ready.
    pub ready: i64,
}

/// Follows the service's status until the receiver is dropped. A service that is away has no pods.
pub async fn watch_replicas(
    service: &ServiceName,
    kubeconfig: Option<&str>,
    context: Option<&str>,
) -> Result<watch::Receiver<Replicas>> {
    let client = client(kubeconfig, context).await?;
    let kind = ApiResource::from_gvk_with_plural(
        &GroupVersionKind::gvk("serving.pagoda.dev", "v1alpha1", "InferenceService"),
        "inferenceservices",
    );
    let api: Api<DynamicObject> = Api::namespaced_with(client, &service.namespace, &kind);
    let (tell, told) = watch::channel(Replicas::default());
    let name = service.name.clone();
    tokio::spawn(async move {
        let mut states = Box::pin(watch_object(api, &name));
        while !tell.is_closed() {
            match states.next().await {
                Some(Ok(state)) => drop(tell.send_replace(
                    state.map_or_else(Replicas::default, |object| replicas(&object)),
                )),
                Some(Err(_)) => tokio::time::sleep(std::time::Duration::from_secs(1)).await,
                None => return,
            }
        }
    });
    Ok(told)
}

async fn client(kubeconfig: Option<&str>, context: Option<&str>) -> Result<Client> {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let options = KubeConfigOptions {
        context: context.map(str::to_owned),
        ..KubeConfigOptions::default()
    };
    let config = match kubeconfig {
        Some(path) => {
            let read = Kubeconfig::read_from(path)
                .with_context(|| format!("failed to read --kubeconfig {path}"))?;
            Config::from_custom_kubeconfig(read, &options).await
        }
        None => Config::from_kubeconfig(&options).await,
    };
    Client::try_from(config.context("no kubeconfig to watch the service with")?)
        .context("failed to make a client of the API server")
}

fn replicas(object: &DynamicObject) -> Replicas {
    let status = &object.data["status"];
    let number = |field: &str| status[field].as_i64().unwrap_or(0);
    Replicas {
        replicas: number("replicas"),
        ready: number("readyReplicas"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_service_is_named_with_its_namespace() {
        assert_eq!(
            "a/b".parse(),
            Ok(ServiceName {
                namespace: "a".into(),
                name: "b".into()
            })
        );
        for wrong in ["b", "/b", "a/", "a/b/c"] {
            assert!(wrong.parse::<ServiceName>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn a_status_that_is_not_there_yet_means_no_pods() {
        let object = |status: serde_json::Value| -> DynamicObject {
            serde_json::from_value(serde_json::json!({"metadata": {"name": "x"}, "status": status}))
                .expect("an object")
        };
        assert_eq!(
            replicas(&object(
                serde_json::json!({"replicas": 3, "readyReplicas": 2})
            )),
            Replicas {
                replicas: 3,
                ready: 2
            }
        );
        assert_eq!(
            replicas(&object(serde_json::Value::Null)),
            Replicas::default()
        );
    }
}
