//! One figure out of what a Prometheus answers, or why there is none. Pure.

use prometheus_http_query::response::{Data, PromqlResult, Sample};
use serde::Deserialize;

use super::problem::{Problem, words};

/// Begins warnings about the query itself. Any other warning is about data that could not be read.
const ABOUT_THE_QUERY: &str = "PromQL ";
/// Above this a figure is a mistake, and its thousandths would not fit.
const MOST: f64 = 1e15;

/// A number, and the server's time at which it was reckoned.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Number {
    /// As it came.
    pub value: f64,
    /// Seconds since 1970 by the server's clock.
    pub evaluated_seconds: f64,
}

/// All but the data, so that what is no figure is recognised without reading it.
#[derive(Deserialize)]
struct Outline {
    status: String,
    #[serde(default, rename = "errorType")]
    error_type: String,
    #[serde(default)]
    error: String,
    #[serde(default)]
    warnings: Option<Vec<String>>,
    #[serde(default)]
    data: Option<Kind>,
}

#[derive(Deserialize)]
struct Kind {
    #[serde(default, rename = "resultType")]
    result_type: String,
}

#[derive(Deserialize)]
struct Whole {
    data: PromqlResult,
}

/// Reads the answer to an instant query: a scalar, or a vector of one series.
pub fn number(status: u16, body: &[u8]) -> Result<Number, Problem> {
    match status {
        401 | 403 => return Err(Problem::NotPermitted(status)),
        300..=399 => return Err(Problem::Redirect { status }),
        _ => {}
    }
    let Ok(outline) = serde_json::from_slice::<Outline>(body) else {
        return Err(not_json(status, body));
    };
    if outline.status != "success" {
        return Err(refusal(status, &outline));
    }
    let mut warnings = outline.warnings.iter().flatten();
    if let Some(partial) = warnings.find(|w| !w.starts_with(ABOUT_THE_QUERY)) {
        return Err(Problem::Partial(words(partial)));
    }
    let kind = outline.data.map(|data| data.result_type);
    match kind.as_deref() {
        Some("vector" | "scalar") => sample(body).and_then(checked),
        Some("matrix") => Err(Problem::NotAFigure(
            "a range of samples came instead of one figure: leave out [...], or wrap it, as in avg_over_time(...[1m])",
        )),
        Some("string") => Err(Problem::NotAFigure("a text came instead of a figure")),
        _ => Err(Problem::Garbage(
            "it has no resultType that is known".into(),
        )),
    }
}

fn not_json(status: u16, body: &[u8]) -> Problem {
    if status != 200 {
        return Problem::Failed {
            status,
            words: String::new(),
        };
    }
    Problem::Garbage(if body.is_empty() {
        "it is empty".into()
    } else {
        "it is not JSON with a status".into()
    })
}

/// Whether the query or the server is at fault, by the error types of Prometheus' API.
fn refusal(status: u16, outline: &Outline) -> Problem {
    let said = words(&outline.error);
    match outline.error_type.as_str() {
        "bad_data" | "execution" | "timeout" | "canceled" => Problem::Refused(said),
        _ => Problem::Failed {
            status,
            words: said,
        },
    }
}

fn sample(body: &[u8]) -> Result<Sample, Problem> {
    let whole: Whole = serde_json::from_slice(body).map_err(|_| unreadable(body))?;
    match whole.data.into_inner().0 {
        Data::Scalar(sample) => Ok(sample),
        Data::Vector(mut series) => match (series.pop(), series.len()) {
            (None, _) => Err(Problem::Empty { skew: None }),
            (Some(only), 0) => Ok(only.into_inner().1),
            (Some(_), others) => Err(Problem::ManySeries(others + 1)),
        },
        Data::Matrix(_) => Err(Problem::NotAFigure("a range of samples came")),
    }
}

/// A native histogram is the one valid answer whose samples have no value.
fn unreadable(body: &[u8]) -> Problem {
    let needle = b"\"histogram\"";
    if body.windows(needle.len()).any(|window| window == needle) {
        Problem::NotAFigure(
            "a histogram came instead of a figure: wrap it, as in histogram_quantile(0.95, ...)",
        )
    } else {
        Problem::Garbage("its samples cannot be read".into())
    }
}

fn checked(sample: Sample) -> Result<Number, Problem> {
    let (value, evaluated_seconds) = (sample.value(), sample.timestamp());
    if !evaluated_seconds.is_finite() {
        return Err(Problem::Garbage("its time is no number".into()));
    }
    if value.is_nan() {
        return Err(Problem::NotANumber("NaN"));
    }
    Ok(Number {
        value,
        evaluated_seconds,
    })
}

