//! Errors in OpenAI's shape: `{"error": {"message", "type", "param", "code"}}`.

use axum::Json;
use axum::http::{HeaderValue, StatusCode, header};
use axum::response::{IntoResponse, Response};
use pagoda_engine_core::Refusal;
use serde_json::{Value, json};

use crate::engine::{EmbedError, Failure, SubmitError};
use crate::language::LanguageError;
use crate::structured::CompileError;

/// An answer that is no answer. The message is for the person who wrote the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// HTTP status.
    pub status: StatusCode,
    /// OpenAI's `type`.
    pub kind: &'static str,
    /// What is wrong and what to do.
    pub message: String,
    /// The parameter at fault.
    pub param: Option<String>,
    /// OpenAI's `code`.
    pub code: Option<&'static str>,
    /// When to try again.
    pub retry_after_seconds: Option<u32>,
}

impl ApiError {
    fn new(status: StatusCode, kind: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            kind,
            message: message.into(),
            param: None,
            code: None,
            retry_after_seconds: None,
        }
    }

    /// The request is wrong as a whole.
    pub fn bad_request(message: impl Into<String>) -> Self {
        Self::new(StatusCode::BAD_REQUEST, "invalid_request_error", message)
    }

    /// One parameter is wrong.
    pub fn bad_param(param: &str, message: impl Into<String>) -> Self {
        Self {
            param: Some(param.to_owned()),
            ..Self::bad_request(message)
        }
    }

    /// A schema that cannot be kept to.
    pub fn bad_schema(param: &str, why: &str) -> Self {
        Self {
            code: Some("invalid_json_schema"),
            ..Self::bad_param(param, format!("'{param}' cannot be kept to: {why}"))
        }
    }

    /// The form of an answer was not compiled.
    pub fn not_compiled(param: &str, error: &CompileError) -> Self {
        let why = error.to_string();
        match error {
            CompileError::Grammar(_) | CompileError::TooSlow => Self::bad_schema(param, &why),
            CompileError::Busy => Self::overloaded(why),
            CompileError::NoThread(_) => Self::internal(why),
        }
    }

    /// A parameter that would change the answer's meaning and that nothing here honours.
    pub fn unsupported(param: &str, what: &str) -> Self {
        let message = format!("{what} is not supported by this server: leave '{param}' out");
        Self {
            code: Some("unsupported_parameter"),
            ..Self::bad_param(param, message)
        }
    }

    /// Nobody here goes by that name.
    pub fn model_not_found(name: &str, served: &[String]) -> Self {
        let message = format!(
            "the model '{name}' does not exist here; this server has {}",
            served.join(", ")
        );
        Self {
            param: Some("model".into()),
            code: Some("model_not_found"),
            ..Self::new(StatusCode::NOT_FOUND, "invalid_request_error", message)
        }
    }

    /// The model was made for something else.
    pub fn no_embeddings(name: &str) -> Self {
        let message = format!(
            "the model '{name}' makes no embeddings: it was made to write; ask a model that was made for embeddings"
        );
        Self {
            code: Some("unsupported_model"),
            ..Self::bad_param("model", message)
        }
    }

    /// No such address.
    pub fn no_such_path(path: &str) -> Self {
        Self::new(
            StatusCode::NOT_FOUND,
            "invalid_request_error",
            format!("there is nothing at {path}"),
        )
    }

    /// The address exists but not for this method.
    pub fn wrong_method() -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "invalid_request_error",
            "this address does not take that method",
        )
    }

    /// The body is larger than allowed.
    pub fn body_too_large(limit_bytes: usize) -> Self {
        let message = format!("the request's body is larger than {limit_bytes} bytes");
        Self::new(
            StatusCode::PAYLOAD_TOO_LARGE,
            "invalid_request_error",
            message,
        )
    }

    /// The body did not arrive in time.
    pub fn body_too_slow(seconds: u64) -> Self {
        let message = format!("the request's body did not arrive within {seconds} s");
        Self::new(
            StatusCode::REQUEST_TIMEOUT,
            "invalid_request_error",
            message,
        )
    }

    /// The model is not there yet.
    pub fn loading(percent: u8) -> Self {
        let message = format!("loading, {percent} %");
        Self {
            code: Some("model_loading"),
            ..Self::unavailable(message, 1)
        }
    }

    /// The pod is on its way out.
    pub fn draining() -> Self {
        Self {
            code: Some("shutting_down"),
            ..Self::unavailable("this server is shutting down", 1)
        }
    }

    fn unavailable(message: impl Into<String>, retry_after_seconds: u32) -> Self {
        Self {
            retry_after_seconds: Some(retry_after_seconds),
            ..Self::new(StatusCode::SERVICE_UNAVAILABLE, "server_error", message)
        }
    }

    fn overloaded(message: String) -> Self {
        Self {
            code: Some("queue_full"),
            retry_after_seconds: Some(1),
            ..Self::new(StatusCode::TOO_MANY_REQUESTS, "rate_limit_error", message)
        }
    }

    /// A fault of ours.
    pub fn internal(message: impl Into<String>) -> Self {
        Self::new(StatusCode::INTERNAL_SERVER_ERROR, "server_error", message)
    }

    /// The JSON body, which is also the data of an error event in a stream.
    pub fn to_json(&self) -> Value {
        json!({"error": {"message": self.message, "type": self.kind, "param": self.param, "code": self.code}})
    }
}

