//! The pods of the service: created, loading, ready, draining, ended.

use std::sync::Arc;

use rand::Rng;
use rand::rngs::SmallRng;

use crate::pod::Pod;
use crate::setup::Setup;
use crate::time::Nanos;

/// Names a pod, for ever.
pub type PodId = u32;

/// Where a pod is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Stage {
    /// It loads until then.
    Loading(Nanos),
    /// It serves.
    Ready,
    /// It ends its requests and takes no more.
    Draining,
    /// It is gone.
    Ended,
}

/// A pod and its life.
#[derive(Debug)]
pub struct Member {
    /// Which it is.
    pub id: PodId,
    /// Its name.
    pub name: Arc<str>,
    /// Index of its hardware.
    pub hardware: usize,
    /// Where it is in its life.
    pub stage: Stage,
    /// When it was created.
    pub created: Nanos,
    /// When it became ready.
    pub ready_since: Option<Nanos>,
    /// What it does; gone with it.
    pub pod: Option<Box<Pod>>,
    /// Counts the plans made for it: an event of an older one is void.
    pub(crate) plan: u32,
    /// Its place among those that the gateway may choose.
    pub(crate) route: Option<u32>,
}

/// All pods that ever were.
#[derive(Debug)]
pub struct Fleet {
    members: Vec<Member>,
    /// Those not ended, oldest first.
    living: Vec<PodId>,
    created_on: Vec<u64>,
    /// Pods that should run.
    desired: u32,
    /// Time of pods that ended.
    ended_pod_nanos: u128,
}

/// What a change of the number of pods does.
#[derive(Debug, Default, PartialEq, Eq)]
pub struct Change {
    /// Pods created.
    pub created: Vec<PodId>,
    /// Ready pods that leave.
    pub leaving: Vec<PodId>,
}

impl Fleet {
    /// No pods yet.
    pub fn new(setup: &Setup) -> Self {
        Self {
            members: Vec::new(),
            living: Vec::new(),
            created_on: vec![0; setup.hardware.len()],
            desired: 0,
            ended_pod_nanos: 0,
        }
    }

    /// Pods that should run.
    pub fn desired(&self) -> u32 {
        self.desired
    }

    /// Those not ended, oldest first.
    pub fn living(&self) -> impl ExactSizeIterator<Item = &Member> {
        self.living.iter().map(|id| &self.members[*id as usize])
    }

    /// The ids of those not ended, oldest first.
    pub fn living_ids(&self) -> &[PodId] {
        &self.living
    }

    /// One of them.
    pub fn member(&self, id: PodId) -> &Member {
        &self.members[id as usize]
    }

    /// One of them, to change.
    pub fn member_mut(&mut self, id: PodId) -> &mut Member {
        &mut self.members[id as usize]
    }

    /// How many are ready, loading and draining.
    pub fn count(&self) -> (u32, u32, u32) {
        let (mut ready, mut loading, mut draining) = (0, 0, 0);
        for member in self.living() {
            match member.stage {
                Stage::Ready => ready += 1,
                Stage::Loading(_) => loading += 1,
                Stage::Draining => draining += 1,
                Stage::Ended => {}
            }
        }
        (ready, loading, draining)
    }

    /// Time of all pods together, in pod-nanoseconds, from creation to end or `now`.
    pub fn pod_nanos(&self, now: Nanos) -> u128 {
        let living = self.living().map(|member| u128::from(now - member.created));
        self.ended_pod_nanos + living.sum::<u128>()
    }

    /// Makes it so many pods: new ones load; of those too many, loading ones go first, the newest of them first, then the
    /// ready ones whose loss costs least (`in_flight`, then what they keep of prompts, then age), as Pagoda's
    /// pod-deletion-cost has it.
    pub fn scale(
        &mut self,
        replicas: u32,
        now: Nanos,
        setup: &Setup,
        random: &mut SmallRng,
        in_flight: impl Fn(&Member) -> usize,
    ) -> Change {
        let mut change = Change::default();
        let serving = |m: &&Member| !matches!(m.stage, Stage::Draining | Stage::Ended);
        let present = self.living().filter(serving).count() as u32;
        self.desired = replicas;
        for _ in present..replicas {
            change.created.push(self.create(now, setup, random));
        }
        if replicas < present {
            let victims = self.victims((present - replicas) as usize, in_flight);
            for id in victims {
                if self.members[id as usize].stage == Stage::Ready {
                    self.members[id as usize].stage = Stage::Draining;
                    change.leaving.push(id);
                } else {
                    self.end(id, now);
                }
            }
        }
        change
    }

    fn create(&mut self, now: Nanos, setup: &Setup, random: &mut SmallRng) -> PodId {
        let id = self.members.len() as PodId;
        let hardware = self.next_hardware(setup);
        self.created_on[hardware] += 1;
        let factor = match setup.load_jitter {
            0.0 => 1.0,
            jitter => 1.0 + random.random_range(-jitter..jitter),
        };
        let ready_at = now + (setup.load as f64 * factor) as Nanos;
        let profile = setup.hardware[hardware].profile;
        self.members.push(Member {
            id,
            // In order of age when sorted, so that whoever sorts them has nothing to do.
            name: format!("pod-{id:08}").into(),
            hardware,
            stage: Stage::Loading(ready_at),
            created: now,
            ready_since: None,
            pod: Some(Box::new(Pod::new(profile))),
            plan: 0,
            route: None,
        });
        self.living.push(id);
        id
    }

    /// The hardware that has the least of what its weight promises it.
    fn next_hardware(&self, setup: &Setup) -> usize {
        let owed = |index: &usize| {
            let weight = u64::from(setup.hardware[*index].weight);
            // Compared as fractions with a common denominator that no weight makes overflow.
            (self.created_on[*index] + 1) * 1_000_000_000 / weight.max(1)
        };
        (0..setup.hardware.len()).min_by_key(owed).unwrap_or(0)
    }

    fn victims(&self, count: usize, in_flight: impl Fn(&Member) -> usize) -> Vec<PodId> {
        let cost = |id: &PodId| {
            let member = &self.members[*id as usize];
            let kept = member.pod.as_ref().map_or(0, |pod| pod.kv().occupied());
            let ready = member.stage == Stage::Ready;
            let newest = std::cmp::Reverse(*id);
            if ready {
                (true, in_flight(member), kept, newest)
            } else {
                (false, 0, 0, newest)
            }
        };
        let may_go = |id: &PodId| {
            let stage = self.members[*id as usize].stage;
            matches!(stage, Stage::Loading(_) | Stage::Ready)
        };
        let mut candidates: Vec<PodId> = self.living.iter().copied().filter(may_go).collect();
        candidates.sort_by_cached_key(cost);
        candidates.truncate(count);
        candidates
    }

    /// It is gone from now on.
    pub fn end(&mut self, id: PodId, now: Nanos) {
        let member = &mut self.members[id as usize];
        if member.stage == Stage::Ended {
            return;
        }
        member.stage = Stage::Ended;
        member.pod = None;
        self.ended_pod_nanos += u128::from(now - member.created);
        if let Ok(place) = self.living.binary_search(&id) {
            self.living.remove(place);
        }
    }
}
