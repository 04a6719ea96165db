//! Failures as `metav1.Status`, which clients of the Kubernetes API show to their users.

use axum::{
    Json,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use serde_json::json;

/// Why a request has no answer but this.
#[derive(Debug, thiserror::Error)]
pub enum Refusal {
    /// Who asks did not come through the API server's aggregation layer.
    #[error(
        "Unauthorized: these APIs answer the API server's aggregation layer alone; ask it instead"
    )]
    Unauthenticated,
    /// Who asks may not.
    #[error("{user:?} cannot {what}: grant it by RBAC")]
    Forbidden {
        /// Who.
        user: String,
        /// Verb, resource and place.
        what: String,
    },
    /// Nobody knows whether they may.
    #[error("cannot ask the API server who may do this: {0}")]
    Undecided(String),
    /// A question that makes no sense.
    #[error("{0}")]
    Malformed(String),
    /// There is no such thing.
    #[error("{0}")]
    NotFound(String),
    /// Nothing can be changed here.
    #[error("metrics are only read: use GET")]
    Method,
}

impl Refusal {
    fn code(&self) -> (StatusCode, &'static str) {
        match self {
            Self::Unauthenticated => (StatusCode::UNAUTHORIZED, "Unauthorized"),
            Self::Forbidden { .. } => (StatusCode::FORBIDDEN, "Forbidden"),
            Self::Undecided(_) => (StatusCode::SERVICE_UNAVAILABLE, "ServiceUnavailable"),
            Self::Malformed(_) => (StatusCode::BAD_REQUEST, "BadRequest"),
            Self::NotFound(_) => (StatusCode::NOT_FOUND, "NotFound"),
            Self::Method => (StatusCode::METHOD_NOT_ALLOWED, "MethodNotAllowed"),
        }
    }
}

impl IntoResponse for Refusal {
    fn into_response(self) -> Response {
        let (code, reason) = self.code();
        let status = json!({
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": self.to_string(),
            "reason": reason,
            "code": code.as_u16(),
        });
        (code, Json(status)).into_response()
    }
}
