mod faults;
mod real;
mod scripted;

use super::*;
use crate::key::Key;
use config::{Credentials, Server, Servers};
use pagoda_operator_core::validate::{PrometheusSettings, QuerySetting, QueryValue};
use scripted::{Authority, Folder, Reply, Scripted, soon};
use serde_json::json;

/// The operator's present, as a server with a right clock has it.
fn present() -> f64 {
    let since = std::time::SystemTime::now().duration_since(std::time::UNIX_EPOCH);
    since.expect("a clock").as_secs_f64()
}

fn figure(value: &str) -> Reply {
    Reply::Figure {
        value: value.to_owned(),
        at: present(),
    }
}

/// Answers queries for the time of samples, which are this old, and others with the figure.
fn aged(value: &'static str, seconds: f64) -> impl Fn(&scripted::Asked) -> Reply {
    move |asked| {
        if asked.query.starts_with("min(timestamp(") {
            let at = asked.at.expect("the moment of the figure");
            figure(&(at - seconds).to_string())
        } else {
            figure(value)
        }
    }
}

fn settings(queries: &[&str]) -> PrometheusSettings {
    let named = queries
        .iter()
        .enumerate()
        .map(|(index, query)| QuerySetting {
            name: format!("q{index}").into(),
            query: (*query).to_owned(),
            value: QueryValue::Each(1000),
        });
    PrometheusSettings {
        server: "default".into(),
        interval_seconds: 5,
        max_age_seconds: 60,
        queries: named.collect(),
    }
}

fn question(query: &str) -> Question {
    Question {
        server: "default".into(),
        query: query.into(),
    }
}

/// Asks once, and keeps what comes.
async fn ask_once(readings: &Readings, server: &Server, query: &str) {
    let asked = Instant::now();
    let outcome = soon(ask(&Connections::to(server.clone()), query)).await;
    readings.note(&question(query), outcome, asked);
}

fn readings(server: &Server) -> Readings {
    Readings::of_servers(Servers::from([("default".into(), server.clone())]))
}

fn service() -> Key {
    Key::new("team", "chat")
}

#[tokio::test]
async fn a_figure_comes_with_the_age_of_the_oldest_sample_behind_it() {
    let prometheus = Scripted::start(aged("12.5", 40.0)).await;
    let (server, query) = (prometheus.server(), "sum(x)");
    let readings = readings(&server);
    ask_once(&readings, &server, query).await;
    let mut settings = settings(&[query]);
    let now = Instant::now();
    let found = readings.of(&service(), &settings, now);
    let reading = found[0].expect("it is fresh");
    assert_eq!(reading.value_milli, 12_500);
    assert!(
        (40_000..50_000).contains(&reading.age_millis),
        "{reading:?}"
    );
    assert_eq!(readings.trouble(&service(), &settings, now), None);
    // It grows old in memory as it does in the server.
    let later = now + Duration::from_secs(25);
    assert_eq!(readings.of(&service(), &settings, later), [None]);
    settings.max_age_seconds = 30;
    assert_eq!(readings.of(&service(), &settings, now), [None]);
    let trouble = readings
        .trouble(&service(), &settings, now)
        .expect("too old");
    assert_eq!(trouble.reason, "QueryStale");
    assert!(
        trouble.message.contains("query q0 of Prometheus default"),
        "{trouble:?}"
    );
}

#[tokio::test]
async fn a_query_that_reads_no_series_is_as_old_as_its_answer() {
    let prometheus = Scripted::start(aged("3", 1000.0)).await;
    let server = prometheus.server();
    let readings = readings(&server);
    ask_once(&readings, &server, "vector(3)").await;
    assert_eq!(prometheus.asked().len(), 1, "no age is asked for");
    let found = readings.of(&service(), &settings(&["vector(3)"]), Instant::now());
    assert_eq!(found[0].map(|reading| reading.value_milli), Some(3000));
}

