//! Files behind an `https://` address.

use std::sync::{Mutex, PoisonError};

use reqwest::header::{ACCEPT_RANGES, HeaderMap, HeaderValue, IF_RANGE, RANGE};
use reqwest::{Client, Response, StatusCode, Url};

use super::transport::{self, content_range, unsatisfied_total, validator};
use super::{Answer, Body, Failure, Opened, Terms, Wanted, fatal, transient};
use crate::credentials::Credentials;
use crate::error::FetchError;
use crate::fetch::FetchRequest;

/// One address.
pub(crate) struct HttpOrigin {
    client: Client,
    url: Url,
    /// Sent to the address itself, never to where it redirects.
    authorization: Mutex<Option<HeaderValue>>,
    /// Where redirects led: asked directly from then on, as long as it answers.
    landed: Mutex<Option<Url>>,
}

impl HttpOrigin {
    /// An address, with a bearer token if there is one under one of `token_keys`.
    pub(crate) fn new(
        request: &FetchRequest,
        url: Url,
        credentials: &Credentials,
        token_keys: &[&str],
    ) -> Result<Self, String> {
        let client = transport::client(request, transport::Redirects::WithinBounds)?;
        let token = credentials.first(token_keys)?;
        let header = token
            .map(|token| transport::authorization("Bearer", &token))
            .transpose()?;
        Ok(Self::with_client(client, url, header))
    }

    /// An address and what to send in `Authorization`.
    pub(crate) fn with_client(client: Client, url: Url, header: Option<HeaderValue>) -> Self {
        Self {
            client,
            url,
            authorization: Mutex::new(header),
            landed: Mutex::new(None),
        }
    }

    /// Sends something else in `Authorization` from now on.
    pub(crate) fn authorize(&self, header: Option<HeaderValue>) {
        *lock(&self.authorization) = header;
    }

    pub(crate) async fn open(&self, wanted: Wanted<'_>) -> Result<Opened, Failure> {
        let landed = lock(&self.landed).clone();
        let response = self.ask(landed.as_ref(), wanted).await?;
        let is_refused = response.status().is_client_error()
            && response.status() != StatusCode::RANGE_NOT_SATISFIABLE
            && response.status() != StatusCode::TOO_MANY_REQUESTS;
        if landed.is_some() && is_refused {
            // Signed addresses expire. The next attempt asks at the source again.
            *lock(&self.landed) = None;
            return Err(transient(format!(
                "where the source redirects to answers {} now, asking the source again",
                response.status()
            )));
        }
        if response.status().is_success() && *response.url() != self.url {
            *lock(&self.landed) = Some(response.url().clone());
        }
        judged(response, wanted).await
    }

    async fn ask(&self, landed: Option<&Url>, wanted: Wanted<'_>) -> Result<Response, Failure> {
        let url = landed.unwrap_or(&self.url);
        let mut builder = self.client.get(url.clone());
        let header = lock(&self.authorization).clone();
        if let Some(header) = header.filter(|_| url.origin() == self.url.origin()) {
            builder = builder.header(reqwest::header::AUTHORIZATION, header);
        }
        if wanted.is_range() {
            builder = builder.header(RANGE, wanted.range_header());
            if let Some(validator) = wanted.validator {
                builder = builder.header(IF_RANGE, validator.header_value());
            }
        }
        let answer = builder.send().await;
        answer.map_err(|error| transport::connection_failure(&error))
    }
}

async fn judged(response: Response, wanted: Wanted<'_>) -> Result<Opened, Failure> {
    let headers = response.headers();
    match response.status() {
        StatusCode::OK => Ok(Opened::Bytes(Answer {
            terms: Terms {
                start: 0,
                total: response.content_length(),
                validator: validator(headers),
                is_ranged: false,
                refuses_ranges: refuses_ranges(headers),
            },
            body: Body::Http(response),
        })),
        StatusCode::PARTIAL_CONTENT => match content_range(headers) {
            Some((start, total)) => Ok(Opened::Bytes(Answer {
                terms: Terms {
                    start,
                    total,
                    validator: validator(headers),
                    is_ranged: true,
                    refuses_ranges: false,
                },
                body: Body::Http(response),
            })),
            None => Err(fatal(
                "the server answers a range without saying which; it cannot be downloaded from",
            )),
        },
        StatusCode::RANGE_NOT_SATISFIABLE if wanted.is_range() => Ok(Opened::Ended {
            total: unsatisfied_total(headers),
        }),
        StatusCode::PRECONDITION_FAILED => Err(Failure::Stale(
            "the file changed on the server, starting anew".into(),
        )),
        _ => Err(transport::refusal(response).await),
    }
}

fn refuses_ranges(headers: &HeaderMap) -> bool {
    headers
        .get(ACCEPT_RANGES)
        .is_some_and(|value| value.as_bytes().eq_ignore_ascii_case(b"none"))
}

/// A value behind this lock is always whole.
fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Whether a failure is a refusal of access.
pub(crate) fn is_unauthorized(failure: &Failure) -> bool {
    matches!(failure, Failure::Fatal(FetchError::Unauthorized { .. }))
}
