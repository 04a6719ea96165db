//! Label selectors as they stand in a query, such as `service=chat,query in (a,b)`.

/// Requirements, all of which must hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Selector(Vec<Requirement>);

#[derive(Clone, Debug, PartialEq, Eq)]
struct Requirement {
    label: String,
    wants: Wants,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Wants {
    OneOf(Vec<String>),
    NoneOf(Vec<String>),
    Present,
    Absent,
}

/// A text that is no selector.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is no label selector: write it like service=NAME, or service in (A,B)")]
pub struct SelectorError(String);

impl Selector {
    /// Reads a selector; an empty text takes everything.
    pub fn parse(text: &str) -> Result<Self, SelectorError> {
        let wrong = || SelectorError(text.chars().take(256).collect());
        let parts = split(text).ok_or_else(wrong)?;
        let requirements = parts
            .into_iter()
            .map(|part| requirement(part.trim()).ok_or_else(wrong));
        requirements.collect::<Result<_, _>>().map(Self)
    }

    /// Whether labels meet it.
    pub fn matches<'a>(&self, label: impl Fn(&str) -> Option<&'a str>) -> bool {
        self.0.iter().all(|requirement| {
            let found = label(&requirement.label);
            match &requirement.wants {
                Wants::OneOf(values) => {
                    found.is_some_and(|found| values.iter().any(|v| v == found))
                }
                // As Kubernetes has it: an absent label differs from every value.
                Wants::NoneOf(values) => {
                    !found.is_some_and(|found| values.iter().any(|v| v == found))
                }
                Wants::Present => found.is_some(),
                Wants::Absent => found.is_none(),
            }
        })
    }

    /// The one value that a label must have.
    pub fn exactly(&self, label: &str) -> Option<&str> {
        self.0
            .iter()
            .find_map(|requirement| match &requirement.wants {
                Wants::OneOf(values) if requirement.label == label && values.len() == 1 => {
                    Some(values[0].as_str())
                }
                _ => None,
            })
    }
}

/// Parts between commas that stand outside of parentheses.
fn split(text: &str) -> Option<Vec<&str>> {
    let (mut parts, mut start, mut inside) = (Vec::new(), 0, false);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' if !inside => inside = true,
            b')' if inside => inside = false,
            b'(' | b')' => return None,
            b',' if !inside => {
                parts.push(&text[start..at]);
                start = at + 1;
            }
            _ => {}
        }
    }
    if !text.trim().is_empty() {
        parts.push(&text[start..]);
    }
    (!inside).then_some(parts)
}

fn requirement(part: &str) -> Option<Requirement> {
    let made = |label: &str, wants| {
        let label = name(label)?;
        Some(Requirement { label, wants })
    };
    if let Some(label) = part.strip_prefix('!') {
        return made(label, Wants::Absent);
    }
    if let Some((label, value)) = part.split_once("!=") {
        return made(label, Wants::NoneOf(vec![value_of(value)?]));
    }
    if let Some((label, value)) = part.split_once("==").or_else(|| part.split_once('=')) {
        return made(label, Wants::OneOf(vec![value_of(value)?]));
    }
    let Some((head, list)) = part.split_once('(') else {
        return made(part, Wants::Present);
    };
    let values = list.trim_end().strip_suffix(')')?.split(',');
    let values = values.map(value_of).collect::<Option<Vec<_>>>()?;
    let (label, word) = head.trim_end().rsplit_once(char::is_whitespace)?;
    match word {
        "in" => made(label, Wants::OneOf(values)),
        "notin" => made(label, Wants::NoneOf(values)),
        _ => None,
    }
}

fn name(text: &str) -> Option<String> {
    let text = text.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./".contains(c);
    (!text.is_empty() && text.chars().all(plain)).then(|| text.to_owned())
}

fn value_of(text: &str) -> Option<String> {
    let text = text.trim();
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
    text.chars().all(plain).then(|| text.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn takes(selector: &str) -> bool {
        let selector = Selector::parse(selector).expect("a selector of the test");
        selector.matches(|label| match label {
            "service" => Some("chat"),
            "query" => Some("depth"),
            _ => None,
        })
    }

    #[test]
    fn selects_as_kubernetes_does() {
        for selector in [
            "",
            "service=chat",
            "service==chat,query=depth",
            "service in (a, chat),query notin (x)",
            "service",
            "!zone",
            "zone!=east",
            "zone notin (east,west)",
        ] {
            assert!(takes(selector), "{selector}");
        }
        for selector in [
            "service=other",
            "service!=chat",
            "!service",
            "zone",
            "zone in (a)",
            "zone=",
        ] {
            assert!(!takes(selector), "{selector}");
        }
    }

    #[test]
    fn what_is_no_selector_is_refused() {
        for text in [
            "=",
            "a=b=c",
            "a in",
            "a in (b",
            "a (b)",
            "a near (b)",
            "a>1",
            ",",
            "a=b,,c=d",
            "((",
            "a b",
        ] {
            assert!(Selector::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn a_label_with_one_value_is_known_beforehand() {
        let selector = Selector::parse("query=q,service in (chat)").expect("a selector");
        assert_eq!(selector.exactly("service"), Some("chat"));
        assert_eq!(Selector::default().exactly("service"), None);
    }

    proptest! {
        #[test]
        fn no_text_makes_it_panic(text in "\\PC{0,40}") {
            let _ = Selector::parse(&text);
        }
    }
}
