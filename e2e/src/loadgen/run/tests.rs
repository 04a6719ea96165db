use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

use super::super::arrivals::{Spacing, paced};
use super::*;

/// A server that answers request number n (from 0) with `answers[n % answers.len()]` and closes; it keeps the bodies.
async fn server(answers: Vec<String>) -> (Target, Arc<std::sync::Mutex<Vec<String>>>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let bodies = Arc::new(std::sync::Mutex::new(Vec::new()));
    let kept = Arc::clone(&bodies);
    tokio::spawn(async move {
        for answer in answers.into_iter().cycle() {
            let (stream, _) = listener.accept().await.expect("accepted");
            tokio::spawn(answer_one(stream, answer, Arc::clone(&kept)));
        }
    });
    let target = Target::resolve(&format!("http://{address}"), false)
        .await
        .expect("loopback");
    (target, bodies)
}

async fn answer_one(
    mut stream: TcpStream,
    answer: String,
    kept: Arc<std::sync::Mutex<Vec<String>>>,
) {
    let mut seen = String::new();
    loop {
        if let Some((head, body)) = seen.split_once("\r\n\r\n") {
            let length = head
                .to_lowercase()
                .lines()
                .find_map(|line| line.strip_prefix("content-length: ")?.parse().ok())
                .unwrap_or(0);
            if body.len() >= length {
                kept.lock().expect("not poisoned").push(body.to_owned());
                break;
            }
        }
        let mut buffer = [0; 4096];
        match stream.read(&mut buffer).await {
            Ok(read) if read > 0 => seen.push_str(&String::from_utf8_lossy(&buffer[..read])),
            _ => return,
        }
    }
    if answer == "never" {
        std::future::pending::<()>().await;
    }
    let _ = stream.write_all(answer.as_bytes()).await;
}

fn stream_of(events: &[&str]) -> String {
    let body = events.iter().fold(String::new(), |body, event| {
        body + "data: " + event + "\n\n"
    });
    format!("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\nConnection: close\r\n\r\n{body}")
}

const TEXT: &str = r#"{"choices":[{"delta":{"content":"a"}}]}"#;

fn plan(target: Target, requests: u64) -> Plan {
    let arrivals = paced(
        1000.0,
        Duration::from_millis(requests),
        Spacing::Fixed,
        1,
        5,
        3,
    );
    Plan {
        target,
        model: "chat".into(),
        arrivals: Box::new(arrivals),
        max_in_flight: 100,
        timeout: Duration::from_secs(20),
        seed: 1,
    }
}

#[tokio::test]
async fn every_way_to_end_is_told_apart() {
    let usage = r#"{"choices":[],"usage":{"prompt_tokens":9,"completion_tokens":2}}"#;
    let answers = vec![
        stream_of(&[TEXT, TEXT, usage, "[DONE]"]),
        stream_of(&[TEXT]),
        stream_of(&[TEXT, r#"{"error":{"code":"pod_failed","message":"gone"}}"#]),
        "HTTP/1.1 503 Service Unavailable\r\nContent-Length: 0\r\nConnection: close\r\n\r\n".into(),
        String::new(),
        "never".into(),
    ];
    let (target, bodies) = server(answers).await;
    let mut plan = plan(target, 6);
    plan.timeout = Duration::from_secs(2);
    let report = run(plan, std::future::pending(), |_| {})
        .await
        .expect("ran");
    assert_eq!(
        (report.sent, report.whole, report.failed),
        (6, 1, 5),
        "{report:?}"
    );
    let failures = &report.failures;
    assert_eq!(
        (
            failures.cut,
            failures.error_event["pod_failed"],
            failures.status[&503],
            failures.timeout
        ),
        (1, 1, 1, 1)
    );
    assert_eq!(failures.connect.values().sum::<u64>(), 1);
    assert_eq!((report.prompt_tokens, report.output_tokens), (9, 4));
    let body: serde_json::Value =
        serde_json::from_str(&bodies.lock().expect("not poisoned")[0]).expect("JSON");
    assert_eq!(
        (
            body["model"].as_str(),
            body["max_tokens"].as_u64(),
            body["stream"].as_bool()
        ),
        (Some("chat"), Some(3), Some(true))
    );
    assert_eq!(
        body["messages"][0]["content"]
            .as_str()
            .expect("a prompt")
            .split(' ')
            .count(),
        5
    );
}

#[tokio::test]
async fn a_server_that_is_not_there_is_a_failure_to_connect() {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("bound");
    let address = listener.local_addr().expect("bound");
    drop(listener);
    let target = Target::resolve(&format!("http://{address}/v1"), false)
        .await
        .expect("loopback");
    let report = run(plan(target, 2), std::future::pending(), |_| {})
        .await
        .expect("ran");
    assert_eq!(report.failures.connect.values().sum::<u64>(), 2);
}

#[tokio::test]
async fn what_is_due_is_sent_though_nothing_has_been_answered_up_to_the_limit() {
    let (target, _) = server(vec!["never".into()]).await;
    let plan = Plan {
        max_in_flight: 5,
        timeout: Duration::from_millis(500),
        ..plan(target, 8)
    };
    let report = run(plan, std::future::pending(), |_| {})
        .await
        .expect("ran");
    assert_eq!(
        (report.sent, report.not_sent, report.failures.timeout),
        (5, 3, 5)
    );
}

#[tokio::test]
async fn stopping_sends_nothing_more_and_waits_for_what_is_open() {
    let (target, bodies) = server(vec![stream_of(&[TEXT, "[DONE]"])]).await;
    let arrivals = (0..2u64).map(|n| Arrival {
        due: Duration::from_secs(n * 3600),
        prompt_tokens: 1,
        max_tokens: 1,
        prefix: super::super::Prefix::default(),
    });
    let plan = Plan {
        arrivals: Box::new(arrivals),
        ..plan(target, 1)
    };
    let stop = async {
        while bodies.lock().expect("not poisoned").is_empty() {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    let report = run(plan, stop, |_| {}).await.expect("ran");
    assert_eq!((report.sent, report.whole), (1, 1));
}