#[tokio::test]
async fn readings_stand_in_the_order_of_the_queries_and_what_is_missing_is_said_by_name() {
    let prometheus = Scripted::start(|asked| match &*asked.query {
        "bad" => Reply::Data(json!({"resultType": "matrix", "result": []})),
        _ => figure("1"),
    })
    .await;
    let server = prometheus.server();
    let readings = readings(&server);
    for query in ["bad", "vector(1)"] {
        ask_once(&readings, &server, query).await;
    }
    let settings = settings(&["vector(1)", "bad", "vector(2)"]);
    let found = readings.of(&service(), &settings, Instant::now());
    assert!(found[0].is_some() && found[1].is_none() && found[2].is_none());
    let trouble = readings.trouble(&service(), &settings, Instant::now());
    let message = trouble.expect("one is bad").message;
    assert!(
        message.starts_with("query q1 of Prometheus default: a range"),
        "{message}"
    );
}

#[tokio::test]
async fn a_service_may_ask_only_a_server_that_there_is_and_that_is_for_its_namespace() {
    let mut server = scripted::server("http://127.0.0.1:1");
    server.allowed_namespaces = ["other".to_owned()].into();
    let readings = readings(&server);
    let mut settings = settings(&["x"]);
    let words = |settings: &PrometheusSettings, key: &Key| {
        let trouble = readings.trouble(key, settings, Instant::now());
        trouble.map(|t| t.message).unwrap_or_default()
    };
    assert!(words(&settings, &service()).contains("allowedNamespaces"));
    assert_eq!(
        words(&settings, &Key::new("other", "chat")),
        "",
        "it waits to be asked"
    );
    settings.server = "far".into();
    assert!(words(&settings, &service()).contains("knows no such server"));
}

#[tokio::test]
async fn a_token_that_is_renewed_is_shown_without_a_restart_and_stands_nowhere_else() {
    let prometheus = Scripted::start(|asked| match asked.authorization.as_deref() {
        Some("Bearer s3cr3t-two") => figure("1"),
        _ => Reply::json(401, &json!({"error": "who are you"})),
    })
    .await;
    let folder = Folder::new();
    let mut server = prometheus.server();
    server.credentials = Credentials::BearerToken(folder.write("token", "s3cr3t-one\n"));
    let connections = Connections::to(server);
    let refused = soon(ask(&connections, "vector(1)"))
        .await
        .expect_err("an old token");
    assert!(!refused.to_string().contains("s3cr3t"), "{refused}");
    let header = connections
        .get()
        .expect("a connection")
        .authorization
        .clone();
    assert!(!format!("{header:?}").contains("s3cr3t"));
    folder.replace("token", "s3cr3t-two\n");
    soon(ask(&connections, "vector(1)"))
        .await
        .expect("the new token counts");
    let before = connections.get().expect("a connection");
    assert!(
        Arc::ptr_eq(&before, &connections.get().expect("the same")),
        "it is kept"
    );
}

#[tokio::test]
async fn a_name_and_password_are_shown_as_basic_auth() {
    let prometheus = Scripted::start(|_| figure("1")).await;
    let folder = Folder::new();
    let mut server = prometheus.server();
    server.credentials = Credentials::Basic(config::BasicAuthFiles {
        username_file: folder.write("username", "ada"),
        password_file: folder.write("password", "love:lace\n"),
    });
    soon(ask(&Connections::to(server), "vector(1)"))
        .await
        .expect("a figure");
    let shown = prometheus.asked()[0].authorization.clone();
    assert_eq!(shown.as_deref(), Some("Basic YWRhOmxvdmU6bGFjZQ=="));
}