impl IntoResponse for ApiError {
    fn into_response(self) -> Response {
        let mut response = (self.status, Json(self.to_json())).into_response();
        if let Some(seconds) = self.retry_after_seconds {
            response
                .headers_mut()
                .insert(header::RETRY_AFTER, HeaderValue::from(seconds));
        }
        response
    }
}

impl From<Refusal> for ApiError {
    fn from(refusal: Refusal) -> Self {
        let message = refusal.to_string();
        match refusal {
            Refusal::EmptyPrompt => Self::bad_request(message),
            Refusal::TooLong { .. } => Self {
                code: Some("context_length_exceeded"),
                ..Self::bad_request(message)
            },
            Refusal::QueueFull { .. } => Self::overloaded(format!("{message}: try again later")),
        }
    }
}

impl From<SubmitError> for ApiError {
    fn from(error: SubmitError) -> Self {
        match error {
            SubmitError::Refused(refusal) => refusal.into(),
            SubmitError::Overloaded => Self::overloaded(error.to_string()),
            SubmitError::Gone => Self::unavailable(error.to_string(), 1),
        }
    }
}

impl From<Failure> for ApiError {
    fn from(failure: Failure) -> Self {
        let message = failure.to_string();
        match failure {
            Failure::ShuttingDown => Self {
                code: Some("shutting_down"),
                ..Self::unavailable(message, 1)
            },
            Failure::DeadlineExceeded => Self {
                status: StatusCode::GATEWAY_TIMEOUT,
                code: Some("deadline_exceeded"),
                ..Self::internal(message)
            },
            Failure::Form(_) => Self {
                code: Some("form_too_complex"),
                ..Self::bad_request(message)
            },
            Failure::Executor(_)
            | Failure::Sampling(_)
            | Failure::NotFinite
            | Failure::EngineGone => Self::internal(message),
        }
    }
}

impl From<EmbedError> for ApiError {
    fn from(error: EmbedError) -> Self {
        match error {
            EmbedError::Submit(error) => error.into(),
            EmbedError::Failed(failure) => failure.into(),
        }
    }
}

impl From<LanguageError> for ApiError {
    fn from(error: LanguageError) -> Self {
        Self::bad_param("messages", error.to_string())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn has_openais_shape() {
        let error = ApiError::bad_param("temperature", "too hot").to_json();
        assert_eq!(
            error,
            json!({"error": {"message": "too hot", "type": "invalid_request_error", "param": "temperature", "code": null}})
        );
    }

    #[test]
    fn a_template_that_refuses_a_role_is_the_clients_to_mend() {
        let refused = pagoda_text::TemplateError::Refused {
            message: "System role not supported".into(),
        };
        let error = ApiError::from(LanguageError::Template(refused));
        assert_eq!(
            (error.status.as_u16(), error.param.as_deref()),
            (400, Some("messages"))
        );
        assert!(error.message.contains("System role not supported"));
    }

    #[test]
    fn what_may_succeed_later_says_when() {
        for error in [
            ApiError::loading(3),
            ApiError::draining(),
            Refusal::QueueFull { waiting: 9 }.into(),
        ] {
            let response = error.into_response();
            assert_eq!(response.headers()[header::RETRY_AFTER], "1");
        }
    }
}
