//! `spec.model`.

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

/// Which model, and where it lies.
#[derive(KubeSchema, Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Model {
    /// Names that clients send as "model" in their requests. Default: metadata.name alone. Every service also answers
    /// to NAMESPACE/NAME. When two services claim a name, the older one has it.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    #[schemars(length(max = 16), inner(length(min = 1, max = 128)), extend("x-kubernetes-list-type" = "set"))]
    #[x_kube(validation = (
        "self.all(n, n.matches('^[A-Za-z0-9]([A-Za-z0-9._:/-]*[A-Za-z0-9])?$'))",
        "a model name starts and ends with a letter or digit, and holds letters, digits and . _ : / - only"
    ))]
    pub names: Vec<String>,
    /// Where the model lies. Required, but for the simulated executor.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub source: Option<ModelSource>,
}

/// Where a model lies.
#[derive(KubeSchema, Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct ModelSource {
    /// Address of one GGUF file:
    /// https://HOST/PATH is downloaded by each pod, and taken up again where it broke off;
    /// file:///PATH lies on the node; pvc://CLAIM/PATH lies in a PersistentVolumeClaim of this namespace;
    /// image://REFERENCE//PATH lies in a container image.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(
        validation = (
            "self.matches('^(https|file|pvc|image)://')",
            "model.source.uri must start with https://, file://, pvc:// or image://"
        ),
        validation = (
            "!self.startsWith('https://') || self.matches('^https://[A-Za-z0-9.\\\\[\\\\]:-]+/[^ ]+$')",
            "an https source is written https://HOST/PATH, without user or password"
        ),
        validation = (
            "!self.startsWith('file://') || self.matches('^file:///[^ /]+/[^ ]*[^ /]$')",
            "a file source is written file:///PATH, with the absolute path of one file in a directory of the node"
        ),
        validation = (
            "!self.startsWith('pvc://') || self.matches('^pvc://[a-z0-9]([a-z0-9.-]*[a-z0-9])?/[^ ]*[^ /]$')",
            "a pvc source is written pvc://CLAIM/PATH, with the path of one file in the volume"
        ),
        validation = (
            "!self.startsWith('image://') || self.matches('^image://[A-Za-z0-9][A-Za-z0-9._:/@-]*[A-Za-z0-9]//[^ ]*[^ /]$')",
            "an image source is written image://REFERENCE//PATH, with the path of one file in the image after //"
        ),
        validation = (
            "!self.matches('/[.][.](/|$)')",
            "model.source.uri may not climb with .. in its path"
        )
    )]
    pub uri: String,
    /// SHA-256 of the file, in 64 hexadecimal digits. A file that differs is never served.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 128))]
    #[x_kube(validation = (
        "self.matches('^[0-9a-fA-F]{64}$')",
        "model.source.sha256 must be 64 hexadecimal digits, as sha256sum prints them"
    ))]
    pub sha256: Option<String>,
}
