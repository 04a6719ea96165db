//! The cluster's certificate authorities, the certificates they sign, and kubeconfigs made of them.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use rcgen::{
    BasicConstraints, CertificateParams, DnType, ExtendedKeyUsagePurpose, IsCa, Issuer, KeyPair,
    KeyUsagePurpose, date_time_ymd,
};

use super::NODE_NAME;
use super::network::{API_SERVICE_ADDRESS, NODE_ADDRESS};

/// Who presents a certificate, in the words the API server's authorisation uses.
struct Subject {
    common_name: String,
    /// Becomes the user's group.
    organization: Option<&'static str>,
    /// Names and addresses; none for a client.
    alternative_names: Vec<String>,
}

/// An authority and everything needed to sign by it.
struct Authority {
    issuer: Issuer<'static, KeyPair>,
    certificate: String,
}

/// Clients that get a kubeconfig: file name, user, group.
const CLIENTS: [(&str, &str, Option<&str>); 5] = [
    ("admin", "pagoda-admin", Some("system:masters")),
    ("controller-manager", "system:kube-controller-manager", None),
    ("scheduler", "system:kube-scheduler", None),
    ("kubelet", "system:node:pagoda", Some("system:nodes")),
    ("proxy", "system:kube-proxy", None),
];

/// Writes all certificates and keys into `folder` (`NAME.crt`, `NAME.key`) and a kubeconfig for each client, and returns
/// the administrator's kubeconfig.
pub(super) fn write_all(folder: &Path) -> Result<PathBuf> {
    fs::create_dir_all(folder).context("cannot make the folder of certificates")?;
    fs::set_permissions(folder, fs::Permissions::from_mode(0o700))?;
    let cluster = Authority::new("pagoda-local-ca")?;
    let front_proxy = Authority::new("pagoda-local-front-proxy-ca")?;
    write(folder, "ca.crt", &cluster.certificate)?;
    write(folder, "ca.key", &cluster.issuer.key().serialize_pem())?;
    write(folder, "front-proxy-ca.crt", &front_proxy.certificate)?;
    cluster.write_signed(folder, "apiserver", &api_server())?;
    cluster.write_signed(folder, "kubelet-server", &kubelet_server())?;
    cluster.write_signed(
        folder,
        "apiserver-kubelet-client",
        &client("kube-apiserver-kubelet-client", Some("system:masters")),
    )?;
    front_proxy.write_signed(
        folder,
        "front-proxy-client",
        &client("front-proxy-client", None),
    )?;
    let service_accounts = KeyPair::generate()?;
    write(
        folder,
        "service-accounts.key",
        &service_accounts.serialize_pem(),
    )?;
    write(
        folder,
        "service-accounts.pub",
        &service_accounts.public_key_pem(),
    )?;
    for (name, user, group) in CLIENTS {
        let (certificate, key) = cluster.sign(&client(user, group))?;
        write(
            folder,
            &format!("{name}.kubeconfig"),
            &kubeconfig(&cluster.certificate, &certificate, &key),
        )?;
    }
    Ok(folder.join("admin.kubeconfig"))
}

fn client(user: &str, group: Option<&'static str>) -> Subject {
    Subject {
        common_name: user.to_owned(),
        organization: group,
        alternative_names: Vec::new(),
    }
}

fn api_server() -> Subject {
    let names = [
        "kubernetes",
        "kubernetes.default",
        "kubernetes.default.svc",
        "kubernetes.default.svc.cluster.local",
        "localhost",
    ];
    let addresses = [
        "127.0.0.1".to_owned(),
        NODE_ADDRESS.to_string(),
        API_SERVICE_ADDRESS.to_string(),
    ];
    let alternative_names = names
        .into_iter()
        .map(str::to_owned)
        .chain(addresses)
        .collect();
    Subject {
        common_name: "kube-apiserver".to_owned(),
        organization: None,
        alternative_names,
    }
}

fn kubelet_server() -> Subject {
    let alternative_names = vec![NODE_NAME.to_owned(), NODE_ADDRESS.to_string()];
    Subject {
        common_name: format!("system:node:{NODE_NAME}"),
        organization: Some("system:nodes"),
        alternative_names,
    }
}

