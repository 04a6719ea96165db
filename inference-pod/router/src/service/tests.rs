use futures::FutureExt;
use futures::future::join_all;
use tokio::task::JoinHandle;

use super::*;

const CAPACITY: usize = 4;
const SOON: Duration = Duration::from_mins(1);

fn service() -> Arc<Service> {
    Service::new(
        ServiceKey::new("ns", "chat"),
        settings(),
        1000,
        &Arc::new(Metrics::default()),
    )
}

fn settings() -> Settings {
    Settings {
        hold_max_requests: 50,
        pod_capacity: CAPACITY,
        ..Settings::default()
    }
}

fn endpoints(ports: &[u16]) -> Vec<Endpoint> {
    ports
        .iter()
        .map(|port| Endpoint {
            address: ([127, 0, 0, 1], *port).into(),
            pod_uid: String::new(),
            pod_name: format!("p{port}"),
        })
        .collect()
}

async fn until(mut true_now: impl FnMut() -> bool) {
    for _ in 0..10_000 {
        if true_now() {
            return;
        }
        tokio::task::yield_now().await;
    }
    panic!("it does not become true");
}

async fn admit_and_place(service: &Arc<Service>) -> Placed {
    let wave = service
        .admit(1, Instant::now() + SOON)
        .await
        .expect("admitted");
    let placed = service.place(&[], 0).expect("a pod is ready");
    drop(wave);
    placed
}

fn loads(service: &Service) -> Vec<usize> {
    service
        .state
        .load()
        .pods
        .iter()
        .map(PodView::in_flight)
        .collect()
}

#[tokio::test]
async fn a_ready_pod_is_given_the_request_at_once_and_counts_it_until_it_ends() {
    let service = service();
    service.update(settings(), endpoints(&[1]));
    let placed = admit_and_place(&service).now_or_never().expect("at once");
    assert_eq!(
        (loads(&service), service.metrics.in_flight.get()),
        (vec![1], 1)
    );
    drop(placed);
    assert_eq!(
        (loads(&service), service.metrics.in_flight.get()),
        (vec![0], 0)
    );
}

#[tokio::test]
async fn held_requests_go_in_waves_as_large_as_the_pods_capacity() {
    let service = service();
    let tasks: Vec<_> = (0..10)
        .map(|_| {
            let service = Arc::clone(&service);
            tokio::spawn(async move { admit_and_place(&service).await })
        })
        .collect();
    until(|| service.metrics.held.get() == 10).await;
    service.update(settings(), endpoints(&[1]));
    until(|| service.metrics.in_flight.get() == CAPACITY as i64).await;
    assert_eq!(
        service.metrics.held.get(),
        10 - CAPACITY as i64,
        "the first pod is not given everything"
    );
    service.update(settings(), endpoints(&[1, 2, 3]));
    let placed: Vec<_> = join_all(tasks)
        .await
        .into_iter()
        .map(|task| task.expect("no panic"))
        .collect();
    let loads = loads(&service);
    assert_eq!(loads.iter().sum::<usize>(), 10);
    assert!(
        loads.iter().all(|load| *load >= 1),
        "spread over the pods: {loads:?}"
    );
    drop(placed);
    assert_eq!(
        (service.metrics.held.get(), service.metrics.in_flight.get()),
        (0, 0)
    );
    assert_eq!(service.let_go.load(Ordering::Relaxed), 0);
}

#[tokio::test]
async fn room_made_by_a_finished_request_goes_to_one_that_waits() {
    let service = service();
    let waiting: Vec<_> = (0..=CAPACITY)
        .map(|_| {
            let service = Arc::clone(&service);
            tokio::spawn(async move { admit_and_place(&service).await })
        })
        .collect();
    until(|| service.metrics.held.get() > CAPACITY as i64).await;
    service.update(settings(), endpoints(&[1]));
    until(|| service.metrics.in_flight.get() == CAPACITY as i64).await;
    until(|| service.let_go.load(Ordering::Relaxed) == 0).await;
    let (finished, mut others): (Vec<_>, Vec<_>) =
        waiting.into_iter().partition(JoinHandle::is_finished);
    assert_eq!((finished.len(), others.len()), (CAPACITY, 1));
    let mut placed = join_all(finished).await;
    drop(placed.pop());
    until(|| others[0].is_finished()).await;
    let last = others.remove(0).await.expect("no panic");
    assert_eq!(service.metrics.held.get(), 0);
    drop((placed, last));
    assert_eq!(service.metrics.in_flight.get(), 0);
}

