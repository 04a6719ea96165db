//! What the autoscaler does for a service.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::Condition;

use super::{AUTOSCALING, Autoscaling, conditions::Draft};
use crate::{autoscale::Reason, validate::Service};

/// Reasons that come of a look at metrics.
const LOOKED: [&str; 4] = ["FollowsMetrics", "AtMaximum", "NoMetrics", "PartialMetrics"];

pub(super) fn autoscaling(
    service: &Service,
    view: &Autoscaling,
    previous: Option<&Condition>,
) -> Draft {
    let draft = |status: &str, reason: &str, message: &str| {
        Draft::new(AUTOSCALING, status, reason, message)
    };
    let scaling = &service.scaling;
    if !scaling.managed_by_pagoda {
        return draft(
            "False",
            "ManagedExternally",
            "scaling.managedBy is External: the scale subresource sets the number of pods",
        );
    }
    if scaling.min_replicas == scaling.max_replicas {
        return draft(
            "False",
            "FixedReplicas",
            "scaling.minReplicas equals scaling.maxReplicas",
        );
    }
    match view.reason {
        // An operator that just started has not looked yet; what its predecessor saw stands until it has.
        None => previous
            .and_then(|c| Draft::again(AUTOSCALING, c, &LOOKED))
            .unwrap_or_else(|| draft("Unknown", "Starting", "no decision was made yet")),
        Some(Reason::NoMetrics) => draft(
            "False",
            "NoMetrics",
            "neither gateway nor pods tell their load: the number of pods is held",
        ),
        Some(Reason::PartialMetrics) => draft(
            "False",
            "PartialMetrics",
            "not every gateway and pod tells its load: pods may be added, none are removed",
        ),
        Some(Reason::AtMaximum(_)) => draft(
            "True",
            "AtMaximum",
            "the load asks for more pods than scaling.maxReplicas allows",
        ),
        Some(_) => draft(
            "True",
            "FollowsMetrics",
            "the number of pods follows its metrics",
        ),
    }
}