impl Authority {
    fn new(common_name: &str) -> Result<Self> {
        let mut params = parameters(common_name, Vec::new())?;
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::DigitalSignature,
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
        ];
        let key = KeyPair::generate()?;
        let certificate = params.self_signed(&key)?.pem();
        Ok(Self {
            issuer: Issuer::new(params, key),
            certificate,
        })
    }

    /// Certificate and key in PEM.
    fn sign(&self, subject: &Subject) -> Result<(String, String)> {
        let mut params = parameters(&subject.common_name, subject.alternative_names.clone())?;
        if let Some(organization) = subject.organization {
            params
                .distinguished_name
                .push(DnType::OrganizationName, organization);
        }
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![ExtendedKeyUsagePurpose::ClientAuth];
        if !subject.alternative_names.is_empty() {
            params
                .extended_key_usages
                .push(ExtendedKeyUsagePurpose::ServerAuth);
        }
        params.use_authority_key_identifier_extension = true;
        let key = KeyPair::generate()?;
        Ok((
            params.signed_by(&key, &self.issuer)?.pem(),
            key.serialize_pem(),
        ))
    }

    fn write_signed(&self, folder: &Path, name: &str, subject: &Subject) -> Result<()> {
        let (certificate, key) = self.sign(subject)?;
        write(folder, &format!("{name}.crt"), &certificate)?;
        write(folder, &format!("{name}.key"), &key)
    }
}

/// Fixed dates: these die with the cluster, and a clock that is a little off must not stop it.
fn parameters(common_name: &str, alternative_names: Vec<String>) -> Result<CertificateParams> {
    let mut params = CertificateParams::new(alternative_names)?;
    params.distinguished_name = rcgen::DistinguishedName::new();
    params
        .distinguished_name
        .push(DnType::CommonName, common_name);
    params.not_before = date_time_ymd(2020, 1, 1);
    params.not_after = date_time_ymd(2099, 1, 1);
    Ok(params)
}

fn kubeconfig(authority: &str, certificate: &str, key: &str) -> String {
    let [authority, certificate, key] =
        [authority, certificate, key].map(|pem| BASE64_STANDARD.encode(pem));
    format!(
        "apiVersion: v1
kind: Config
clusters:
- name: pagoda-local
  cluster: {{server: \"https://{NODE_ADDRESS}:6443\", certificate-authority-data: {authority}}}
users:
- name: pagoda-local
  user: {{client-certificate-data: {certificate}, client-key-data: {key}}}
contexts:
- name: pagoda-local
  context: {{cluster: pagoda-local, user: pagoda-local}}
current-context: pagoda-local
"
    )
}

/// Everything here may hold a key, so nobody but root reads it.
fn write(folder: &Path, name: &str, text: &str) -> Result<()> {
    let file = folder.join(name);
    fs::write(&file, text).with_context(|| format!("cannot write {}", file.display()))?;
    Ok(fs::set_permissions(
        &file,
        fs::Permissions::from_mode(0o600),
    )?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kubelet_is_the_node_that_the_cluster_has() {
        let user = CLIENTS
            .iter()
            .find(|(name, ..)| *name == "kubelet")
            .unwrap()
            .1;
        assert_eq!(user, format!("system:node:{NODE_NAME}"));
    }

    #[test]
    fn writes_every_file_readable_by_its_owner_only() {
        let folder = tempfile::tempdir().unwrap();
        let admin = write_all(folder.path()).unwrap();
        let parsed: serde_json::Value =
            serde_yaml_ng::from_str(&fs::read_to_string(admin).unwrap()).unwrap();
        let certificate = parsed["users"][0]["user"]["client-certificate-data"]
            .as_str()
            .unwrap();
        assert!(
            BASE64_STANDARD
                .decode(certificate)
                .unwrap()
                .starts_with(b"-----BEGIN CERTIFICATE-----")
        );
        for entry in fs::read_dir(folder.path()).unwrap() {
            let mode = entry.unwrap().metadata().unwrap().permissions().mode();
            assert_eq!(mode & 0o077, 0);
        }
    }
}
