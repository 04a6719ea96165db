//! Two owners of one number of pods: who they are, what to do about it, and what Pagoda may write meanwhile. Pure.

use std::fmt;

/// Whom another autoscaler scales.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Target {
    /// An InferenceService.
    Service(String),
    /// A Deployment.
    Deployment(String),
    /// Something else.
    Other,
}

/// Somebody else who moves the number of pods of a service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Conflict {
    /// An autoscaler's object.
    Autoscaler {
        /// Kind of the object to change: `HorizontalPodAutoscaler`, or of the one that made it, such as `ScaledObject`.
        kind: String,
        /// Its name.
        name: String,
        /// Name of the Deployment that it scales; none when it scales the InferenceService.
        deployment: Option<String>,
    },
    /// Somebody who writes `spec.replicas` again and again.
    Writer {
        /// Field manager.
        manager: String,
        /// Whether Pagoda leaves the number alone just now.
        pauses: bool,
    },
}

impl Conflict {
    /// CamelCase word for a condition.
    pub const REASON: &str = "ConflictingScaler";

    /// Who it is, what Pagoda does about it, and both ways out.
    pub fn message(&self, managed_by_pagoda: bool) -> String {
        match self {
            Self::Autoscaler {
                kind,
                name,
                deployment: Some(deployment),
            } => format!(
                "{kind} {name} scales the Deployment {deployment}, whose number of pods the operator puts back: let it scale \
                 the InferenceService and set scaling.managedBy: External, or delete it"
            ),
            Self::Autoscaler { kind, name, .. } if managed_by_pagoda => format!(
                "{kind} {name} sets the number of pods as well: Pagoda leaves it alone until one of them owns it. Set \
                 scaling.managedBy: External, or delete {kind} {name}"
            ),
            Self::Autoscaler { kind, name, .. } => {
                format!(
                    "{kind} {name} sets the number of pods, as scaling.managedBy: External says"
                )
            }
            Self::Writer { manager, .. } => format!(
                "{manager} writes spec.replicas again and again: Pagoda gives way for up to 10 minutes at a time, but for what \
                 waits without any pod and for scaling.minReplicas. Take replicas out of {manager}'s manifest, or set \
                 scaling.managedBy: External"
            ),
        }
    }

    /// Whether it is one in this mode. An autoscaler of somebody else's is what `External` is for, unless it scales a
    /// Deployment; and whoever writes the number may then.
    pub fn counts(&self, managed_by_pagoda: bool) -> bool {
        match self {
            Self::Autoscaler {
                deployment: Some(_),
                ..
            } => true,
            Self::Autoscaler { .. } | Self::Writer { .. } => managed_by_pagoda,
        }
    }

    /// Whether Pagoda leaves the number alone just now.
    pub fn pauses(&self) -> bool {
        !matches!(self, Self::Writer { pauses: false, .. })
    }

    /// What Pagoda may write, where `wanted` is what it decided. It goes on waking a service whose requests wait for a first
    /// pod, which an HPA never does; against somebody who merely keeps writing it holds the minimum as well.
    pub fn permitted(&self, current: u32, wanted: u32, minimum: u32) -> u32 {
        if !self.pauses() {
            return wanted;
        }
        let least = match self {
            Self::Autoscaler { .. } => 0,
            Self::Writer { .. } => minimum.min(wanted),
        };
        let waking = u32::from(current == 0 && wanted > 0);
        current.max(least).max(waking)
    }
}

impl fmt::Display for Conflict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Autoscaler { kind, name, .. } => write!(f, "{kind} {name}"),
            Self::Writer { manager, .. } => f.write_str(manager),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn hpa(deployment: Option<&str>) -> Conflict {
        Conflict::Autoscaler {
            kind: "HorizontalPodAutoscaler".into(),
            name: "chat".into(),
            deployment: deployment.map(str::to_owned),
        }
    }

    fn writer(pauses: bool) -> Conflict {
        Conflict::Writer {
            manager: "argocd-controller".into(),
            pauses,
        }
    }

    #[test]
    fn an_autoscaler_of_somebody_elses_is_a_conflict_unless_that_is_what_was_asked_for() {
        assert!(hpa(None).counts(true) && !hpa(None).counts(false));
        assert!(
            hpa(Some("chat-0123456789")).counts(true) && hpa(Some("chat-0123456789")).counts(false)
        );
        assert!(writer(true).counts(true) && !writer(true).counts(false));
    }

    #[test]
    fn both_ways_out_are_told() {
        for conflict in [hpa(None), hpa(Some("d")), writer(true)] {
            let message = conflict.message(true);
            assert!(message.contains("managedBy: External"), "{message}");
            assert!(
                message.contains("delete") || message.contains("Take replicas out"),
                "{message}"
            );
            assert!(message.contains(&conflict.to_string()), "{message}");
        }
    }

    #[test]
    fn requests_that_wait_without_any_pod_get_one_all_the_same() {
        assert_eq!(hpa(None).permitted(0, 5, 0), 1);
        assert_eq!(hpa(None).permitted(3, 9, 1), 3);
        assert_eq!(writer(true).permitted(0, 5, 0), 1);
        assert_eq!(writer(true).permitted(1, 9, 3), 3);
        assert_eq!(writer(false).permitted(1, 9, 3), 9);
    }

    proptest! {
        #[test]
        fn whoever_gives_way_removes_no_pod_and_adds_none_beyond_what_was_decided(
            current in 0_u32..50, wanted in 0_u32..50, minimum in 0_u32..50, by_writer: bool
        ) {
            let conflict = if by_writer { writer(true) } else { hpa(None) };
            let permitted = conflict.permitted(current, wanted, minimum);
            prop_assert!(permitted >= current);
            prop_assert!(permitted == current || permitted <= wanted);
        }
    }
}