#[tokio::test]
async fn a_client_that_leaves_while_held_gives_its_place_back() {
    let service = service();
    let held = tokio::spawn({
        let service = Arc::clone(&service);
        async move { admit_and_place(&service).await }
    });
    until(|| service.metrics.held.get() > 0).await;
    held.abort();
    assert!(held.await.expect_err("aborted").is_cancelled());
    assert_eq!(
        (
            service.metrics.held.get(),
            service.queued.load(Ordering::Relaxed)
        ),
        (0, 0)
    );
    service.update(settings(), endpoints(&[1]));
    assert_eq!(service.let_go.load(Ordering::Relaxed), 0);
}

#[tokio::test(start_paused = true)]
async fn a_held_request_is_refused_at_its_deadline_unless_pods_are_ready() {
    let service = service();
    let deadline = Instant::now() + SOON;
    assert_eq!(
        service.admit(1, deadline).await.err(),
        Some(HoldEnd::Deadline)
    );
    let busy = Settings {
        pod_capacity: 1,
        ..settings()
    };
    let (first, second, ()) = tokio::join!(
        service.admit(1, Instant::now() + SOON),
        service.admit(1, Instant::now() + SOON),
        async { service.update(busy, endpoints(&[1])) }
    );
    let _keeps_the_room = first.expect("let go");
    assert!(
        matches!(second, Ok(None)),
        "goes at its deadline: the pod queues it"
    );
}

#[tokio::test]
async fn holding_is_bounded_in_requests_and_bytes() {
    let service = service();
    let _kept = service.enter_hold(1000).expect("fits");
    let deadline = Instant::now() + SOON;
    assert_eq!(
        service.admit(1, deadline).await.err(),
        Some(HoldEnd::Refused(Refusal::TooManyBytes(1000)))
    );
    let _others: Vec<_> = (1..50)
        .map(|_| service.enter_hold(0).expect("fits"))
        .collect();
    assert_eq!(
        service.admit(0, deadline).await.err(),
        Some(HoldEnd::Refused(Refusal::TooManyRequests(50)))
    );
}

#[tokio::test]
async fn whoever_waits_learns_that_the_service_is_gone() {
    let service = service();
    let (held, ()) = tokio::join!(service.admit(1, Instant::now() + SOON), async {
        service.close(Closed::Deleted);
    });
    assert_eq!(held.err(), Some(HoldEnd::Closed(Closed::Deleted)));
    assert_eq!(
        service.admit(1, Instant::now() + SOON).await.err(),
        Some(HoldEnd::Closed(Closed::Deleted))
    );
}

#[tokio::test]
async fn waiting_for_another_pod_ends_when_one_comes() {
    let service = service();
    service.update(settings(), endpoints(&[1]));
    let tried = [service.place(&[], 0).expect("ready").pod.clone()];
    assert!(service.place(&tried, 0).is_none());
    let ((), waited) = tokio::join!(
        async {
            tokio::task::yield_now().await;
            assert_eq!(service.metrics.held.get(), 1);
            service.update(settings(), endpoints(&[1, 2]));
        },
        service.wait_for_other_pod(1, Duration::from_hours(1), &tried)
    );
    assert_eq!(waited, Ok(()));
    assert_eq!(&*service.place(&tried, 0).expect("ready").pod.label, "p2");
}

#[tokio::test]
async fn a_pod_that_stays_keeps_its_load_and_an_address_reused_by_another_pod_does_not() {
    let service = service();
    service.update(settings(), endpoints(&[1]));
    let _placed = admit_and_place(&service).await;
    service.update(settings(), endpoints(&[1, 2]));
    assert_eq!(loads(&service), [1, 0]);
    let mut reused = endpoints(&[1]);
    reused[0].pod_uid = "another".into();
    service.update(settings(), reused);
    assert_eq!(loads(&service), [0]);
}

