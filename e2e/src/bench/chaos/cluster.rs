//! Does what the plan says to the cluster, and knows what has to come of it.

use std::collections::BTreeSet;

use anyhow::{Context, Result};
use kube::api::{DeleteParams, DynamicObject, ListParams, Patch, PatchParams, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client, ResourceExt};
use serde_json::{Value, json};

use super::plan::World;
use crate::bed::services::{Key, SERVICE_LABEL, child_resources, resource};

/// What an editor writes who is not the operator. Nothing of it may last.
pub(super) const EVIL: &str = "chaos-evil";
/// The annotation on pods that a change sets.
pub(super) const MARK: &str = "chaos.pagoda.dev/mark";
const PREFIX: &str = "chaos";

/// What one service should be.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Wanted {
    pub(super) pods: u32,
    pub(super) mark: u32,
}

/// One name that a service may have.
#[derive(Debug, Clone, Default)]
pub(super) struct Slot {
    /// `None` while there should be no such service.
    pub(super) wanted: Option<Wanted>,
    /// Kind and UID of somebody else's object under that name.
    pub(super) foreign: Option<(usize, String)>,
}

/// The services, as a user and a saboteur see them.
pub(super) struct Services {
    pub(super) client: Client,
    pub(super) slots: Vec<Slot>,
    pub(super) namespaces: usize,
    /// Namespaces that may hold no new objects.
    pub(super) quotas: BTreeSet<usize>,
}

impl Services {
    pub(super) fn new(client: Client, world: World) -> Self {
        Self {
            client,
            slots: vec![Slot::default(); world.slots],
            namespaces: world.namespaces,
            quotas: BTreeSet::new(),
        }
    }

    pub(super) fn namespace(index: usize) -> String {
        format!("{PREFIX}-{index}")
    }

    pub(super) fn key(&self, slot: usize) -> Key {
        (
            Self::namespace(slot % self.namespaces),
            format!("service-{slot:03}"),
        )
    }

    /// Makes the service as it is wanted, whether or not it is there.
    pub(super) async fn put(&mut self, slot: usize, wanted: Wanted) -> Result<()> {
        let (namespace, name) = self.key(slot);
        let manifest = manifest(&namespace, &name, &wanted);
        self.slots[slot].wanted = Some(wanted);
        let api = self.api(&namespace, &resource());
        let parameters = PatchParams::apply("chaos-user").force();
        // One of that name that is still leaving takes the change with it, and is asked for again until it has gone.
        for _ in 0..100 {
            let put = api
                .patch(&name, &parameters, &Patch::Apply(&manifest))
                .await?;
            if put.metadata.deletion_timestamp.is_none() {
                return Ok(());
            }
            tokio::time::sleep(std::time::Duration::from_millis(50)).await;
        }
        anyhow::bail!("{namespace}/{name} does not go away")
    }

    pub(super) async fn delete(&mut self, slot: usize) -> Result<()> {
        let (namespace, name) = self.key(slot);
        self.slots[slot].wanted = None;
        unless_absent(
            self.api(&namespace, &resource())
                .delete(&name, &DeleteParams::background())
                .await,
        )?;
        Ok(())
    }

    pub(super) async fn delete_child(&self, slot: usize, kind: usize) -> Result<()> {
        let (namespace, _) = self.key(slot);
        let kind = &child_resources()[kind];
        if let Some(child) = self.children(slot, kind).await?.first() {
            let api = self.api(&namespace, kind);
            unless_absent(
                api.delete(&child.name_any(), &DeleteParams::background())
                    .await,
            )?;
        }
        Ok(())
    }

    /// Writes over what the operator wrote. An object that cannot be edited so is left alone.
    pub(super) async fn edit_child(&self, slot: usize, kind: usize) -> Result<()> {
        let (namespace, _) = self.key(slot);
        let resource = &child_resources()[kind];
        let Some(child) = self.children(slot, resource).await?.into_iter().next() else {
            return Ok(());
        };
        let patch = edit_of(kind);
        let parameters = PatchParams {
            field_manager: Some("chaos-saboteur".to_owned()),
            ..PatchParams::default()
        };
        let api = self.api(&namespace, resource);
        match api
            .patch(&child.name_any(), &parameters, &Patch::Merge(&patch))
            .await
        {
            Err(kube::Error::Api(status)) if [404, 409, 422].contains(&status.code) => Ok(()),
            other => Ok(other.map(drop)?),
        }
    }

    pub(super) async fn delete_pod(&self, slot: usize) -> Result<()> {
        let (namespace, name) = self.key(slot);
        let api = self.api(&namespace, &pods());
        let ours = ListParams::default()
            .labels(&format!("{SERVICE_LABEL}={name}"))
            .limit(1);
        if let Some(pod) = api.list(&ours).await?.items.first() {
            unless_absent(api.delete(&pod.name_any(), &DeleteParams::default()).await)?;
        }
        Ok(())
    }

