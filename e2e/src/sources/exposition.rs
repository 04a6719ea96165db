//! What a gateway tells the operator of the load of its services.

use std::fmt::Write as _;
use std::sync::Arc;
use std::time::Instant;

use super::Key;
use super::fault::Counted;
use super::load::{Counts, ServiceLoad};

/// The families that a gateway declares for the operator, as it writes them.
pub(super) fn of_gateway(
    services: &[(Key, Arc<ServiceLoad>)],
    now: Instant,
    counted: Counted,
) -> Vec<u8> {
    let told: Vec<(&Key, Counts, usize)> = services
        .iter()
        .map(|(key, load)| {
            let (counts, pods) = load.gateway(now);
            (key, counts, pods)
        })
        .collect();
    let mut text = String::with_capacity(1024 + told.len() * 400);
    family(
        &mut text,
        "in_flight_requests",
        "gauge",
        &told,
        |counts, _| match counted {
            Counted::Plain => counts.running.to_string(),
            Counted::As(words) => words.to_owned(),
        },
    );
    family(
        &mut text,
        "held_requests",
        "gauge",
        &told,
        |counts, _| match counted {
            Counted::Plain => counts.waiting.to_string(),
            Counted::As(words) => words.to_owned(),
        },
    );
    family(&mut text, "route_pods", "gauge", &told, |_, pods| {
        pods.to_string()
    });
    requests(&mut text, &told);
    text.push_str("# EOF\n");
    text.into_bytes()
}

fn family(
    text: &mut String,
    name: &str,
    kind: &str,
    told: &[(&Key, Counts, usize)],
    value: impl Fn(&Counts, usize) -> String,
) {
    // Writing to a String cannot fail.
    let _ = writeln!(text, "# TYPE pagoda_gateway_{name} {kind}");
    for ((namespace, service), counts, pods) in told {
        let value = value(counts, *pods);
        let _ = writeln!(
            text,
            "pagoda_gateway_{name}{{namespace=\"{namespace}\",service=\"{service}\"}} {value}"
        );
    }
}

fn requests(text: &mut String, told: &[(&Key, Counts, usize)]) {
    let _ = writeln!(text, "# TYPE pagoda_gateway_requests counter");
    for ((namespace, service), counts, _) in told {
        let _ = writeln!(
            text,
            "pagoda_gateway_requests_total{{namespace=\"{namespace}\",service=\"{service}\",code=\"200\"}} {:.0}",
            counts.finished.floor()
        );
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_service_has_a_line_in_each_family() {
        let load = Arc::new(ServiceLoad::default());
        load.set_in_flight(3);
        let services = [(("a".to_owned(), "x".to_owned()), load)];
        let text = of_gateway(&services, Instant::now(), Counted::Plain);
        let text = String::from_utf8(text).unwrap();
        assert!(text.contains("pagoda_gateway_held_requests{namespace=\"a\",service=\"x\"} 3\n"));
        assert_eq!(text.matches("service=\"x\"").count(), 4, "{text}");
        let broken = of_gateway(&services, Instant::now(), Counted::As("NaN"));
        assert!(String::from_utf8(broken).unwrap().contains("} NaN\n"));
    }
}
