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
#[x_kube(
    validation = (
        "!has(self.endpoint) || self.uri.matches('^(hf|s3|gs|az)://')",
        "model.source.endpoint goes with hf, s3, gs and az sources; in others the address is the uri's own"
    ),
    validation = (
        "!has(self.region) || self.uri.startsWith('s3://')",
        "model.source.region goes with s3 sources"
    ),
    validation = (
        "!has(self.credentials) || self.uri.matches('^(https|hf|s3|gs|az|oci)://')",
        "model.source.credentials go with sources that are downloaded: https, hf, s3, gs, az, oci; images are pulled with podTemplate.spec.imagePullSecrets"
    )
)]
#[serde(rename_all = "camelCase")]
pub struct ModelSource {
    /// Address of one GGUF file:
    /// https://HOST/PATH; hf://OWNER/REPOSITORY/PATH@REVISION on Hugging Face or a mirror (without @REVISION: main);
    /// s3://BUCKET/KEY in S3 or compatible; gs://BUCKET/KEY in Google Cloud Storage; az://ACCOUNT/CONTAINER/PATH in Azure
    /// Blob Storage; oci://REGISTRY/REPOSITORY:TAG//FILE in an OCI artifact. These are downloaded, taken up again where
    /// a download broke off, and shared by the pods of a node where the cluster has a model cache.
    /// file:///PATH lies on the node; pvc://CLAIM/PATH lies in a PersistentVolumeClaim of this namespace;
    /// image://REFERENCE//PATH lies in a container image.
    #[schemars(length(min = 1, max = 2048))]
    #[x_kube(
        validation = (
            "self.matches('^(https|hf|s3|gs|az|oci|file|pvc|image)://')",
            "model.source.uri must start with https://, hf://, s3://, gs://, az://, oci://, file://, pvc:// or image://"
        ),
        validation = (
            "!self.startsWith('https://') || self.matches('^https://[A-Za-z0-9.\\\\[\\\\]:-]+/[^ ]+$')",
            "an https source is written https://HOST/PATH, without user or password"
        ),
        validation = (
            "!self.startsWith('hf://') || self.matches('^hf://[A-Za-z0-9][A-Za-z0-9._-]*/[A-Za-z0-9][A-Za-z0-9._-]*/[^ @]*[^ @/](@[A-Za-z0-9][A-Za-z0-9._/-]*)?$')",
            "an hf source is written hf://OWNER/REPOSITORY/PATH or hf://OWNER/REPOSITORY/PATH@REVISION, with the path of one file in the repository"
        ),
        validation = (
            "!self.matches('^(s3|gs)://') || self.matches('^(s3|gs)://[a-z0-9][a-z0-9._-]+[a-z0-9]/[^ ]*[^ /]$')",
            "an s3 or gs source is written s3://BUCKET/KEY or gs://BUCKET/KEY, with the key of one file"
        ),
        validation = (
            "!self.startsWith('az://') || self.matches('^az://[a-z0-9]{3,24}/[a-z0-9$][a-z0-9-]*/[^ ]*[^ /]$')",
            "an az source is written az://ACCOUNT/CONTAINER/PATH, with the path of one file in the container"
        ),
        validation = (
            "!self.startsWith('oci://') || self.matches('^oci://[A-Za-z0-9.-]+(:[0-9]+)?/[a-z0-9][a-z0-9._/-]*[a-z0-9](:[A-Za-z0-9_][A-Za-z0-9._-]*|@sha256:[0-9a-f]{64})?//[^ ]*[^ /]$')",
            "an oci source is written oci://REGISTRY/REPOSITORY:TAG//FILE or oci://REGISTRY/REPOSITORY@sha256:DIGEST//FILE, with the title of one file in the artifact"
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
    /// Address to ask instead of the usual one: a mirror of Hugging Face, or the server of a store that is compatible
    /// with S3, GCS or Azure, such as https://minio.storage.svc:9000. For hf, s3, gs and az.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 512))]
    #[x_kube(validation = (
        "self.matches('^https?://[A-Za-z0-9.\\\\[\\\\]:-]+(/[^ ?#]*)?$')",
        "model.source.endpoint is written https://HOST, or http://HOST inside a network that is trusted, without user or password"
    ))]
    pub endpoint: Option<String>,
    /// Region of the bucket. For s3; default us-east-1.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(length(max = 64))]
    #[x_kube(validation = (
        "self.matches('^[a-z0-9][a-z0-9-]*$')",
        "model.source.region holds lower-case letters, digits and hyphens, such as eu-central-1"
    ))]
    pub region: Option<String>,
    /// What proves to the source who asks. For sources that are downloaded; without it the source is asked anonymously.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub credentials: Option<SourceCredentials>,
}

/// What proves to a source who asks.
#[derive(KubeSchema, Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct SourceCredentials {
    /// Name of a Secret in this namespace, of which the container that downloads sees the keys as files, and nothing else
    /// does. https and hf: token. s3: AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY and, if there is one, AWS_SESSION_TOKEN.
    /// gs: GOOGLE_SERVICE_ACCOUNT_KEY. az: AZURE_STORAGE_ACCOUNT_KEY or AZURE_STORAGE_SAS_TOKEN. oci: .dockerconfigjson.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(validation = (
        "self.matches('^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$')",
        "credentials.secretName is the name of a Secret in this namespace"
    ))]
    pub secret_name: String,
}
