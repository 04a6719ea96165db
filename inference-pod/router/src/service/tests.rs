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
    let placed = service.place(&[]).expect("a pod is ready");
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
    let tried = [service.place(&[]).expect("ready").pod.clone()];
    assert!(service.place(&tried).is_none());
    let ((), waited) = tokio::join!(
        async {
            tokio::task::yield_now().await;
            assert_eq!(service.metrics.held.get(), 1);
            service.update(settings(), endpoints(&[1, 2]));
        },
        service.wait_for_other_pod(1, Duration::from_hours(1), &tried)
    );
    assert_eq!(waited, Ok(()));
    assert_eq!(&*service.place(&tried).expect("ready").pod.label, "p2");
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
