//! The series that a PromQL expression reads as they are now.
//!
//! An instant query repeats the last sample of a series for up to five minutes after it ended, and gives it the time of the
//! question; a rate goes on for as long as its range. How old the figures behind an answer are is therefore asked for:
//! [`age_query`] is a query for the time of the oldest last sample among all the series that stand in an expression. What the
//! user wants of the past (`offset`, `@`) is left out.
//!
//! Only words are told apart here, after PromQL's lexical rules
//! (<https://prometheus.io/docs/prometheus/latest/querying/basics/>); whether the expression is valid is for the server to say.
//! A query made of a wrong guess is refused by it, and then no age is known.

/// More are not asked after.
const MOST_SELECTORS: usize = 8;

/// Words that are neither metrics nor functions, wherever a series could stand.
const KEYWORDS: [&str; 16] = [
    "and",
    "or",
    "unless",
    "atan2",
    "bool",
    "offset",
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
    "inf",
    "nan",
    "start",
    "end",
];
/// Of these, the ones that a list of labels follows.
const BEFORE_LABELS: [&str; 6] = [
    "by",
    "without",
    "on",
    "ignoring",
    "group_left",
    "group_right",
];

/// A query for the time, in seconds since 1970, of the oldest sample that an expression reads; `None` when it reads none, or
/// too many to ask after.
pub fn age_query(expression: &str) -> Option<String> {
    let selectors = selectors(expression);
    match &selectors[..] {
        [] => None,
        [only] => Some(format!("min(timestamp({only}))")),
        several if several.len() > MOST_SELECTORS => None,
        several => {
            // `or` takes one of two series that have equal labels, so each gets a label of its own.
            let marked = several.iter().enumerate().map(|(index, selector)| {
                format!(r#"label_replace(min(timestamp({selector})),"selector","{index}","","")"#)
            });
            let marked: Vec<String> = marked.collect();
            Some(format!("min({})", marked.join(" or ")))
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Token<'a> {
    /// A metric, a function, a keyword.
    Word(&'a str),
    /// `{...}`, braces included.
    Labels(&'a str),
    /// `[...]`.
    Range,
    Open,
    Close,
    At,
    Other,
}

fn selectors(expression: &str) -> Vec<String> {
    let tokens = tokens(expression);
    let mut found: Vec<String> = Vec::new();
    let mut rest = &tokens[..];
    while let Some((token, after)) = rest.split_first() {
        rest = after;
        let selector = match (token, after.first()) {
            (Token::Word(word), Some(Token::Open)) if BEFORE_LABELS.contains(&&*lower(word)) => {
                rest = beyond_parenthesis(after);
                continue;
            }
            (Token::Word(word), next) if is_no_series(word, next) => continue,
            (Token::Word(metric), Some(Token::Labels(labels))) => {
                rest = &after[1..];
                format!("{metric}{labels}")
            }
            (Token::Word(metric), _) => (*metric).to_owned(),
            (Token::Labels(labels), _) => (*labels).to_owned(),
            _ => continue,
        };
        if rest.first() == Some(&Token::Range) {
            rest = &rest[1..];
        }
        let is_past = match rest.first() {
            Some(Token::At) => true,
            Some(Token::Word(word)) => lower(word) == "offset",
            _ => false,
        };
        if !is_past && !found.contains(&selector) {
            found.push(selector);
        }
    }
    found
}

/// A function or an aggregation stands before its arguments, or before the labels that it keeps.
fn is_no_series(word: &str, next: Option<&Token<'_>>) -> bool {
    let keeps = |next: &str| ["by", "without"].contains(&&*lower(next));
    KEYWORDS.contains(&&*lower(word))
        || matches!(next, Some(Token::Open))
        || matches!(next, Some(Token::Word(next)) if keeps(next))
}

fn lower(word: &str) -> String {
    word.to_ascii_lowercase()
}

fn beyond_parenthesis<'a, 'b>(tokens: &'b [Token<'a>]) -> &'b [Token<'a>] {
    let close = tokens.iter().position(|token| *token == Token::Close);
    close.map_or(&[], |index| &tokens[index + 1..])
}

fn tokens(expression: &str) -> Vec<Token<'_>> {
    let mut tokens = Vec::new();
    let mut rest = expression;
    while let Some(first) = rest.chars().next() {
        let (token, length) = match first {
            '#' => (None, rest.find('\n').unwrap_or(rest.len())),
            c if c.is_whitespace() => (None, c.len_utf8()),
            '"' | '\'' | '`' => (Some(Token::Other), quoted(rest)),
            '{' => {
                let length = enclosed(rest, '}');
                (Some(Token::Labels(&rest[..length])), length)
            }
            '[' => (Some(Token::Range), enclosed(rest, ']')),
            '(' => (Some(Token::Open), 1),
            ')' => (Some(Token::Close), 1),
            '@' => (Some(Token::At), 1),
            c if c.is_ascii_digit() || c == '.' => (Some(Token::Other), word(rest)),
            c if is_of_word(c) => {
                let length = word(rest);
                (Some(Token::Word(&rest[..length])), length)
            }
            c => (Some(Token::Other), c.len_utf8()),
        };
        tokens.extend(token);
        rest = &rest[length..];
    }
    tokens
}

fn is_of_word(c: char) -> bool {
    c.is_ascii_alphanumeric() || matches!(c, '_' | ':')
}

/// Length of a word, or of a number or duration with its units.
fn word(text: &str) -> usize {
    text.find(|c| !is_of_word(c) && c != '.')
        .unwrap_or(text.len())
}

/// Length of a quoted text, quotes included. Backticks know no escapes.
fn quoted(text: &str) -> usize {
    let mut characters = text.char_indices();
    let Some((_, quote)) = characters.next() else {
        return 0;
    };
    let mut escaped = false;
    for (index, c) in characters {
        match c {
            _ if escaped => escaped = false,
            '\\' if quote != '`' => escaped = true,
            c if c == quote => return index + 1,
            _ => {}
        }
    }
    text.len()
}

/// Length of what stands in brackets, brackets included; those inside of quotes do not count.
fn enclosed(text: &str, close: char) -> usize {
    let mut index = 1;
    while let Some(c) = text[index..].chars().next() {
        index += match c {
            '"' | '\'' | '`' => quoted(&text[index..]),
            c if c == close => return index + 1,
            c => c.len_utf8(),
        };
    }
    text.len()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn series_are_told_from_everything_else() {
        let cases: [(&str, &[&str]); 17] = [
            ("up", &["up"]),
            (
                "pagoda:in_flight_requests:sum{service=\"chat\"}",
                &["pagoda:in_flight_requests:sum{service=\"chat\"}"],
            ),
            (
                "{__name__=\"up\",job='a}b'}",
                &["{__name__=\"up\",job='a}b'}"],
            ),
            (
                "{\"metric.with.dots\", a=\"b\"}",
                &["{\"metric.with.dots\", a=\"b\"}"],
            ),
            ("sum(x) / sum(y)", &["x", "y"]),
            ("sum by (service, pod) (x{a=\"1\"})", &["x{a=\"1\"}"]),
            ("sum(x) BY (service)", &["x"]),
            ("max without(pod)(x) > bool 3", &["x"]),
            ("a * on(pod) group_left(node) b", &["a", "b"]),
            ("sum(rate(requests_total[1m]))", &["requests_total"]),
            ("rate(a[1m] offset 1h) + rate(b[1m] @ end())", &[]),
            ("x offset 5m + y @ 1700000000 + z", &["z"]),
            (
                "histogram_quantile(0.95, sum by (le) (rate(b[5m])))",
                &["b"],
            ),
            ("vector(1) + 1e3 - 0x1F + 5m + Inf + NaN", &[]),
            ("# a comment with up\nup # and more", &["up"]),
            (
                "label_replace(x, \"a\", \"$1\", \"b\", \"(.*)\") or x",
                &["x"],
            ),
            ("max_over_time(sum(x)[5m:1m])", &["x"]),
        ];
        for (expression, expected) in cases {
            assert_eq!(selectors(expression), expected, "{expression}");
        }
    }

    #[test]
    fn the_oldest_of_several_is_asked_for_at_once() {
        assert_eq!(age_query("sum(x)").as_deref(), Some("min(timestamp(x))"));
        assert_eq!(age_query("vector(1) + time()"), None);
        let two = age_query("x / y").expect("two series");
        assert!(
            two.contains("timestamp(x)") && two.contains("timestamp(y)"),
            "{two}"
        );
        let many: Vec<String> = (0..9).map(|i| format!("m{i}")).collect();
        assert_eq!(age_query(&many.join("+")), None);
    }

    proptest! {
        #[test]
        fn no_text_harms(text in "\\PC{0,80}", brackets in "[\\[\\]{}()\"'`\\\\a-c#@ ]{0,40}") {
            let _ = age_query(&text);
            let _ = age_query(&brackets);
        }
    }
}
