//! The API server's audit log: what was written, by whom, and how it was answered.

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{Read, Seek, SeekFrom};
use std::path::PathBuf;

use anyhow::{Context, Result};
use jiff::Timestamp;
use serde::Deserialize;
use serde_json::Value;

const OPERATOR: &str = "system:serviceaccount:pagoda-system:pagoda-operator";
const CREDENTIAL: &str = "authentication.kubernetes.io/credential-id";

/// One write, as the API server saw it.
#[derive(Debug, Clone)]
pub struct Write {
    pub received: Timestamp,
    pub answered: Timestamp,
    /// `create`, `patch`, `update`, `delete`, ...
    pub verb: String,
    /// `deployments`, or with its subresource `inferenceservices/status`.
    pub resource: String,
    pub namespace: String,
    pub name: String,
    /// HTTP status of the answer.
    pub code: u16,
    /// Whether the operator's account wrote it.
    pub by_operator: bool,
    /// Which of its tokens: one a process.
    pub credential: String,
    /// Who holds the lease by this write, when it is one of a lease.
    pub holder: Option<String>,
}

impl Write {
    pub fn is_of_lease(&self) -> bool {
        self.resource == "leases"
    }

    /// A write of the operator that is not about its lease.
    pub fn is_work(&self) -> bool {
        self.by_operator && !self.is_of_lease()
    }

    pub fn seconds(&self) -> f64 {
        self.answered.duration_since(self.received).as_secs_f64()
    }

    fn parse(line: &[u8]) -> Result<Self> {
        let event: Event =
            serde_json::from_slice(line).context("a line of the audit log is no event")?;
        let object = event.object_ref.unwrap_or_default();
        let subresource = object.subresource;
        let resource = if subresource.is_empty() {
            object.resource
        } else {
            format!("{}/{subresource}", object.resource)
        };
        let credential = event.user.extra.get(CREDENTIAL).and_then(|ids| ids.first());
        let holder = event.request_object["spec"]["holderIdentity"].as_str();
        Ok(Self {
            received: event.request_received_timestamp,
            answered: event.stage_timestamp,
            verb: event.verb,
            resource,
            namespace: object.namespace,
            name: object.name,
            code: event.response_status.code,
            by_operator: event.user.username == OPERATOR,
            credential: credential.cloned().unwrap_or_default(),
            holder: holder.map(str::to_owned),
        })
    }
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct Event {
    verb: String,
    user: User,
    #[serde(default)]
    object_ref: Option<ObjectRef>,
    #[serde(default)]
    response_status: ResponseStatus,
    #[serde(default)]
    request_object: Value,
    request_received_timestamp: Timestamp,
    stage_timestamp: Timestamp,
}

#[derive(Deserialize)]
struct User {
    #[serde(default)]
    username: String,
    #[serde(default)]
    extra: BTreeMap<String, Vec<String>>,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ObjectRef {
    resource: String,
    subresource: String,
    namespace: String,
    name: String,
}

#[derive(Default, Deserialize)]
#[serde(default)]
struct ResponseStatus {
    code: u16,
}

/// A log that is read on from where it was read before.
pub struct AuditLog {
    path: PathBuf,
    offset: u64,
}

impl AuditLog {
    pub fn at(path: PathBuf) -> Self {
        Self { path, offset: 0 }
    }

    /// What was written since the last call; a line that is still being written is left for the next.
    pub fn read_on(&mut self) -> Result<Vec<Write>> {
        let mut file = File::open(&self.path).context("the API server keeps no audit log")?;
        file.seek(SeekFrom::Start(self.offset))?;
        let mut text = Vec::new();
        file.read_to_end(&mut text)?;
        let whole = text
            .iter()
            .rposition(|byte| *byte == b'\n')
            .map_or(0, |at| at + 1);
        self.offset += whole as u64;
        text[..whole]
            .split(|byte| *byte == b'\n')
            .filter(|line| !line.is_empty())
            .map(Write::parse)
            .collect()
    }

    /// Goes on from the end.
    pub fn skip(&mut self) -> Result<()> {
        self.read_on().map(|_| ())
    }
}

/// Writes by what they were of, most first.
pub fn by_resource<'a>(writes: impl Iterator<Item = &'a Write>) -> Vec<(String, usize)> {
    let mut counts: BTreeMap<String, usize> = BTreeMap::new();
    for write in writes {
        *counts
            .entry(format!("{} {}", write.verb, write.resource))
            .or_default() += 1;
    }
    let mut counts: Vec<_> = counts.into_iter().collect();
    counts.sort_by_key(|(_, count)| std::cmp::Reverse(*count));
    counts
}

/// The same in words.
pub fn in_words(writes: &[Write]) -> String {
    let counts = by_resource(writes.iter()).into_iter();
    let words: Vec<String> = counts
        .map(|(what, count)| format!("{count} {what}"))
        .collect();
    words.join(", ")
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"kind":"Event","apiVersion":"audit.k8s.io/v1","level":"Request","auditID":"1","stage":"ResponseComplete","requestURI":"/x","verb":"update","user":{"username":"system:serviceaccount:pagoda-system:pagoda-operator","uid":"u","groups":["g"],"extra":{"authentication.kubernetes.io/credential-id":["JTI=7"]}},"objectRef":{"resource":"leases","namespace":"pagoda-system","name":"pagoda-operator","apiGroup":"coordination.k8s.io","apiVersion":"v1"},"responseStatus":{"metadata":{},"code":200},"requestObject":{"spec":{"holderIdentity":"a_1"}},"requestReceivedTimestamp":"2026-01-01T00:00:00.250000Z","stageTimestamp":"2026-01-01T00:00:00.500000Z","annotations":{}}"#;

    #[test]
    fn a_write_of_the_lease_names_its_holder_and_is_not_work() {
        let write = Write::parse(LINE.as_bytes()).unwrap();
        assert_eq!(write.holder.as_deref(), Some("a_1"));
        assert_eq!((write.credential.as_str(), write.code), ("JTI=7", 200));
        assert!(write.by_operator && !write.is_work());
        assert!((write.seconds() - 0.25).abs() < 1e-6);
    }

    #[test]
    fn a_line_that_is_still_being_written_is_read_when_it_is_whole() {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), format!("{LINE}\n{}", &LINE[..40])).unwrap();
        let mut log = AuditLog::at(file.path().to_owned());
        assert_eq!(log.read_on().unwrap().len(), 1);
        assert_eq!(log.read_on().unwrap().len(), 0);
        std::fs::write(file.path(), format!("{LINE}\n{LINE}\n")).unwrap();
        assert_eq!(log.read_on().unwrap().len(), 1);
    }
}
