//! The gateway's own answers to a client, in the shape OpenAI's clients expect.

use bytes::Bytes;
use http::header::{ALLOW, CONTENT_TYPE, RETRY_AFTER};
use http::{HeaderValue, Response, StatusCode};
use serde_json::json;

use crate::body::BodyError;
use crate::core::hold::Refusal;
use crate::core::request_model::ModelError;
use crate::core::routes::ServiceKey;
use crate::relay::GatewayBody;

/// A refusal or failure said to a client.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ApiError {
    /// The HTTP status.
    pub status: StatusCode,
    /// The machine-readable code, in `error.code`.
    pub code: &'static str,
    /// The offending request field, in `error.param`.
    pub param: Option<&'static str>,
    /// What happened and what to do, in `error.message`.
    pub message: String,
    /// Seconds after which trying again makes sense.
    pub retry_after_seconds: Option<u32>,
}

/// The longest part of a client's own text that is repeated to it.
const ECHOED_CHARS: usize = 128;

impl ApiError {
    fn new(status: StatusCode, code: &'static str, message: impl Into<String>) -> Self {
        Self {
            status,
            code,
            param: None,
            message: message.into(),
            retry_after_seconds: None,
        }
    }

    fn retry_after(mut self, seconds: u32) -> Self {
        self.retry_after_seconds = Some(seconds);
        self
    }

    fn param(mut self, param: &'static str) -> Self {
        self.param = Some(param);
        self
    }

    /// No such path here.
    pub fn unknown_path(path: &str) -> Self {
        let path: String = path.chars().take(ECHOED_CHARS).collect();
        Self::new(
            StatusCode::NOT_FOUND,
            "unknown_url",
            format!("unknown path {path}; this gateway serves GET /v1/models and POST /v1/..."),
        )
    }

    /// The path is there, the method is not.
    pub fn wrong_method(allowed: &'static str) -> Self {
        Self::new(
            StatusCode::METHOD_NOT_ALLOWED,
            "method_not_allowed",
            format!("this path takes {allowed}"),
        )
    }

    /// No service has this name.
    pub fn unknown_model(model: &str) -> Self {
        let model: String = model.chars().take(ECHOED_CHARS).collect();
        let message =
            format!("the model '{model}' does not exist; GET /v1/models lists those that do");
        Self::new(StatusCode::NOT_FOUND, "model_not_found", message).param("model")
    }

    /// The cluster's services are not known yet.
    pub fn not_synced() -> Self {
        let message =
            "this gateway has just started and does not know the cluster's models yet; try again";
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "gateway_starting", message).retry_after(1)
    }

    /// The service's hold queue takes no more.
    pub fn hold_refused(service: &ServiceKey, refusal: Refusal) -> Self {
        let message = format!(
            "{service} has no pod to take this request and {refusal}; try again later, or raise routing.hold.maxRequests or scaling.minReplicas"
        );
        match refusal {
            Refusal::TooManyRequests(_) | Refusal::TooManyBytes(_) => Self::new(
                StatusCode::SERVICE_UNAVAILABLE,
                "too_many_held_requests",
                message,
            )
            .retry_after(5),
            Refusal::Closed => Self::shutting_down(),
        }
    }

    /// No pod became ready in time.
    pub fn held_too_long(service: &ServiceKey, seconds: u64) -> Self {
        let message = format!(
            "no pod of {service} became ready within {seconds} s; try again, and see `kubectl describe inferenceservice -n {} {}`",
            service.namespace(),
            service.name()
        );
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "no_ready_pods", message).retry_after(10)
    }

    /// This process ends.
    pub fn shutting_down() -> Self {
        Self::new(
            StatusCode::SERVICE_UNAVAILABLE,
            "gateway_stopping",
            "this gateway is shutting down; send the request again",
        )
        .retry_after(1)
    }

    /// Every pod declined.
    pub fn all_pods_refuse(service: &ServiceKey) -> Self {
        let message = format!("every pod of {service} is draining or full; try again later");
        Self::new(StatusCode::SERVICE_UNAVAILABLE, "pods_overloaded", message).retry_after(5)
    }

    /// No pod could be reached.
    pub fn unreachable(service: &ServiceKey) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "pods_unreachable",
            format!("no pod of {service} could be reached; try again"),
        )
        .retry_after(5)
    }

    /// A pod failed before it had answered.
    pub fn pod_failed(service: &ServiceKey) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "pod_failed",
            format!("a pod of {service} failed before it had answered; try again"),
        )
        .retry_after(1)
    }

    /// A pod failed in the middle of its answer.
    pub fn stream_failed(service: &ServiceKey) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "pod_failed",
            format!(
                "the pod of {service} failed in the middle of this stream; send the request again"
            ),
        )
    }

    /// A pod stopped in the middle of its answer.
    pub fn stream_stalled(service: &ServiceKey, seconds: u64) -> Self {
        let message = format!(
            "the pod of {service} sent nothing for {seconds} s in the middle of this answer; send the request again"
        );
        Self::new(StatusCode::GATEWAY_TIMEOUT, "pod_stalled", message)
    }

    /// A pod answered something else than the stream that was asked for and that has begun.
    pub fn no_stream(service: &ServiceKey) -> Self {
        Self::new(
            StatusCode::BAD_GATEWAY,
            "pod_sent_no_stream",
            format!(
                "the pod of {service} answered without an event stream; ask for this without \"stream\""
            ),
        )
    }

    /// A pod answered with an error in no shape that clients know.
    pub fn pod_refused(service: &ServiceKey, status: StatusCode) -> Self {
        Self::new(
            status,
            "pod_error",
            format!(
                "the pod of {service} answered with status {}",
                status.as_u16()
            ),
        )
    }

    /// A pod did not begin its answer in time.
    pub fn pod_timed_out(service: &ServiceKey, seconds: u64) -> Self {
        let message = format!(
            "the pod of {service} did not begin to answer within {seconds} s; ask for less, or stream the answer"
        );
        Self::new(StatusCode::GATEWAY_TIMEOUT, "pod_timed_out", message)
    }

    /// Whether the connection must not be used again: the request was not read to its end.
    pub fn closes_connection(&self) -> bool {
        matches!(
            self.status,
            StatusCode::PAYLOAD_TOO_LARGE | StatusCode::REQUEST_TIMEOUT
        )
    }

    fn kind(&self) -> &'static str {
        match self.status.as_u16() {
            429 => "rate_limit_error",
            400..=499 => "invalid_request_error",
            _ => "server_error",
        }
    }

    fn json(&self) -> String {
        json!({"error": {"message": self.message, "type": self.kind(), "param": self.param, "code": self.code}}).to_string()
    }

    /// The error as one server-sent event.
    pub fn sse_event(&self) -> Bytes {
        event(&self.json())
    }

    /// The error as a response.
    pub fn into_response(self) -> Response<GatewayBody> {
        let mut response = Response::new(GatewayBody::full(self.json()));
        *response.status_mut() = self.status;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        if let Some(seconds) = self.retry_after_seconds {
            headers.insert(RETRY_AFTER, seconds.into());
        }
        if self.status == StatusCode::METHOD_NOT_ALLOWED {
            headers.insert(
                ALLOW,
                HeaderValue::from_static(if self.message.contains("POST") {
                    "POST"
                } else {
                    "GET"
                }),
            );
        }
        if self.closes_connection() {
            headers.insert(http::header::CONNECTION, HeaderValue::from_static("close"));
        }
        response
    }
}

