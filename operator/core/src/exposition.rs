//! The few series that the autoscaler needs, out of the text that Prometheus would scrape.
//!
//! Format: Prometheus text exposition 0.0.4, of which OpenMetrics is a superset here. Reading is bounded by the
//! text alone: wanted series are borrowed from it, others are skipped.

use memchr::{memchr_iter, memchr2, memchr3};

/// One wanted sample.
#[derive(Clone, Debug, PartialEq)]
pub struct Sample<'a> {
    /// Name of the series.
    pub name: &'a str,
    /// Labels, as written between braces.
    labels: &'a str,
    /// Value; finite and not negative, because all that is wanted here are counts.
    pub value: f64,
}

/// Why a text cannot be trusted.
#[derive(Debug, thiserror::Error, PartialEq, Eq)]
pub enum ExpositionError {
    /// A wanted series has no value that counts: NaN, infinite, negative, or not a number.
    #[error("series {0} has no countable value")]
    Value(String),
    /// A wanted series is cut or malformed.
    #[error("series {0} is malformed")]
    Malformed(String),
}

impl<'a> Sample<'a> {
    /// Value of a label; `None` when it is absent or holds an escape, which names of Kubernetes objects never do.
    pub fn label(&self, wanted: &str) -> Option<&'a str> {
        let mut rest = self.labels;
        while let Some(equals) = rest.bytes().position(|b| b == b'=') {
            let (key, after) = (&rest[..equals], rest[equals + 1..].strip_prefix('"')?);
            let end = end_of_quoted(after)?;
            if key.trim_ascii().trim_start_matches([',', ' ']) == wanted {
                let value = &after[..end];
                return (!value.contains('\\')).then_some(value);
            }
            rest = &after[end + 1..];
        }
        None
    }
}

impl Sample<'_> {
    /// The value as a count. Counts stay far below what an f64 holds exactly; a larger one is cut, not wrapped.
    pub fn count(&self) -> u64 {
        self.value.min(1e15).round() as u64
    }
}

/// All samples of the wanted series. One that cannot be read makes the whole text worthless: half of the
/// numbers would look like less load.
pub fn parse<'a>(text: &'a str, wanted: &[&str]) -> Result<Vec<Sample<'a>>, ExpositionError> {
    let known = |name: &str| wanted.contains(&name).then_some(());
    scan(text, known).map(|((), found)| found).collect()
}

/// Goes once through the text and reads the series that `field` knows; others cost a look at their names alone.
pub fn scan<'a, F>(
    text: &'a str,
    mut field: impl FnMut(&'a str) -> Option<F>,
) -> impl Iterator<Item = (F, Result<Sample<'a>, ExpositionError>)> {
    lines(text).filter_map(move |line| {
        let line = line.trim_ascii();
        if line.is_empty() || line.as_bytes()[0] == b'#' {
            return None;
        }
        // Names are ASCII, so the byte that ends one begins a character.
        let end = memchr3(b'{', b' ', b'\t', line.as_bytes());
        let name = &line[..end.unwrap_or(line.len())];
        Some((field(name)?, sample(name, line)))
    })
}

/// Whether the text declares or holds a family: then a series that it lacks has not happened yet, and counts as 0.
pub fn declares(text: &str, family: &str) -> bool {
    lines(text).any(|line| {
        let body = line.strip_prefix("# TYPE ").unwrap_or(line);
        body.strip_prefix(family)
            .is_some_and(|rest| rest.starts_with([' ', '{']))
    })
}

fn lines(text: &str) -> impl Iterator<Item = &str> {
    let ends = memchr_iter(b'\n', text.as_bytes()).chain([text.len()]);
    let mut from = 0;
    ends.map(move |end| {
        let line = &text[from..end];
        from = (end + 1).min(text.len());
        line
    })
}

fn sample<'a>(name: &'a str, line: &'a str) -> Result<Sample<'a>, ExpositionError> {
    let malformed = || ExpositionError::Malformed(name.to_owned());
    let rest = &line[name.len()..];
    let (labels, rest) = match rest.strip_prefix('{') {
        Some(inside) => split_labels(inside).ok_or_else(malformed)?,
        None => ("", rest),
    };
    let mut numbers = rest.split_ascii_whitespace();
    let number = numbers.next().ok_or_else(malformed)?;
    let value = parse_number(number).filter(|v| v.is_finite() && *v >= 0.0);
    let value = value.ok_or_else(|| ExpositionError::Value(name.to_owned()))?;
    Ok(Sample {
        name,
        labels,
        value,
    })
}