fn canary(percents: &[(&str, u32)]) -> Settings {
    let share = |(revision, percent): &(&str, u32)| Share {
        revision: (*revision).into(),
        pod_prefix: format!("chat-{revision}-"),
        percent: *percent,
    };
    Settings {
        traffic: Traffic::new(percents.iter().map(share).collect()).expect("valid"),
        ..settings()
    }
}

fn pods_of(revision: &str, ports: &[u16]) -> Vec<Endpoint> {
    let mut endpoints = endpoints(ports);
    for endpoint in &mut endpoints {
        endpoint.pod_name = format!("chat-{revision}-{}", endpoint.address.port());
    }
    endpoints
}

/// How many of all points go to pods of the new revision, none of them being kept busy.
fn points_to_new(service: &Arc<Service>, tried: &[Arc<Pod>]) -> usize {
    (0..traffic::POINTS)
        .filter(|point| {
            let placed = service.place(tried, *point).expect("a pod is ready");
            placed.pod.label.contains("-new-")
        })
        .count()
}

#[tokio::test]
async fn a_canary_gets_exactly_its_percent_however_many_pods_each_side_has() {
    let service = service();
    for (old, new, percent) in [
        (1u16, 1u16, 20),
        (9, 1, 50),
        (1, 9, 5),
        (3, 2, 0),
        (3, 2, 100),
    ] {
        let ports: Vec<u16> = (1..=old + new).collect();
        let (old, new) = ports.split_at(old.into());
        let ready = [pods_of("old", old), pods_of("new", new)].concat();
        service.update(canary(&[("old", 100 - percent), ("new", percent)]), ready);
        assert_eq!(points_to_new(&service, &[]), percent as usize);
    }
}

#[tokio::test]
async fn a_revision_without_pods_that_can_be_tried_leaves_its_share_to_the_others() {
    let service = service();
    let settings = canary(&[("old", 80), ("new", 20)]);
    service.update(settings.clone(), pods_of("old", &[1, 2]));
    assert_eq!(points_to_new(&service, &[]), 0);
    service.update(settings.clone(), pods_of("new", &[3]));
    assert_eq!(points_to_new(&service, &[]), 100);
    let both = [pods_of("old", &[1, 2]), pods_of("new", &[3])].concat();
    service.update(settings, both);
    let pod = |point| service.place(&[], point).expect("ready").pod.clone();
    let new = pod(99);
    assert_eq!(points_to_new(&service, std::slice::from_ref(&new)), 0);
    let old: Vec<_> = service.state.load().pods[..2].to_vec();
    assert_eq!(
        points_to_new(&service, &old[..1]),
        20,
        "one old pod is left"
    );
    assert_eq!(points_to_new(&service, &old), 100);
    assert!(service.place(&[old, vec![new]].concat(), 0).is_none());
}

#[tokio::test]
async fn a_rest_that_no_share_speaks_of_goes_to_the_pods_of_no_share() {
    let service = service();
    let ready = [pods_of("old", &[1, 2]), pods_of("new", &[3])].concat();
    service.update(canary(&[("new", 30)]), ready);
    assert_eq!(points_to_new(&service, &[]), 30);
}

#[tokio::test]
async fn a_revisions_series_last_over_the_steps_and_end_with_the_canary() {
    let metrics = Arc::new(Metrics::default());
    let service = Service::new(ServiceKey::new("ns", "chat"), settings(), 1000, &metrics);
    let ready = [pods_of("old", &[1]), pods_of("new", &[2])].concat();
    let series = |text: &str| metrics.encode().expect("encodes").contains(text);
    service.update(canary(&[("old", 90), ("new", 10)]), ready.clone());
    let mut in_flight = service.place(&[], 99).expect("ready");
    in_flight.attempt.failed();
    let one_error = r#"revision_requests_total{namespace="ns",service="chat",revision="new",outcome="error"} 1"#;
    assert!(series(one_error));
    service.update(canary(&[("old", 50), ("new", 50)]), ready.clone());
    assert!(series(one_error), "the next step counts on");
    let mut late = service.place(&[], 99).expect("ready");
    service.update(settings(), ready);
    late.attempt.failed();
    assert!(!series("revision=\"old\"") && !series("revision=\"new\""));
}