/// A pod's error response as one server-sent event; `None` when it has not the shape that OpenAI's clients expect.
pub fn sse_event_of(body: &[u8]) -> Option<Bytes> {
    let body: serde_json::Value = serde_json::from_slice(body).ok()?;
    // Written anew, it has no line breaks.
    body["error"].is_object().then(|| event(&body.to_string()))
}

fn event(data: &str) -> Bytes {
    format!("data: {data}\n\n").into()
}

impl From<ModelError> for ApiError {
    fn from(error: ModelError) -> Self {
        let code = match error {
            ModelError::Utf8(_) | ModelError::Json(_) => "invalid_json",
            ModelError::Missing => "missing_model",
        };
        let built = Self::new(StatusCode::BAD_REQUEST, code, error.to_string());
        if code == "missing_model" {
            built.param("model")
        } else {
            built
        }
    }
}

impl From<&BodyError> for ApiError {
    fn from(error: &BodyError) -> Self {
        let message = error.to_string();
        match error {
            BodyError::TooLarge(_) => {
                Self::new(StatusCode::PAYLOAD_TOO_LARGE, "body_too_large", message)
            }
            BodyError::TooSlow => Self::new(StatusCode::REQUEST_TIMEOUT, "body_too_slow", message),
            BodyError::Broken => Self::new(StatusCode::BAD_REQUEST, "body_malformed", message),
            BodyError::NoMemory(_) => {
                Self::new(StatusCode::SERVICE_UNAVAILABLE, "gateway_full", message).retry_after(1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_error_has_the_openai_shape_and_an_event_is_one_line() {
        let error = ApiError::unknown_model("no\n\"such");
        let parsed: serde_json::Value = serde_json::from_str(&error.json()).expect("JSON");
        assert_eq!(parsed["error"]["code"], "model_not_found");
        assert_eq!(parsed["error"]["type"], "invalid_request_error");
        assert_eq!(parsed["error"]["param"], "model");
        let event = error.sse_event();
        assert!(event.starts_with(b"data: {\"error\":") && event.ends_with(b"}\n\n"));
        assert!(!event[..event.len() - 2].contains(&b'\n'));
    }

    #[test]
    fn a_pods_error_becomes_one_event_and_anything_else_none() {
        let body = b"{\n \"error\": {\"message\": \"too\\nlong\", \"code\": 400}\n}\n";
        let event = sse_event_of(body).expect("an error");
        let line = event
            .strip_prefix(b"data: ")
            .and_then(|rest| rest.strip_suffix(b"\n\n"))
            .expect("an event");
        assert!(!line.contains(&b'\n'));
        let told: serde_json::Value = serde_json::from_slice(line).expect("JSON");
        assert_eq!(
            told,
            serde_json::json!({"error": {"code": 400, "message": "too\nlong"}})
        );
        let deep = format!("{}{}", "[".repeat(100_000), "]".repeat(100_000));
        for other in ["", "<html>", "[]", "{}", r#"{"error":"x"}"#, &deep] {
            assert_eq!(sse_event_of(other.as_bytes()), None);
        }
    }

    #[test]
    fn a_clients_own_text_is_repeated_only_in_part() {
        assert!(
            ApiError::unknown_model(&"x".repeat(1_000_000))
                .message
                .len()
                < 300
        );
        assert!(ApiError::unknown_path(&"x".repeat(1_000_000)).message.len() < 300);
    }

    #[test]
    fn what_may_be_tried_again_says_when() {
        let key = ServiceKey::new("ns", "chat");
        for error in [
            ApiError::not_synced(),
            ApiError::held_too_long(&key, 3),
            ApiError::hold_refused(&key, Refusal::TooManyRequests(9)),
            ApiError::shutting_down(),
        ] {
            assert!(error.into_response().headers().contains_key(RETRY_AFTER));
        }
    }
}