#[tokio::test]
async fn a_server_of_ones_own_authority_is_trusted_by_it_alone() {
    let (ours, theirs) = (Authority::new(), Authority::new());
    let prometheus = Scripted::start_tls(&ours, |_| figure("7")).await;
    let folder = Folder::new();
    let mut server = scripted::server(&format!("https://localhost:{}", prometheus.address.port()));
    server.ca_file = Some(folder.write("ca.crt", &theirs.pem));
    let connections = Connections::to(server.clone());
    let problem = soon(ask(&connections, "vector(1)"))
        .await
        .expect_err("a stranger");
    assert!(
        matches!(&problem, Problem::Unreachable(why) if why.contains("certificate")),
        "{problem}"
    );
    folder.replace("ca.crt", &ours.pem);
    let found = soon(ask(&connections, "vector(1)")).await.expect("trusted");
    assert_eq!(found.value_milli, 7000);
    server.ca_file = None;
    let public = soon(ask(&Connections::to(server), "vector(1)")).await;
    assert!(
        public.is_err(),
        "the public web's authorities do not know it"
    );
    assert!(folder.path().exists());
}

#[tokio::test]
async fn a_prefix_of_the_address_is_kept_and_a_server_that_takes_no_post_is_asked_by_get() {
    let prometheus = Scripted::start(|asked| {
        if asked.method == http::Method::POST {
            Reply::json(405, &json!({}))
        } else {
            figure("1")
        }
    })
    .await;
    let mut server = prometheus.server();
    server.url = format!("{}prefix/", server.url)
        .parse()
        .expect("an address");
    let connections = Connections::to(server);
    for _ in 0..2 {
        soon(ask(&connections, "vector(1)"))
            .await
            .expect("a figure");
    }
    let asked = prometheus.asked();
    let methods: Vec<_> = asked.iter().map(|a| a.method.as_str()).collect();
    assert_eq!(methods, ["POST", "GET", "GET"]);
    assert!(
        asked.iter().all(|a| a.path == "/prefix/api/v1/query"),
        "{asked:?}"
    );
}

#[test]
fn services_that_want_the_same_share_a_question_at_the_shortest_interval() {
    use crate::stores::{Content, ScaledSpec, ServiceRow};
    let row = |name: &str, interval: u32| {
        let object = json!({
            "apiVersion": "serving.pagoda.dev/v1alpha1",
            "kind": "InferenceService",
            "metadata": {"name": name, "namespace": "team", "uid": name, "generation": 1},
            "spec": {
                "engine": {"executor": "simulated"},
                "scaling": {"maxReplicas": 2, "prometheus": {"intervalSeconds": interval, "queries": [
                    {"name": "a", "query": "x", "value": "1"}, {"name": "b", "query": name, "value": "1"}]}},
            },
        });
        let object = serde_json::from_value(object).expect("a service");
        let service = pagoda_operator_core::validate::validate(&object).expect("a valid one");
        let row = ServiceRow {
            uid: name.into(),
            generation: 1,
            content: Content::Unreadable {
                metadata: Box::default(),
                error: String::new(),
            },
            scaled: Some(Arc::new(ScaledSpec {
                replicas: 1,
                scaling: service.scaling,
                is_ours: true,
            })),
            claim: None,
            replicas_by: None,
        };
        (Key::new("team", name), Arc::new(row))
    };
    let readings = readings(&scripted::server("http://127.0.0.1:1"));
    let rows = [row("first", 30), row("second", 5)];
    let seldom = wanted(&readings, &[row("seldom", 3600)]);
    let half_of_the_age = Duration::from_secs(30);
    assert_eq!(seldom[&question("x")].interval, half_of_the_age);
    let wanted = wanted(&readings, &rows);
    assert_eq!(wanted.len(), 3, "{wanted:?}");
    assert_eq!(wanted[&question("x")].interval, Duration::from_secs(5));
    assert_eq!(wanted[&question("first")].interval, Duration::from_secs(30));
    let reversed: Vec<_> = rows.iter().rev().cloned().collect();
    assert_eq!(digest(&rows), digest(&reversed));
    assert_ne!(digest(&rows), digest(&rows[..1]));
}