/// Thousandths of a value that pods can be reckoned from.
pub fn milli(value: f64) -> Result<u64, Problem> {
    match value {
        _ if value.is_nan() => Err(Problem::NotANumber("NaN")),
        _ if value.is_infinite() => Err(Problem::NotANumber("infinite")),
        _ if value < 0.0 => Err(Problem::NotANumber("negative")),
        _ if value > MOST => Err(Problem::NotANumber("above 10^15")),
        _ => Ok((value * 1000.0).round() as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use serde_json::{Value, json};

    fn answered(data: &Value) -> Result<Number, Problem> {
        let body = json!({"status": "success", "data": data}).to_string();
        number(200, body.as_bytes())
    }

    fn vector(values: &[&str]) -> Value {
        let series = values
            .iter()
            .enumerate()
            .map(|(i, v)| json!({"metric": {"pod": i.to_string()}, "value": [1_700_000_000.5, v]}));
        json!({"resultType": "vector", "result": series.collect::<Vec<_>>()})
    }

    #[test]
    fn a_scalar_and_a_vector_of_one_series_are_figures() {
        let expected = Ok(Number {
            value: 12.5,
            evaluated_seconds: 1_700_000_000.5,
        });
        let scalar = json!({"resultType": "scalar", "result": [1_700_000_000.5, "12.5"]});
        assert_eq!(answered(&scalar), expected);
        assert_eq!(answered(&vector(&["12.5"])), expected);
    }

    #[test]
    fn whatever_else_comes_is_called_by_its_name() {
        let cases = [
            (vector(&[]), "finds no series"),
            (vector(&["1", "2", "3"]), "3 series came"),
            (vector(&["NaN"]), "the figure is NaN"),
            (
                json!({"resultType": "matrix", "result": [{"metric": {}, "values": [[1, "2"]]}]}),
                "a range of samples",
            ),
            (
                json!({"resultType": "string", "result": [1, "x"]}),
                "a text",
            ),
            (
                json!({"resultType": "vector", "result": [{"metric": {}, "histogram": [1, {"count": "1"}]}]}),
                "a histogram",
            ),
            (
                json!({"resultType": "vector", "result": [{"metric": {}}]}),
                "cannot be read",
            ),
            (
                json!({"resultType": "vector", "result": [{"metric": {}, "value": [1, "x"]}]}),
                "cannot be read",
            ),
            (json!({"resultType": "cube", "result": []}), "no resultType"),
        ];
        for (data, said) in cases {
            let problem = answered(&data).expect_err("it is no figure").to_string();
            assert!(problem.contains(said), "{data}: {problem}");
        }
    }

    #[test]
    fn errors_are_told_in_the_servers_own_words() {
        let body = json!({"status": "error", "errorType": "bad_data", "error": "1:5: parse error: unexpected end of input"});
        let problem = number(400, body.to_string().as_bytes()).expect_err("refused");
        assert_eq!(
            problem.to_string(),
            "it refuses the query: 1:5: parse error: unexpected end of input"
        );
        let body = json!({"status": "error", "errorType": "internal", "error": "disk"});
        let problem = number(500, body.to_string().as_bytes()).expect_err("failed");
        assert_eq!(problem.to_string(), "it answers 500: disk");
        for (status, said) in [
            (502, "it answers 502"),
            (401, "credentials"),
            (403, "credentials"),
            (302, "redirect"),
            (200, "not JSON"),
        ] {
            let problem = number(status, b"<html>")
                .expect_err("no figure")
                .to_string();
            assert!(problem.contains(said), "{status}: {problem}");
            assert!(!problem.contains("html"), "a page is told: {problem}");
        }
    }

    #[test]
    fn a_figure_of_a_part_of_the_data_is_none() {
        let with = |warning: &str| {
            let body = json!({"status": "success", "data": vector(&["1"]), "warnings": [warning]});
            number(200, body.to_string().as_bytes())
        };
        assert!(matches!(
            with("remote read: connection refused"),
            Err(Problem::Partial(_))
        ));
        assert!(with("PromQL warning: bucket label is missing").is_ok());
    }

    #[test]
    fn only_what_pods_follow_from_is_reckoned_with() {
        assert_eq!(milli(0.0005), Ok(1));
        assert_eq!(milli(-0.0), Ok(0));
        for wrong in [f64::NAN, f64::INFINITY, f64::NEG_INFINITY, -0.001, 1e16] {
            assert!(milli(wrong).is_err(), "{wrong}");
        }
    }

    proptest! {
        #[test]
        fn no_answer_is_read_as_a_figure_by_accident_or_harms(status in 200_u16..600, body in proptest::collection::vec(any::<u8>(), 0..200)) {
            prop_assert!(number(status, &body).is_err());
        }

        #[test]
        fn a_figure_is_read_as_it_was_written(value in -1e12_f64..1e12) {
            let read = answered(&vector(&[&value.to_string()]));
            prop_assert_eq!(read.map(|n| n.value), Ok(value));
        }
    }
}
