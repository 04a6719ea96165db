//! `spec.hardware`.

use k8s_openapi::api::core::v1::ResourceRequirements;
use pagoda_crds::api::{Accelerator, AcceleratorKind, Hardware};
use std::collections::BTreeMap;

use super::{ValidateError, is_object_name};
use crate::quantity::parse_milli;

/// GPUs of each pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Gpu {
    /// Resource to request.
    pub resource: String,
    /// How many.
    pub count: u32,
    /// Products that will do, by the nodes' label; empty for any.
    pub products: Vec<String>,
}

const DEFAULT_RESOURCE: &str = "nvidia.com/gpu";

pub(super) fn gpu(accelerator: &Accelerator) -> Result<Option<Gpu>, ValidateError> {
    if accelerator.kind == AcceleratorKind::Cpu {
        return Ok(None);
    }
    let resource = accelerator.resource.as_deref().unwrap_or(DEFAULT_RESOURCE);
    if !is_qualified(resource, true) || resource.len() > 128 {
        return Err(ValidateError::Field(
            "accelerator.resource is written DOMAIN/NAME, such as nvidia.com/gpu",
        ));
    }
    if !accelerator
        .products
        .iter()
        .all(|p| p.len() <= 63 && is_label_value(p))
    {
        return Err(ValidateError::Field(
            "accelerator.products are values of the label nvidia.com/gpu.product: letters, digits and . _ - only",
        ));
    }
    Ok(Some(Gpu {
        resource: resource.to_owned(),
        count: accelerator.count.max(1),
        products: accelerator.products.clone(),
    }))
}

pub(super) fn runtime_class(hardware: &Hardware) -> Result<Option<String>, ValidateError> {
    let class = hardware.runtime_class_name.as_ref();
    if class.is_some_and(|name| !is_object_name(name)) {
        return Err(ValidateError::Field(
            "hardware.runtimeClassName is the name of a RuntimeClass",
        ));
    }
    Ok(class.cloned())
}

pub(super) fn domain_label(hardware: &Hardware) -> Result<Option<String>, ValidateError> {
    let label = hardware.topology.as_ref().map(|t| &t.domain_label);
    if label.is_some_and(|label| !is_qualified(label, false)) {
        return Err(ValidateError::Field(
            "topology.domainLabel is the key of a node's label, such as nvidia.com/gpu.clique",
        ));
    }
    Ok(label.cloned())
}

pub(super) fn resources(
    resources: Option<&ResourceRequirements>,
) -> Result<Option<ResourceRequirements>, ValidateError> {
    let Some(resources) = resources else {
        return Ok(None);
    };
    let lists = [&resources.requests, &resources.limits];
    for quantity in lists.into_iter().flatten().flat_map(BTreeMap::values) {
        if !matches!(parse_milli(quantity), Ok(milli) if milli >= 0) {
            return Err(ValidateError::Quantity {
                field: "hardware.resources",
                expected: "quantities of 0 or more",
                actual: quantity.0.clone(),
            });
        }
    }
    check_limits(resources)?;
    Ok(Some(resources.clone()))
}

fn check_limits(resources: &ResourceRequirements) -> Result<(), ValidateError> {
    let (Some(requests), Some(limits)) = (&resources.requests, &resources.limits) else {
        return Ok(());
    };
    let exceeds = requests.iter().any(|(name, request)| {
        let limit = limits.get(name).map(parse_milli);
        matches!((parse_milli(request), limit), (Ok(request), Some(Ok(limit))) if request > limit)
    });
    if exceeds {
        return Err(ValidateError::Field(
            "hardware.resources.requests may not exceed limits: raise the limit or lower the request",
        ));
    }
    Ok(())
}

/// `[DOMAIN/]NAME`, as keys of labels and names of resources are written.
fn is_qualified(key: &str, needs_domain: bool) -> bool {
    match key.split_once('/') {
        Some((domain, name)) => is_object_name(domain) && is_label_value(name),
        None => !needs_domain && key.len() <= 63 && is_label_value(key),
    }
}

fn is_label_value(text: &str) -> bool {
    let ends = |b: Option<u8>| b.is_some_and(|b| b.is_ascii_alphanumeric());
    ends(text.bytes().next())
        && ends(text.bytes().last())
        && text
            .bytes()
            .all(|b| b.is_ascii_alphanumeric() || b"._-".contains(&b))
}
