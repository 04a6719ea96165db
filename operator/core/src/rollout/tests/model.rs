//! A small model of a cluster that applies plans: Deployments make and end pods, nodes hold a number of them, pods become
//! ready or fail as their revision is, and ended ones take their time to go.

use crate::{
    pods::{Diagnosis, PodView, Severity},
    rollout::{GateReadings, Plan, PrefetchSeen, RevisionSeen, RolloutSeen, plan},
    testing::checked,
    validate::Service,
};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;
use pagoda_crds::api::{InferenceServiceStatus, RevisionStatus, RolloutPhase};
use serde_json::{Value, json};

/// How the pods of a revision do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Ready after so many seconds.
    Good(i64),
    /// Says that it can never run.
    Hopeless,
    /// Crashes again and again.
    Crashing,
    /// Says nothing, and is never ready.
    Silent,
}

pub struct SimPod {
    pub view: PodView,
    pub deployment: String,
    ends_at: Option<i64>,
}

pub struct Cluster {
    pub service: Service,
    pub status: InferenceServiceStatus,
    pub now: i64,
    pub target: String,
    pub kinds: Vec<(String, Kind)>,
    pub deployments: Vec<RevisionSeen>,
    pub pods: Vec<SimPod>,
    /// Pods that nodes hold in all.
    pub capacity: usize,
    pub drain: i64,
    pub fits: bool,
    pub has_cache: bool,
    pub prefetch: PrefetchSeen,
    pub gate: Option<GateReadings>,
    pub last: Plan,
    made: u32,
}

pub fn at(second: i64) -> Time {
    Time(k8s_openapi::jiff::Timestamp::from_second(1_800_000_000 + second).expect("a time"))
}

pub fn service(replicas: u32, rollout: Value) -> Service {
    let spec = json!({"engine": {"executor": "simulated"}, "rollout": rollout});
    Service {
        replicas,
        ..checked(spec)
    }
}

impl Cluster {
    /// A service at rest, whose pods of revision `a` are all ready.
    pub fn at_rest(replicas: u32, rollout: Value) -> Self {
        let mut cluster = Self::empty(replicas, rollout);
        cluster.release("a", Kind::Good(5));
        cluster.settle();
        cluster
    }

    pub fn empty(replicas: u32, rollout: Value) -> Self {
        Self {
            service: service(replicas, rollout),
            status: InferenceServiceStatus::default(),
            now: 0,
            target: String::new(),
            kinds: Vec::new(),
            deployments: Vec::new(),
            pods: Vec::new(),
            capacity: 1000,
            drain: 20,
            fits: true,
            has_cache: false,
            prefetch: PrefetchSeen::Absent,
            gate: None,
            last: Plan::default(),
            made: 0,
        }
    }

    /// Changes the spec to another revision, or back to one.
    pub fn release(&mut self, revision: &str, kind: Kind) {
        self.target = revision.to_owned();
        self.kinds.retain(|(name, _)| name != revision);
        self.kinds.push((revision.to_owned(), kind));
    }

    pub fn settle(&mut self) {
        for _ in 0..600 {
            self.tick();
        }
    }

    pub fn revisions(&self) -> Vec<RevisionSeen> {
        let with_pods = |d: &RevisionSeen| {
            let own = self
                .pods
                .iter()
                .filter(|p| p.deployment == d.deployment_name);
            RevisionSeen {
                pods: own.map(|p| p.view.clone()).collect(),
                ..d.clone()
            }
        };
        self.deployments.iter().map(with_pods).collect()
    }

    pub fn look(&self) -> Plan {
        self.look_at(&self.revisions(), &self.status)
    }

    fn look_at(&self, revisions: &[RevisionSeen], status: &InferenceServiceStatus) -> Plan {
        let name = format!("demo-{}", self.target);
        let seen = RolloutSeen {
            target: &self.target,
            target_name: &name,
            target_model_key: Some(&self.target),
            revisions,
            prefetch: &self.prefetch,
            gate: self.gate.as_ref(),
            has_cache: self.has_cache,
            fits: self.fits,
        };
        plan(&self.service, &seen, status, &at(self.now))
    }

    /// Five seconds pass, and the operator has looked.
    pub fn tick(&mut self) {
        self.now += 5;
        self.nodes();
        let plan = self.look();
        self.apply(&plan);
        self.check_idempotence(&plan);
        self.replica_sets();
        self.last = plan;
    }

    fn nodes(&mut self) {
        let now = self.now;
        self.pods.retain(|p| p.ends_at.is_none_or(|end| end > now));
        let mut held = self.pods.iter().filter(|p| p.view.node.is_some()).count();
        for pod in &mut self.pods {
            if pod.view.node.is_none() && pod.ends_at.is_none() {
                if held < self.capacity {
                    held += 1;
                    pod.view.node = Some(format!("node-{held}"));
                    pod.view.unschedulable_since = None;
                    pod.view.diagnosis = Some(Diagnosis::starting());
                    pod.view.created = Some(at(now));
                } else if pod.view.unschedulable_since.is_none() {
                    pod.view.unschedulable_since = Some(at(now));
                    let words = "no node takes the pod".to_owned();
                    pod.view.diagnosis =
                        Some(Diagnosis::new(Severity::Waiting, "Unschedulable", words));
                }
            }
        }
        for pod in self.pods.iter_mut().filter(|p| p.view.node.is_some()) {
            let revision = pod.view.revision.clone().unwrap_or_default();
            let kind = self.kinds.iter().find(|(name, _)| *name == revision);
            live(&mut pod.view, kind.map_or(Kind::Good(0), |(_, k)| *k), now);
        }
    }

