//! Which headers go on to the other side, and which ones the gateway adds.

use std::net::IpAddr;

use http::header::{
    CONNECTION, CONTENT_ENCODING, CONTENT_LENGTH, CONTENT_TYPE, EXPECT, HOST, HeaderName,
    PROXY_AUTHENTICATE, PROXY_AUTHORIZATION, TE, TRAILER, TRANSFER_ENCODING, UPGRADE,
};
use http::{HeaderMap, HeaderValue};

/// `X-Request-Id`: names one request in the logs of client, gateway and pod.
pub const REQUEST_ID: HeaderName = HeaderName::from_static("x-request-id");
/// `X-Pagoda-Pod`: the pod that answered.
pub const POD: HeaderName = HeaderName::from_static("x-pagoda-pod");
const FORWARDED_FOR: HeaderName = HeaderName::from_static("x-forwarded-for");
const FORWARDED_HOST: HeaderName = HeaderName::from_static("x-forwarded-host");
const ACCEL_BUFFERING: HeaderName = HeaderName::from_static("x-accel-buffering");

/// Headers that concern one connection only (RFC 9110, section 7.6.1).
const HOP_BY_HOP: [HeaderName; 9] = [
    CONNECTION,
    HeaderName::from_static("keep-alive"),
    HeaderName::from_static("proxy-connection"),
    PROXY_AUTHENTICATE,
    PROXY_AUTHORIZATION,
    TE,
    TRAILER,
    TRANSFER_ENCODING,
    UPGRADE,
];

const MAX_REQUEST_ID_BYTES: usize = 128;

/// Removes what concerns the connection it came over, and whatever `Connection` names besides.
pub fn strip_hop_by_hop(headers: &mut HeaderMap) {
    if headers.contains_key(CONNECTION) {
        let named: Vec<HeaderName> = headers
            .get_all(CONNECTION)
            .iter()
            .filter_map(|value| value.to_str().ok())
            .flat_map(|value| value.split(','))
            .filter_map(|name| HeaderName::try_from(name.trim()).ok())
            .collect();
        for name in named {
            headers.remove(name);
        }
    }
    for name in &HOP_BY_HOP {
        headers.remove(name);
    }
}

/// Makes a client's headers those of the request to a pod: its body's length is known anew, its host is
/// the pod, and the client's address is added to the list that came.
pub fn to_upstream(headers: &mut HeaderMap, peer: IpAddr, request_id: &HeaderValue) {
    strip_hop_by_hop(headers);
    headers.remove(CONTENT_LENGTH);
    headers.remove(EXPECT);
    if let Some(host) = headers.remove(HOST) {
        headers.insert(FORWARDED_HOST, host);
    }
    headers.append(FORWARDED_FOR, peer_value(peer));
    headers.insert(REQUEST_ID, request_id.clone());
}

/// Makes a pod's headers those of the response to the client. An event stream tells proxies in front
/// not to buffer it, and loses its length: an error event may be added.
pub fn to_client(headers: &mut HeaderMap, request_id: &HeaderValue, event_stream: bool) {
    strip_hop_by_hop(headers);
    headers.insert(REQUEST_ID, request_id.clone());
    if event_stream {
        headers.remove(CONTENT_LENGTH);
        headers.insert(ACCEL_BUFFERING, HeaderValue::from_static("no"));
    }
}

/// The client's request id if it is short and printable, else a new one made of `random`.
pub fn request_id(headers: &HeaderMap, random: u128) -> HeaderValue {
    let usable = |id: &&HeaderValue| {
        (1..=MAX_REQUEST_ID_BYTES).contains(&id.len())
            && id.as_bytes().iter().all(u8::is_ascii_graphic)
    };
    headers
        .get(REQUEST_ID)
        .filter(usable)
        .cloned()
        .unwrap_or_else(|| {
            HeaderValue::try_from(format!("{random:032x}"))
                .unwrap_or(HeaderValue::from_static("unknown"))
        })
}

/// Whether they announce server-sent events that can be read as they are.
pub fn is_event_stream(headers: &HeaderMap) -> bool {
    let event_stream = headers
        .get(CONTENT_TYPE)
        .is_some_and(|value| value.as_bytes().starts_with(b"text/event-stream"));
    event_stream && !headers.contains_key(CONTENT_ENCODING)
}

fn peer_value(peer: IpAddr) -> HeaderValue {
    HeaderValue::try_from(peer.to_canonical().to_string())
        .unwrap_or(HeaderValue::from_static("unknown"))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(pairs: &[(&'static str, &'static str)]) -> HeaderMap {
        let mut headers = HeaderMap::new();
        for (name, value) in pairs {
            headers.append(*name, HeaderValue::from_static(value));
        }
        headers
    }

    #[test]
    fn what_concerns_one_connection_is_not_passed_on() {
        let mut headers = map(&[
            ("connection", "close, x-secret-hop"),
            ("x-secret-hop", "1"),
            ("transfer-encoding", "chunked"),
            ("te", "trailers"),
            ("upgrade", "h2c"),
            ("keep-alive", "timeout=5"),
            ("x-kept", "yes"),
        ]);
        strip_hop_by_hop(&mut headers);
        assert_eq!(headers, map(&[("x-kept", "yes")]));
    }

    #[test]
    fn a_pod_sees_who_asked_and_a_length_of_the_gateways_own() {
        let mut headers = map(&[
            ("host", "models.example"),
            ("content-length", "9"),
            ("expect", "100-continue"),
            ("x-forwarded-for", "10.0.0.9"),
            ("x-request-id", "old"),
        ]);
        to_upstream(
            &mut headers,
            IpAddr::from([127, 0, 0, 1]),
            &HeaderValue::from_static("new"),
        );
        let expected = map(&[
            ("x-forwarded-for", "10.0.0.9"),
            ("x-forwarded-for", "127.0.0.1"),
            ("x-request-id", "new"),
            ("x-forwarded-host", "models.example"),
        ]);
        assert_eq!(headers, expected);
    }

    #[test]
    fn a_request_id_is_taken_over_only_when_harmless() {
        assert_eq!(request_id(&map(&[("x-request-id", "abc-1")]), 7), "abc-1");
        let made = "00000000000000000000000000000007";
        for id in ["", "two words", "tab\tbed"] {
            assert_eq!(request_id(&map(&[("x-request-id", id)]), 7), made);
        }
        let mut long = HeaderMap::new();
        long.insert(
            REQUEST_ID,
            HeaderValue::try_from("x".repeat(129)).expect("valid"),
        );
        assert_eq!(request_id(&long, 7), made);
    }
}
