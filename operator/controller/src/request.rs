//! Requests to the API server, bounded in time, and what their failures mean.

use std::{future::Future, time::Duration};

use kube::core::Status;

/// An API server that has not answered by then will not.
const TIMEOUT: Duration = Duration::from_secs(30);
const LONGEST_WAIT: Duration = Duration::from_mins(5);

/// Why a request failed.
#[derive(Debug, thiserror::Error)]
pub enum RequestError {
    /// The API server said no, or could not be reached.
    #[error("{0}")]
    Failed(Box<kube::Error>),
    /// It did not answer.
    #[error("the API server did not answer within {} s", TIMEOUT.as_secs())]
    Timeout,
}

/// Waits for an answer, but not for ever.
pub async fn bounded<T>(
    request: impl Future<Output = Result<T, kube::Error>>,
) -> Result<T, RequestError> {
    match tokio::time::timeout(TIMEOUT, request).await {
        Ok(answer) => answer.map_err(|error| RequestError::Failed(Box::new(error))),
        Err(_) => Err(RequestError::Timeout),
    }
}

impl RequestError {
    /// What the API server said, if it did.
    pub fn status(&self) -> Option<&Status> {
        match self {
            Self::Failed(error) => match &**error {
                kube::Error::Api(status) => Some(status),
                _ => None,
            },
            Self::Timeout => None,
        }
    }

    /// HTTP status of the API server's answer; 0 without one.
    pub fn code(&self) -> u16 {
        self.status().map_or(0, |status| status.code)
    }

    /// How long the API server asks to be left alone.
    pub fn retry_after(&self) -> Option<Duration> {
        let seconds = self.status()?.details.as_ref()?.retry_after_seconds;
        (seconds > 0).then(|| Duration::from_secs(seconds.into()).min(LONGEST_WAIT))
    }

    /// The namespace is on its way out: nothing can be made in it, and soon nothing is left to make it for.
    pub fn is_namespace_leaving(&self) -> bool {
        let causes = self.status().and_then(|status| status.details.as_ref());
        causes.is_some_and(|details| {
            details
                .causes
                .iter()
                .any(|cause| cause.reason == "NamespaceTerminating")
        })
    }

    /// The installed definition has no such field: it is older than this program. Server-side apply answers 500.
    pub fn is_undeclared_field(&self) -> bool {
        self.status().is_some_and(|status| {
            status.code == 500 && status.message.contains("field not declared in schema")
        })
    }

    /// What another spec would cure: invalid objects, and ones that admission forbids.
    pub fn is_refusal(&self) -> bool {
        let Some(status) = self.status() else {
            return false;
        };
        // A field that its kind does not have is the API server's 500 in a server-side apply, whatever it is elsewhere.
        let unknown_field = status.code == 500
            && status
                .message
                .contains("failed to create typed patch object");
        (matches!(status.code, 400 | 403 | 422) || unknown_field) && !self.is_namespace_leaving()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn answered(status: serde_json::Value) -> RequestError {
        let status: Status = serde_json::from_value(status).expect("a status of the test");
        RequestError::Failed(Box::new(kube::Error::Api(status.boxed())))
    }

    #[test]
    fn a_namespace_that_is_leaving_is_not_the_specs_fault() {
        let leaving = answered(
            json!({"code": 403, "details": {"causes": [{"reason": "NamespaceTerminating"}]}}),
        );
        assert!(leaving.is_namespace_leaving() && !leaving.is_refusal());
        assert!(answered(json!({"code": 403, "message": "forbidden by policy"})).is_refusal());
    }

    #[test]
    fn an_overloaded_api_server_is_left_alone_for_as_long_as_it_asks() {
        let busy = answered(json!({"code": 429, "details": {"retryAfterSeconds": 7}}));
        assert_eq!(busy.retry_after(), Some(Duration::from_secs(7)));
        assert!(!busy.is_refusal());
        let absurd = answered(json!({"code": 429, "details": {"retryAfterSeconds": 4_000_000}}));
        assert_eq!(absurd.retry_after(), Some(LONGEST_WAIT));
    }

    #[test]
    fn a_field_that_the_installed_definition_lacks_is_told_from_other_failures() {
        let words = "failed to create typed patch object (n/a; serving.pagoda.dev/v1alpha1, Kind=InferenceService): .status.scaling.history: field not declared in schema";
        let lacks = answered(json!({"code": 500, "message": words}));
        assert!(lacks.is_undeclared_field());
        assert!(!answered(json!({"code": 500, "message": "etcd"})).is_undeclared_field());
    }

    #[tokio::test(start_paused = true)]
    async fn a_request_that_is_never_answered_fails() {
        let never = std::future::pending::<Result<(), kube::Error>>();
        assert!(matches!(bounded(never).await, Err(RequestError::Timeout)));
    }
}
