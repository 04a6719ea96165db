//! Everything that a Prometheus, or what stands between, can do wrong: no figure comes of it, the last one counts while it is
//! fresh, and the reason is said.

use axum::{
    body::Body,
    http::{StatusCode, header},
};
use futures::stream;

use super::*;

/// Asks a server with this script once, and returns what is known and what is said then.
async fn after(
    script: impl Fn(&scripted::Asked) -> Reply + Send + Sync + 'static,
) -> (Option<u64>, Trouble) {
    let prometheus = Scripted::start(script).await;
    let server = prometheus.server();
    let readings = readings(&server);
    ask_once(&readings, &server, "x").await;
    let (settings, now) = (settings(&["x"]), Instant::now());
    let found = readings.of(&service(), &settings, now)[0].map(|reading| reading.value_milli);
    let trouble = readings.trouble(&service(), &settings, now);
    (found, trouble.expect("something is wrong"))
}

fn raw(status: u16, body: &'static str) -> impl Fn(&scripted::Asked) -> Reply {
    move |_| {
        let status = StatusCode::from_u16(status).expect("a status");
        Reply::Raw(status, vec![], Body::from(body))
    }
}

#[tokio::test]
async fn what_is_not_one_figure_is_absent_and_said() {
    let data = |data: serde_json::Value| move |_: &scripted::Asked| Reply::Data(data.clone());
    let series = |values: &[&str]| {
        let all = values.iter().enumerate();
        let all =
            all.map(|(i, v)| json!({"metric": {"pod": i.to_string()}, "value": [present(), v]}));
        json!({"resultType": "vector", "result": all.collect::<Vec<_>>()})
    };
    let cases = [
        (series(&[]), "QueryFindsNothing", "finds no series"),
        (series(&["1", "2", "3"]), "QueryNotOneFigure", "3 series"),
        (series(&["NaN"]), "QueryNotOneFigure", "NaN"),
        (series(&["+Inf"]), "QueryNotOneFigure", "infinite"),
        (series(&["-3"]), "QueryNotOneFigure", "negative"),
        (
            json!({"resultType": "matrix", "result": []}),
            "QueryNotOneFigure",
            "a range",
        ),
    ];
    for (answer, reason, said) in cases {
        let (found, trouble) = after(data(answer.clone())).await;
        assert_eq!(found, None, "{answer}");
        assert_eq!(trouble.reason, reason, "{answer}");
        assert!(
            trouble.message.contains(said),
            "{answer}: {}",
            trouble.message
        );
    }
}

#[tokio::test]
async fn a_server_that_fails_is_said_to_fail_and_its_pages_are_not_repeated() {
    let cases = [
        (500, "<html>s3cr3t stack</html>", "it answers 500"),
        (
            503,
            r#"{"status":"error","errorType":"unavailable","error":"starting up"}"#,
            "503: starting up",
        ),
        (401, "", "it answers 401: the credentials"),
        (403, "", "it answers 403: the credentials"),
        (404, "404 page not found", "it answers 404"),
        (200, "{bad json", "not JSON"),
        (
            200,
            r#"{"status":"success","data":{"resultType":"vector","result":[{"metric":{},"value":"x"}]}}"#,
            "cannot be read",
        ),
    ];
    for (status, body, said) in cases {
        let (found, trouble) = after(raw(status, body)).await;
        assert_eq!(
            (found, trouble.reason),
            (None, "PrometheusUnreachable"),
            "{body}"
        );
        assert!(
            trouble.message.contains(said),
            "{body}: {}",
            trouble.message
        );
        assert!(!trouble.message.contains("s3cr3t"), "{}", trouble.message);
    }
}

#[tokio::test]
async fn a_query_that_does_not_parse_is_told_in_the_servers_words() {
    let error = r#"{"status":"error","errorType":"bad_data","error":"invalid parameter \"query\": 1:5: parse error: unclosed left parenthesis"}"#;
    let (found, trouble) = after(raw(400, error)).await;
    assert_eq!((found, trouble.reason), (None, "QueryRefused"));
    assert!(
        trouble
            .message
            .ends_with("1:5: parse error: unclosed left parenthesis"),
        "{}",
        trouble.message
    );
}

#[tokio::test]
async fn a_server_that_never_answers_costs_its_timeout_and_no_more() {
    let (found, trouble) = after(|_| Reply::Silence).await;
    assert_eq!(found, None);
    assert!(
        trouble.message.contains("within 1 s"),
        "{}",
        trouble.message
    );
}

#[tokio::test]
async fn nobody_at_the_address_is_said() {
    let server = scripted::server("http://127.0.0.1:1");
    let readings = readings(&server);
    ask_once(&readings, &server, "x").await;
    let trouble = readings.trouble(&service(), &settings(&["x"]), Instant::now());
    let message = trouble.expect("nobody answers").message;
    assert!(
        message.contains("cannot be reached: Connection refused"),
        "{message}"
    );
}

#[tokio::test]
async fn an_answer_without_an_end_is_not_read_to_it() {
    let endless = |_: &scripted::Asked| {
        let chunks = stream::repeat_with(|| Ok::<_, std::io::Error>(vec![b' '; 16 << 10]));
        Reply::Raw(StatusCode::OK, vec![], Body::from_stream(chunks))
    };
    let (found, trouble) = after(endless).await;
    assert_eq!(found, None);
    assert!(
        trouble.message.contains("larger than 256 KiB"),
        "{}",
        trouble.message
    );
    let announced = |_: &scripted::Asked| {
        let body = Body::from(vec![b' '; 1 << 20]);
        Reply::Raw(StatusCode::OK, vec![], body)
    };
    let (_, trouble) = after(announced).await;
    assert_eq!(trouble.reason, "QueryNotOneFigure");
}

