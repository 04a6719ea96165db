//! The same against Prometheus' own database, engine and API (`e2e/judges/prometheus/serve`), which `./test lint` builds and
//! names in `PAGODA_PROMETHEUS`.

use std::{
    io::{BufRead, BufReader, Write},
    process::{Child, ChildStdin, ChildStdout, Command, Stdio},
    thread::sleep,
};

use super::*;

struct Real {
    child: Child,
    commands: ChildStdin,
    answers: BufReader<ChildStdout>,
    server: Server,
}

impl Real {
    fn start() -> Self {
        let program = std::env::var_os("PAGODA_PROMETHEUS").expect("PAGODA_PROMETHEUS names it");
        let mut child = Command::new(program)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("it starts");
        let commands = child.stdin.take().expect("its input");
        let mut answers = BufReader::new(child.stdout.take().expect("its output"));
        let mut address = String::new();
        answers.read_line(&mut address).expect("its address");
        Self {
            child,
            commands,
            answers,
            server: scripted::server(&format!("http://{}", address.trim())),
        }
    }

    fn tell(&mut self, command: &str) {
        writeln!(self.commands, "{command}").expect("it listens");
        let mut answer = String::new();
        self.answers.read_line(&mut answer).expect("an answer");
        assert_eq!(answer.trim(), "ok", "{command}");
    }

    async fn ask(&self, query: &str) -> Result<Figure, Problem> {
        soon(ask(&Connections::to(self.server.clone()), query)).await
    }

    async fn says(&self, query: &str) -> String {
        let problem = self.ask(query).await.expect_err(query);
        problem.to_string()
    }
}

impl Drop for Real {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

#[tokio::test]
#[ignore = "needs the Prometheus that ./test lint builds"]
async fn a_real_prometheus_answers_with_figures_and_their_ages_or_says_why_not() {
    let mut real = Real::start();
    real.tell("set 3.5 x{pod=\"a\"}");
    real.tell("set 4 x{pod=\"b\"}");
    real.tell("set NaN broken");
    real.tell("set -1 below");
    for (query, milli) in [
        ("sum(x)", 7500),
        ("x{pod=\"a\"}", 3500),
        ("scalar(x{pod=\"b\"}) + 1", 5000),
        ("max by (job) (x) / min without (pod) (x)", 1143),
        ("42", 42_000),
    ] {
        let figure = real
            .ask(query)
            .await
            .unwrap_or_else(|e| panic!("{query}: {e}"));
        assert_eq!(figure.value_milli, milli, "{query}");
        assert!(
            figure.age < Duration::from_secs(20),
            "{query} is {:?} old",
            figure.age
        );
        assert_eq!(figure.skew, None);
    }
    for (query, words) in [
        ("x", "2 series came"),
        (
            "sum(x",
            "it refuses the query: invalid parameter \"query\": 1:6: parse error: unclosed",
        ),
        ("x[1m]", "a range of samples"),
        ("\"text\"", "a text came"),
        ("nobody_has_this", "finds no series"),
        ("broken", "NaN"),
        ("below", "negative"),
        ("1 / 0", "infinite"),
        (
            "x * on() group_left x",
            "it refuses the query: found duplicate series",
        ),
    ] {
        let said = real.says(query).await;
        assert!(said.contains(words), "{query}: {said}");
    }
}

/// Prometheus repeats a series for five minutes after its last sample; its age grows all the same.
#[tokio::test]
#[ignore = "needs the Prometheus that ./test lint builds"]
async fn a_series_that_is_not_written_any_more_grows_old_and_one_that_has_ended_is_gone() {
    let mut real = Real::start();
    real.tell("set 5 x{pod=\"a\"}");
    real.tell("set 5 x{pod=\"b\"}");
    real.tell("stop x{pod=\"a\"}");
    sleep(Duration::from_secs(3));
    for query in [
        "x{pod=\"a\"}",
        "sum(x)",
        "count(x) * avg(x)",
        "max(max_over_time(x[1m]))",
    ] {
        let figure = real
            .ask(query)
            .await
            .unwrap_or_else(|e| panic!("{query}: {e}"));
        assert!(
            figure.age >= Duration::from_secs(2),
            "{query} is {:?} old",
            figure.age
        );
    }
    let fresh = real.ask("x{pod=\"b\"}").await.expect("a figure");
    assert!(fresh.age < Duration::from_secs(2), "{:?}", fresh.age);
    real.tell("end x{pod=\"a\"}");
    let said = real.says("x{pod=\"a\"}").await;
    assert!(said.contains("finds no series"), "{said}");
}
