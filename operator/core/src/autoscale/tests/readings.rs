use super::*;

#[test]
fn reads_what_gateways_and_pods_write() {
    let text = "# TYPE pagoda_gateway_in_flight_requests gauge\n\
        pagoda_gateway_in_flight_requests{namespace=\"a\",service=\"x\"} 3\n\
        pagoda_gateway_held_requests{namespace=\"a\",service=\"y\"} 2\n\
        pagoda_gateway_requests_total{namespace=\"a\",service=\"x\",code=\"200\"} 7\n\
        pagoda_gateway_requests_total{namespace=\"a\",service=\"x\",code=\"503\"} 1\n";
    let readings = GatewayReading::parse_all(text).expect("a gateway's");
    assert_eq!(
        readings[&("a", "x")],
        GatewayReading {
            held: 0,
            in_flight: 3,
            finished: 8,
            ..GatewayReading::default()
        }
    );
    assert_eq!(readings[&("a", "y")].held, 2);
    assert!(
        GatewayReading::parse_all("# EOF\n").is_err(),
        "not a gateway's"
    );
}

#[test]
fn a_gateway_that_knows_a_service_without_a_ready_pod_says_zero_and_one_that_does_not_says_nothing()
{
    let text = "# TYPE pagoda_gateway_in_flight_requests gauge\n\
        pagoda_gateway_route_pods{namespace=\"a\",service=\"x\"} 0\n\
        pagoda_gateway_held_requests{namespace=\"a\",service=\"y\"} 2\n";
    let readings = GatewayReading::parse_all(text).expect("a gateway's");
    assert_eq!(readings[&("a", "x")].route_pods, Some(0));
    assert_eq!(readings[&("a", "y")].route_pods, None);
}

#[test]
fn a_server_that_counts_nothing_finished_tells_no_arrivals() {
    let settings = settings(1, 3, 1000);
    let arrivals = |finished: Option<u64>| {
        let mut history = History::default();
        for second in 0..10 {
            let reading = PodReading {
                running: 2,
                finished: finished.map(|each| each * second),
                ..PodReading::default()
            };
            let look = look(1, vec![gateway(0, 0, 0)], vec![pod(0, true, Some(reading))]);
            history = decide(&settings, &look, history, at(second * 1000)).1;
        }
        history.measured(&settings).get(Metric::RequestsPerSecond)
    };
    assert_eq!(arrivals(None), Some(0));
    assert_eq!(arrivals(Some(3)), Some(3000));
}
