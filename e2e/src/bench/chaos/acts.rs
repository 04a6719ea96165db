//! What each step of the plan does to services, cluster and operators.

use std::time::Duration;

use anyhow::Result;
use pagoda_e2e::faults::{Fault, Match};
use rustix::process::Signal;

use super::Chaos;
use super::cluster::Wanted;
use super::plan::Action;

/// How often an action is tried again that the API server did not do.
const ATTEMPTS: u32 = 5;
const AGAIN_AFTER: Duration = Duration::from_secs(1);

impl Chaos<'_> {
    /// An API server that has just come back may refuse a user as well; all actions can be done again.
    pub(super) async fn act_patiently(&mut self, action: &Action) -> Result<()> {
        for _ in 0..ATTEMPTS {
            match self.act(action).await {
                Err(error) if error.is::<kube::Error>() => self.pass(AGAIN_AFTER).await?,
                other => return other,
            }
        }
        self.act(action).await
    }

    async fn act(&mut self, action: &Action) -> Result<()> {
        match *action {
            Action::Calm => self.calm().await,
            Action::Create { slot } => {
                self.put(slot, |wanted| wanted.unwrap_or(Wanted { pods: 1, mark: 0 }))
                    .await
            }
            Action::Change { slot, mark } => {
                self.put(slot, |wanted| Wanted {
                    mark,
                    ..wanted.unwrap_or(Wanted { pods: 1, mark })
                })
                .await
            }
            Action::Resize { slot, pods } => {
                self.put(slot, |wanted| Wanted {
                    pods,
                    ..wanted.unwrap_or(Wanted { pods, mark: 0 })
                })
                .await
            }
            Action::Delete { slot } => {
                self.touch(slot);
                self.services.delete(slot).await
            }
            Action::Recreate { slot } => {
                self.touch(slot);
                let before = self.services.slots[slot].wanted.clone();
                self.services.delete(slot).await?;
                self.put(slot, |_| before.unwrap_or(Wanted { pods: 1, mark: 0 }))
                    .await
            }
            Action::DeleteChild { slot, kind } => {
                self.touch(slot);
                self.services.delete_child(slot, kind).await
            }
            Action::EditChild { slot, kind } => {
                self.touch(slot);
                self.services.edit_child(slot, kind).await
            }
            Action::DeletePod { slot } => {
                self.touch(slot);
                self.services.delete_pod(slot).await
            }
            _ => self.act_around(action).await,
        }
    }

    async fn act_around(&mut self, action: &Action) -> Result<()> {
        match *action {
            Action::Foreign { slot, kind } => self.contest(slot, kind).await,
            Action::ForeignGone { slot } => {
                self.touch(slot);
                if let Some((_, uid)) = &self.services.slots[slot].foreign {
                    self.eyes.observer().release(uid);
                }
                self.services.delete_foreign(slot).await
            }
            Action::LoseNode { node } => self.lose_node(node).await,
            Action::Quota { namespace } => self.services.close(namespace).await,
            Action::QuotaGone { namespace } => self.services.open(namespace).await,
            Action::KillApiServer => self.lose_control_plane(),
            _ => self.act_on_operator(action).await,
        }
    }

    /// Kubernetes' own garbage collector, when it lists anew, sees no deletion of what was made again under the same name meanwhile, and
    /// for ever leaves what the deleted one owned, such as a Deployment's ReplicaSet. One that starts with the API server knows
    /// better.
    fn lose_control_plane(&mut self) -> Result<()> {
        self.bed.plane.restart("apiserver")?;
        self.bed.plane.restart("controller-manager")
    }

    async fn act_on_operator(&mut self, action: &Action) -> Result<()> {
        let operators = &mut self.operators;
        // The lease is left out where all writes fail: that is another fault, and comes by itself.
        let writes = || Match::writes().except("leases");
        match *action {
            Action::Kill(which) => operators.signal(which, Signal::KILL)?,
            Action::Stop(which) => operators.signal(which, Signal::TERM)?,
            Action::Pause(which, length) => operators.pause(which, length)?,
            Action::Refuse(which, status, length) => {
                let answer = Fault::Answer {
                    status,
                    retry_after: (status == 429).then_some(1),
                };
                operators.fault(which, writes(), answer, length).await;
            }
            Action::StrikeWatches(which, strike) => operators.strike(which, strike),
            Action::Silence(which, length) => operators.silence(which, length),
            Action::Unreachable(which, length) => operators.cut_off(which, length).await,
            Action::Slow(which, length) => {
                operators
                    .fault(
                        which,
                        Match::any(),
                        Fault::Delay(Duration::from_millis(300)),
                        length,
                    )
                    .await;
            }
            Action::LoseAnswers(which, length) => {
                operators
                    .fault(which, writes(), Fault::LoseAnswer, length)
                    .await;
            }
            _ => {}
        }
        Ok(())
    }

    pub(super) fn touch(&self, slot: usize) {
        self.eyes.observer().touch(self.services.key(slot));
    }

    pub(super) async fn put(
        &mut self,
        slot: usize,
        change: impl FnOnce(Option<Wanted>) -> Wanted,
    ) -> Result<()> {
        self.touch(slot);
        let wanted = change(self.services.slots[slot].wanted.clone());
        self.services.put(slot, wanted).await
    }

    async fn contest(&mut self, slot: usize, kind: usize) -> Result<()> {
        if let Some((uid, version)) = self.services.make_foreign(slot, kind).await? {
            self.eyes.observer().guard(uid, version);
        }
        self.put(slot, |wanted| wanted.unwrap_or(Wanted { pods: 1, mark: 0 }))
            .await
    }

    /// Deletes a node; the next calm brings it back.
    async fn lose_node(&mut self, node: usize) -> Result<()> {
        let name = format!("node-{node}");
        // Touched before and after, for a pod may be bound to it in between.
        self.touch_node(&name).await?;
        self.bed
            .plane
            .kubectl()
            .run(&["delete", "node", &name, "--ignore-not-found"])?;
        self.touch_node(&name).await
    }

    async fn touch_node(&mut self, name: &str) -> Result<()> {
        for key in self.services.on_node(name).await? {
            self.eyes.observer().touch(key);
        }
        Ok(())
    }
}