    fn replica_sets(&mut self) {
        let deployments = self.deployments.clone();
        for deployment in deployments {
            let name = &deployment.deployment_name;
            let alive = self.alive(name);
            let wanted = deployment.spec_replicas as usize;
            for _ in alive..wanted {
                self.make(&deployment);
            }
            for _ in wanted..alive {
                self.end_one(name);
            }
        }
    }

    pub fn alive(&self, deployment: &str) -> usize {
        let own = self.pods.iter().filter(|p| p.deployment == deployment);
        own.filter(|p| !p.view.leaving).count()
    }

    pub fn ready(&self, revision: &str) -> usize {
        let deployment = format!("demo-{revision}");
        let own = self.pods.iter().filter(|p| p.deployment == deployment);
        own.filter(|p| !p.view.leaving && p.view.ready).count()
    }

    pub fn spec(&self, revision: &str) -> Option<u32> {
        let found = self.deployments.iter().find(|d| d.revision == revision);
        found.map(|d| d.spec_replicas)
    }

    pub fn phase(&self) -> Option<RolloutPhase> {
        self.status.rollout.as_ref().map(|r| r.phase)
    }

    fn make(&mut self, deployment: &RevisionSeen) {
        self.made += 1;
        self.pods.push(SimPod {
            view: PodView {
                name: format!("{}-x-{}", deployment.deployment_name, self.made),
                revision: Some(deployment.revision.clone()),
                created: Some(at(self.now)),
                diagnosis: Some(Diagnosis::starting()),
                ..PodView::default()
            },
            deployment: deployment.deployment_name.clone(),
            ends_at: None,
        });
    }

    /// As a ReplicaSet chooses: pods without a node first, then ones that do not answer.
    fn end_one(&mut self, deployment: &str) {
        let (now, drain) = (self.now, self.drain);
        let own = self
            .pods
            .iter_mut()
            .filter(|p| p.deployment == deployment && !p.view.leaving);
        if let Some(pod) = own.min_by_key(|p| (p.view.node.is_some(), p.view.ready)) {
            pod.view.leaving = true;
            let drains = pod.view.ready;
            pod.view.ready = false;
            pod.ends_at = Some(if drains { now + drain } else { now });
        }
    }

    fn apply(&mut self, plan: &Plan) {
        self.deployments = applied(&self.deployments, plan, &self.target);
        for name in &plan.delete {
            assert!(
                !self.pods.iter().any(|p| p.deployment == *name),
                "a Deployment with pods was deleted"
            );
        }
        self.status.revision = Some(RevisionStatus {
            current: plan.current.clone(),
            updated: self.target.clone(),
        });
        self.status.rollout = plan.status.clone();
    }

    /// Nothing but the plan's own changes happened: the next look must find nothing to do.
    fn check_idempotence(&self, plan: &Plan) {
        let again = self.look();
        assert_eq!(again.scale, [], "after {plan:?}");
        assert_eq!(
            again.target_replicas, plan.target_replicas,
            "after {plan:?}"
        );
        assert_eq!(again.status, plan.status, "after {plan:?}");
        assert_eq!(again.current, plan.current, "after {plan:?}");
    }
}

fn applied(deployments: &[RevisionSeen], plan: &Plan, target: &str) -> Vec<RevisionSeen> {
    let mut next = deployments.to_vec();
    next.retain(|d| !plan.delete.contains(&d.deployment_name));
    for (name, replicas) in &plan.scale {
        for d in next.iter_mut().filter(|d| d.deployment_name == *name) {
            d.spec_replicas = *replicas;
        }
    }
    match next.iter_mut().find(|d| d.revision == target) {
        Some(found) => found.spec_replicas = plan.target_replicas,
        None => next.push(RevisionSeen {
            revision: target.to_owned(),
            deployment_name: format!("demo-{target}"),
            spec_replicas: plan.target_replicas,
            model_key: Some(target.to_owned()),
            ..RevisionSeen::default()
        }),
    }
    next
}

fn live(pod: &mut PodView, kind: Kind, now: i64) {
    if pod.leaving || pod.ready {
        return;
    }
    let age = pod
        .created
        .as_ref()
        .map_or(0, |c| at(now).0.as_second() - c.0.as_second());
    let failed = |severity, reason| {
        Some(Diagnosis::new(
            severity,
            reason,
            "in the pod's own words".into(),
        ))
    };
    match kind {
        Kind::Good(seconds) if age >= seconds => {
            (pod.ready, pod.ready_since) = (true, Some(at(now)));
            pod.diagnosis = None;
        }
        Kind::Good(_) | Kind::Silent => {}
        Kind::Hopeless => pod.diagnosis = failed(Severity::Permanent, "HashMismatch"),
        Kind::Crashing => pod.diagnosis = failed(Severity::Failed, "Crashed"),
    }
}
