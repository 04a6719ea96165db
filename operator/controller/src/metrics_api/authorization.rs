//! Whether who asks may: the API server decides it, by a SubjectAccessReview whose answer is remembered for a moment.

use std::{
    collections::BTreeMap,
    fmt,
    sync::{Mutex, MutexGuard, PoisonError},
    time::Duration,
};

use k8s_openapi::api::authorization::v1::{
    ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::{Api, Client, api::PostParams};
use tokio::time::{Instant, timeout};

use super::{authentication::User, discovery, refusal::Refusal};

/// As long as Kubernetes' own servers remember answers.
const REMEMBERED: Duration = Duration::from_secs(10);
/// A user with all of their groups may take a whole head of a request.
const MOST_REMEMBERED: usize = 512;
const LIMIT: Duration = Duration::from_secs(5);
/// Who may do everything by definition; nobody else's servers ask for them either.
const MASTERS: &str = "system:masters";

/// What is asked for, in the words of RBAC.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Wish {
    /// `get` or `list`.
    pub verb: &'static str,
    /// Group of the API.
    pub group: &'static str,
    /// Its version.
    pub version: &'static str,
    /// Namespace.
    pub namespace: String,
    /// The metric, or the kind of object that it is a metric of.
    pub resource: String,
    /// The metric, when it is one of objects.
    pub subresource: Option<String>,
    /// The object.
    pub name: Option<String>,
}

impl Wish {
    /// External metrics are listed.
    pub fn external(namespace: &str, metric: &str) -> Self {
        Self {
            verb: "list",
            group: discovery::EXTERNAL.group,
            version: discovery::EXTERNAL.version,
            namespace: namespace.to_owned(),
            resource: metric.to_owned(),
            subresource: None,
            name: None,
        }
    }

    /// Metrics of objects are a part of them.
    pub fn custom(namespace: &str, resource: &str, name: &str, metric: &str) -> Self {
        Self {
            verb: "get",
            group: discovery::CUSTOM.group,
            version: discovery::CUSTOM.version,
            namespace: namespace.to_owned(),
            resource: resource.to_owned(),
            subresource: Some(metric.to_owned()),
            name: Some(name.to_owned()),
        }
    }
}

impl fmt::Display for Wish {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {}", self.verb, self.resource)?;
        if let Some(subresource) = &self.subresource {
            write!(f, "/{subresource}")?;
        }
        write!(
            f,
            " in API group {} in the namespace {}",
            self.group, self.namespace
        )
    }
}

/// Asks the API server, and remembers.
pub struct Authorizer {
    client: Client,
    answers: Mutex<BTreeMap<(User, Wish), (Instant, bool)>>,
}

impl Authorizer {
    /// One that has asked nothing yet.
    pub fn new(client: Client) -> Self {
        Self {
            client,
            answers: Mutex::default(),
        }
    }

    /// Fails unless the user may.
    pub async fn check(&self, user: &User, wish: Wish) -> Result<(), Refusal> {
        if user.groups.iter().any(|group| group == MASTERS) {
            return Ok(());
        }
        let question = (user.clone(), wish);
        let allowed = match self.remembered(&question) {
            Some(allowed) => allowed,
            None => self.ask(&question).await?,
        };
        let (user, wish) = question;
        allowed.then_some(()).ok_or_else(|| Refusal::Forbidden {
            user: user.name,
            what: wish.to_string(),
        })
    }

    fn remembered(&self, question: &(User, Wish)) -> Option<bool> {
        let answers = self.answers();
        let (when, allowed) = answers.get(question)?;
        (when.elapsed() < REMEMBERED).then_some(*allowed)
    }

    async fn ask(&self, question: &(User, Wish)) -> Result<bool, Refusal> {
        let reviews: Api<SubjectAccessReview> = Api::all(self.client.clone());
        let review = review(&question.0, &question.1);
        let parameters = PostParams::default();
        let answer = timeout(LIMIT, reviews.create(&parameters, &review)).await;
        let answer = answer
            .map_err(|_| Refusal::Undecided("no answer in time".to_owned()))?
            .map_err(|error| Refusal::Undecided(error.to_string()))?;
        let allowed = answer.status.is_some_and(|status| status.allowed);
        let mut answers = self.answers();
        if answers.len() >= MOST_REMEMBERED {
            answers.retain(|_, (when, _)| when.elapsed() < REMEMBERED);
        }
        if answers.len() < MOST_REMEMBERED {
            answers.insert(question.clone(), (Instant::now(), allowed));
        }
        Ok(allowed)
    }

    fn answers(&self) -> MutexGuard<'_, BTreeMap<(User, Wish), (Instant, bool)>> {
        self.answers.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn review(user: &User, wish: &Wish) -> SubjectAccessReview {
    SubjectAccessReview {
        spec: SubjectAccessReviewSpec {
            user: Some(user.name.clone()),
            groups: Some(user.groups.clone()),
            extra: Some(user.extra.clone()),
            resource_attributes: Some(ResourceAttributes {
                verb: Some(wish.verb.to_owned()),
                group: Some(wish.group.to_owned()),
                version: Some(wish.version.to_owned()),
                namespace: Some(wish.namespace.clone()),
                resource: Some(wish.resource.clone()),
                subresource: wish.subresource.clone(),
                name: wish.name.clone(),
                ..ResourceAttributes::default()
            }),
            ..SubjectAccessReviewSpec::default()
        },
        ..SubjectAccessReview::default()
    }
}
