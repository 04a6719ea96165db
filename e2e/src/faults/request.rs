//! What a request to the API server is about, told from its method and path as the API server tells it.

use std::fmt;

use http::Method;

/// A verb as in RBAC rules.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[expect(missing_docs, reason = "they are the words of RBAC")]
pub enum Verb {
    Get,
    List,
    Watch,
    Create,
    Update,
    Patch,
    Delete,
    DeleteCollection,
    /// Methods that the API server has no verb for.
    Other,
}

impl Verb {
    /// Whether it may change something.
    pub fn writes(self) -> bool {
        !matches!(self, Self::Get | Self::List | Self::Watch)
    }
}

/// What a request is about.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct ApiRequest {
    /// What is done.
    pub verb: Verb,
    /// Plural with its subresource, such as `deployments` or `inferenceservices/status`; for what is no resource, the path.
    pub resource: String,
    /// Namespace, of what has one.
    pub namespace: Option<String>,
    /// Name, when it is about one object. A create names none in its path.
    pub name: Option<String>,
}

impl ApiRequest {
    /// Reads method, path and query.
    pub fn parse(method: &Method, path: &str, query: &str) -> Self {
        let words: Vec<&str> = path.split('/').filter(|word| !word.is_empty()).collect();
        let rest = match words.as_slice() {
            ["api", _, rest @ ..] | ["apis", _, _, rest @ ..] if !rest.is_empty() => rest,
            _ => return Self::of_path(method, path),
        };
        let (namespace, rest) = match rest {
            // Two words are a namespace itself, three may be one of its subresources.
            ["namespaces", name, resource, rest @ ..] if !is_namespace_part(resource) => {
                (Some((*name).to_owned()), [&[*resource][..], rest].concat())
            }
            rest => (None, rest.to_vec()),
        };
        let name = rest.get(1).map(|name| (*name).to_owned());
        let mut resource = rest[0].to_owned();
        if let Some(part) = rest.get(2) {
            resource = format!("{resource}/{part}");
        }
        Self {
            verb: verb(method, name.is_some(), is_watch(query)),
            resource,
            namespace,
            name,
        }
    }

    fn of_path(method: &Method, path: &str) -> Self {
        Self {
            verb: verb(method, true, false),
            resource: path.to_owned(),
            namespace: None,
            name: None,
        }
    }
}

impl fmt::Display for ApiRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let verb = format!("{:?}", self.verb).to_lowercase();
        write!(f, "{verb} {}", self.resource)?;
        if let Some(namespace) = &self.namespace {
            write!(f, " {namespace}/{}", self.name.as_deref().unwrap_or("*"))?;
        } else if let Some(name) = &self.name {
            write!(f, " {name}")?;
        }
        Ok(())
    }
}

fn is_namespace_part(word: &str) -> bool {
    matches!(word, "status" | "finalize")
}

fn is_watch(query: &str) -> bool {
    query
        .split('&')
        .any(|pair| matches!(pair, "watch=true" | "watch=1"))
}

fn verb(method: &Method, named: bool, watch: bool) -> Verb {
    match *method {
        Method::GET if watch => Verb::Watch,
        Method::GET if named => Verb::Get,
        Method::GET => Verb::List,
        Method::POST => Verb::Create,
        Method::PUT => Verb::Update,
        Method::PATCH => Verb::Patch,
        Method::DELETE if named => Verb::Delete,
        Method::DELETE => Verb::DeleteCollection,
        _ => Verb::Other,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn told(method: &Method, target: &str) -> String {
        let (path, query) = target.split_once('?').unwrap_or((target, ""));
        ApiRequest::parse(method, path, query).to_string()
    }

    #[test]
    fn reads_verb_resource_namespace_and_name_as_the_api_server_does() {
        let cases = [
            (
                Method::GET,
                "/api/v1/namespaces/a/pods?limit=5",
                "list pods a/*",
            ),
            (
                Method::GET,
                "/api/v1/pods?watch=true&labelSelector=x",
                "watch pods",
            ),
            (Method::GET, "/api/v1/namespaces/a/pods/p", "get pods a/p"),
            (
                Method::GET,
                "/apis/apps/v1/namespaces/a/deployments?timeoutSeconds=9&watch=1",
                "watch deployments a/*",
            ),
            (
                Method::PATCH,
                "/apis/apps/v1/namespaces/a/deployments/d?force=true",
                "patch deployments a/d",
            ),
            (
                Method::PATCH,
                "/apis/serving.pagoda.dev/v1alpha1/namespaces/a/inferenceservices/s/status",
                "patch inferenceservices/status a/s",
            ),
            (
                Method::PUT,
                "/apis/coordination.k8s.io/v1/namespaces/a/leases/l",
                "update leases a/l",
            ),
            (
                Method::POST,
                "/apis/events.k8s.io/v1/namespaces/a/events",
                "create events a/*",
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/a/configmaps",
                "deletecollection configmaps a/*",
            ),
            (
                Method::DELETE,
                "/api/v1/namespaces/a",
                "delete namespaces a",
            ),
            (
                Method::PUT,
                "/api/v1/namespaces/a/finalize",
                "update namespaces/finalize a",
            ),
            (Method::GET, "/api/v1/nodes", "list nodes"),
            (Method::GET, "/version", "get /version"),
            (Method::GET, "/api/v1", "get /api/v1"),
        ];
        for (method, target, expected) in cases {
            assert_eq!(told(&method, target), expected, "{target}");
        }
    }

    #[test]
    fn a_watch_of_one_object_by_its_name_is_a_watch() {
        assert_eq!(
            told(&Method::GET, "/api/v1/namespaces/a/pods/p?watch=true"),
            "watch pods a/p"
        );
    }

    #[test]
    fn only_get_list_and_watch_change_nothing() {
        assert!(
            [
                Verb::Create,
                Verb::Update,
                Verb::Patch,
                Verb::Delete,
                Verb::DeleteCollection,
                Verb::Other
            ]
            .into_iter()
            .all(Verb::writes)
        );
        assert!(
            ![Verb::Get, Verb::List, Verb::Watch]
                .into_iter()
                .any(Verb::writes)
        );
    }
}