    /// Puts somebody else's object under the service's name; its UID and version when the name was free.
    pub(super) async fn make_foreign(
        &mut self,
        slot: usize,
        kind: usize,
    ) -> Result<Option<(String, String)>> {
        let (namespace, name) = self.key(slot);
        let (resource, object) = foreign(kind, &name);
        let api = self.api(&namespace, &resource);
        match api
            .create(&PostParams::default(), &serde_json::from_value(object)?)
            .await
        {
            Ok(made) => {
                let uid = made.metadata.uid.context("an object without a UID")?;
                self.slots[slot].foreign = Some((kind, uid.clone()));
                Ok(Some((
                    uid,
                    made.metadata.resource_version.unwrap_or_default(),
                )))
            }
            // Already somebody's: the operator's, or ours from before. A quota lets nothing in either.
            Err(kube::Error::Api(status)) if [403, 409].contains(&status.code) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    pub(super) async fn delete_foreign(&mut self, slot: usize) -> Result<()> {
        let (namespace, name) = self.key(slot);
        if let Some((kind, _)) = self.slots[slot].foreign.take() {
            let (resource, _) = foreign(kind, &name);
            unless_absent(
                self.api(&namespace, &resource)
                    .delete(&name, &DeleteParams::default())
                    .await,
            )?;
        }
        Ok(())
    }

    /// No new Deployments, ConfigMaps, Services or pods.
    pub(super) async fn close(&mut self, namespace: usize) -> Result<()> {
        self.quotas.insert(namespace);
        let hard = json!({"count/deployments.apps": "0", "count/configmaps": "0", "count/services": "0", "pods": "0"});
        let quota = json!({"apiVersion": "v1", "kind": "ResourceQuota", "metadata": {"name": PREFIX}, "spec": {"hard": hard}});
        let parameters = PatchParams::apply("chaos-user").force();
        self.api(&Self::namespace(namespace), &quotas())
            .patch(PREFIX, &parameters, &Patch::Apply(&quota))
            .await?;
        Ok(())
    }

    pub(super) async fn open(&mut self, namespace: usize) -> Result<()> {
        self.quotas.remove(&namespace);
        unless_absent(
            self.api(&Self::namespace(namespace), &quotas())
                .delete(PREFIX, &DeleteParams::default())
                .await,
        )?;
        Ok(())
    }

    /// Services with pods on a node.
    pub(super) async fn on_node(&self, node: &str) -> Result<Vec<Key>> {
        let api: Api<DynamicObject> = Api::all_with(self.client.clone(), &pods());
        let there = api
            .list(&ListParams::default().fields(&format!("spec.nodeName={node}")))
            .await?;
        let key = |pod: &DynamicObject| {
            Some((pod.namespace()?, pod.labels().get(SERVICE_LABEL)?.clone()))
        };
        Ok(there.items.iter().filter_map(key).collect())
    }

    pub(super) fn api(&self, namespace: &str, kind: &ApiResource) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, kind)
    }

    async fn children(&self, slot: usize, kind: &ApiResource) -> Result<Vec<DynamicObject>> {
        let (namespace, name) = self.key(slot);
        let ours = ListParams::default().labels(&format!("{SERVICE_LABEL}={name}"));
        Ok(self.api(&namespace, kind).list(&ours).await?.items)
    }
}

fn manifest(namespace: &str, name: &str, wanted: &Wanted) -> Value {
    let pods = wanted.pods;
    json!({
        "apiVersion": "serving.pagoda.dev/v1alpha1",
        "kind": "InferenceService",
        "metadata": {"namespace": namespace, "name": name},
        "spec": {
            "replicas": pods,
            "engine": {"executor": "simulated", "maxSequences": 1 + wanted.mark % 64},
            "hardware": {"resources": {"requests": {"cpu": "10m", "memory": "16Mi"}}},
            "scaling": {"minReplicas": pods, "maxReplicas": pods.max(1)},
            "podTemplate": {"metadata": {"annotations": {MARK: wanted.mark.to_string()}}},
        },
    })
}

/// A merge patch of one field that the operator owns, by the child's kind as in [`child_resources`].
fn edit_of(kind: usize) -> Value {
    match kind {
        0 => json!({"data": {"engine.json": EVIL}}),
        // Without this label the operator's own watch no longer shows it.
        1 => json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": EVIL}}}),
        2 => json!({"spec": {"selector": {SERVICE_LABEL: EVIL}}}),
        3 => json!({"spec": {"selector": {"matchLabels": {SERVICE_LABEL: EVIL}}}}),
        _ => {
            json!({"metadata": {"labels": {"app.kubernetes.io/managed-by": EVIL}}, "spec": {"template": {"metadata": {"annotations": {MARK: EVIL}}}}})
        }
    }
}

/// Something under a child's name that no controller writes a status to.
fn foreign(kind: usize, name: &str) -> (ApiResource, Value) {
    let [_, account, service, _, _] = child_resources();
    let metadata = json!({"name": name, "labels": {"owner": "somebody-else"}});
    match kind {
        0 => (
            service,
            json!({"apiVersion": "v1", "kind": "Service", "metadata": metadata, "spec": {"ports": [{"port": 9}]}}),
        ),
        _ => (
            account,
            json!({"apiVersion": "v1", "kind": "ServiceAccount", "metadata": metadata}),
        ),
    }
}

pub(super) fn pods() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "Pod"))
}

fn quotas() -> ApiResource {
    ApiResource::from_gvk(&GroupVersionKind::gvk("", "v1", "ResourceQuota"))
}

fn unless_absent<T>(result: Result<T, kube::Error>) -> Result<(), kube::Error> {
    match result {
        Err(kube::Error::Api(status)) if status.code == 404 => Ok(()),
        other => other.map(drop),
    }
}