#[tokio::test]
async fn a_redirect_is_not_followed_and_nobody_else_sees_the_credentials() {
    let thief = Scripted::start(|_| figure("1")).await;
    let address = format!("http://{}/api/v1/query", thief.address);
    let prometheus = Scripted::start(move |_| {
        let location = vec![(header::LOCATION, address.clone())];
        Reply::Raw(StatusCode::TEMPORARY_REDIRECT, location, Body::empty())
    })
    .await;
    let folder = Folder::new();
    let mut server = prometheus.server();
    server.credentials = Credentials::BearerToken(folder.write("token", "s3cr3t"));
    let problem = soon(ask(&Connections::to(server), "x")).await;
    assert_eq!(problem, Err(Problem::Redirect { status: 307 }));
    assert!(thief.asked().is_empty());
}

#[tokio::test]
async fn credentials_that_cannot_be_read_are_said_by_the_name_of_their_file() {
    let folder = Folder::new();
    for text in [None, Some(""), Some("two\nlines"), Some("\u{7}")] {
        let mut server = scripted::server("http://127.0.0.1:1");
        let path = folder.path().join("token");
        match text {
            Some(text) => drop(folder.write("token", text)),
            None => drop(std::fs::remove_file(&path)),
        }
        server.credentials = Credentials::BearerToken(path);
        let problem = soon(ask(&Connections::to(server), "x"))
            .await
            .expect_err("no token");
        assert!(
            matches!(&problem, Problem::Files(why) if why.contains("token")),
            "{problem}"
        );
    }
}

#[tokio::test]
async fn a_failure_leaves_the_last_figure_until_it_is_too_old_and_an_answer_without_a_figure_does_not()
 {
    let query = "vector(1)";
    let prometheus = Scripted::start(|_| figure("5")).await;
    let (server, settings) = (prometheus.server(), settings(&[query]));
    let readings = readings(&server);
    ask_once(&readings, &server, query).await;
    let now = Instant::now();
    readings.note(&question(query), Err(Problem::Timeout(10)), now);
    assert!(readings.of(&service(), &settings, now)[0].is_some());
    assert_eq!(
        readings.trouble(&service(), &settings, now),
        None,
        "no trouble yet"
    );
    let later = now + Duration::from_secs(61);
    assert_eq!(readings.of(&service(), &settings, later), [None]);
    let trouble = readings
        .trouble(&service(), &settings, later)
        .expect("too old");
    assert_eq!(
        trouble.reason, "PrometheusUnreachable",
        "the cause is said, not that it is old"
    );
    readings.note(&question(query), Err(Problem::Empty { skew: None }), now);
    assert_eq!(readings.of(&service(), &settings, now), [None]);
}

#[tokio::test]
async fn an_answer_out_of_a_cache_grows_old() {
    let moment = present();
    let prometheus = Scripted::start(move |_| Reply::Figure {
        value: "5".into(),
        at: moment,
    })
    .await;
    let server = prometheus.server();
    let (readings, settings) = (readings(&server), settings(&["vector(1)"]));
    ask_once(&readings, &server, "vector(1)").await;
    let outcome = soon(ask(&Connections::to(server), "vector(1)")).await;
    let much_later = Instant::now() + Duration::from_secs(61);
    readings.note(&question("vector(1)"), outcome, much_later);
    assert_eq!(readings.of(&service(), &settings, much_later), [None]);
}

/// The server's clock is ten minutes off, in either direction: its figures are as fresh as ever.
#[tokio::test]
async fn a_clock_that_is_ten_minutes_off_makes_no_figure_old_and_no_old_one_fresh() {
    for off in [-600.0, 600.0] {
        for (age, fresh) in [(5.0, true), (100.0, false)] {
            let prometheus = Scripted::start(move |asked| {
                let at = asked.at.unwrap_or_else(|| present() + off);
                let value = if asked.at.is_some() { at - age } else { 5.0 };
                Reply::Figure {
                    value: value.to_string(),
                    at,
                }
            })
            .await;
            let server = prometheus.server();
            let (readings, settings) = (readings(&server), settings(&["x"]));
            ask_once(&readings, &server, "x").await;
            let now = Instant::now();
            assert_eq!(
                readings.of(&service(), &settings, now)[0].is_some(),
                fresh,
                "{off} {age}"
            );
            if let Some(trouble) = readings.trouble(&service(), &settings, now) {
                assert!(
                    trouble.message.contains("its clock is 10 min"),
                    "{}",
                    trouble.message
                );
            }
        }
    }
}

#[tokio::test]
async fn a_clock_that_is_off_is_said_where_a_query_finds_nothing() {
    let (found, trouble) = after(|_| {
        let date = vec![(header::DATE, "Mon, 01 Jan 2001 00:00:00 GMT".to_owned())];
        let body = json!({"status": "success", "data": {"resultType": "vector", "result": []}});
        Reply::Raw(StatusCode::OK, date, Body::from(body.to_string()))
    })
    .await;
    assert_eq!(found, None);
    assert!(
        trouble.message.contains("min behind the operator's"),
        "{}",
        trouble.message
    );
}