/// A number, as [`str::parse`] has it. Nearly all are short and plain, and read in one go.
pub(crate) fn parse_number(text: &str) -> Option<f64> {
    plain_number(text.as_bytes()).or_else(|| text.parse().ok())
}

/// Digits and at most one point, few enough for an f64 to hold both the digits and the power of ten: then their quotient is the
/// nearest f64 (Clinger, "How to read floating point numbers accurately", 1990).
fn plain_number(text: &[u8]) -> Option<f64> {
    const MOST_DIGITS: usize = 15;
    const POWERS: [f64; MOST_DIGITS + 1] = [
        1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15,
    ];
    let (mut digits, mut point) = (0_u64, None);
    for (at, byte) in text.iter().enumerate() {
        match byte {
            b'0'..=b'9' if at <= MOST_DIGITS => digits = digits * 10 + u64::from(byte - b'0'),
            b'.' if point.is_none() => point = Some(at),
            _ => return None,
        }
    }
    let count = text.len() - usize::from(point.is_some());
    let decimals = point.map_or(0, |at| text.len() - 1 - at);
    (1..=MOST_DIGITS)
        .contains(&count)
        .then(|| digits as f64 / POWERS[decimals])
}

/// Splits after the brace that closes the labels.
fn split_labels(inside: &str) -> Option<(&str, &str)> {
    let mut at = 0;
    loop {
        let next = at + memchr2(b'}', b'"', &inside.as_bytes()[at..])?;
        if inside.as_bytes()[next] == b'}' {
            return Some((&inside[..next], &inside[next + 1..]));
        }
        at = next + 1 + end_of_quoted(&inside[next + 1..])? + 1;
    }
}

/// Index of the quote that ends a quoted text.
fn end_of_quoted(text: &str) -> Option<usize> {
    let mut escaped = false;
    text.bytes().position(|b| {
        let ends = b == b'"' && !escaped;
        escaped = b == b'\\' && !escaped;
        ends
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const TEXT: &str = "# HELP held Requests held.\n# TYPE held gauge\nheld{namespace=\"a\",service=\"x\"} 3\n\
        held{service=\"y}\\\"\",namespace=\"b\"} 4.0 1700000000\nother{a=\"b\"} NaN\nplain 7\n# EOF\n";

    #[test]
    fn reads_wanted_series_with_labels_in_any_order() {
        let samples = parse(TEXT, &["held", "plain"]).expect("well-formed");
        let values: Vec<f64> = samples.iter().map(|s| s.value).collect();
        assert_eq!(values, [3.0, 4.0, 7.0]);
        assert_eq!(samples[0].label("service"), Some("x"));
        assert_eq!(samples[1].label("namespace"), Some("b"));
        assert_eq!(
            samples[1].label("service"),
            None,
            "escapes are nobody's name"
        );
        assert_eq!(samples[2].label("service"), None);
    }

    #[test]
    fn a_wanted_series_that_does_not_count_spoils_the_text() {
        for value in ["NaN", "+Inf", "-1", "many", ""] {
            let text = format!("ok 1\nheld{{a=\"b\"}} {value}\n");
            assert!(parse(&text, &["held"]).is_err(), "{value}");
        }
        assert!(parse("held{a=\"b 1\n", &["held"]).is_err());
    }

    #[test]
    fn a_declared_family_without_series_is_known() {
        assert!(declares("# TYPE held gauge\n", "held"));
        assert!(declares("held{a=\"b\"} 1\n", "held"));
        assert!(!declares("# TYPE held_total counter\nheldx 1\n", "held"));
    }

    proptest! {
        #[test]
        fn a_number_is_read_as_the_standard_library_reads_it(
            number in prop_oneof!["[0-9]{0,18}[.]?[0-9]{0,18}", "[-+]?[0-9]{0,3}[.e]{0,3}[0-9]{0,3}", "[+]Inf|NaN|inf"]
        ) {
            let expected = number.parse::<f64>().ok().map(f64::to_bits);
            prop_assert_eq!(parse_number(&number).map(f64::to_bits), expected);
        }

        #[test]
        fn no_text_panics(text in "(held)?(\\{)?.{0,80}") {
            if let Ok(samples) = parse(&text, &["held"]) {
                for sample in samples {
                    let _ = sample.label("a");
                }
            }
        }
    }
}
