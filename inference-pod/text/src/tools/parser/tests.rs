use proptest::prelude::*;

use super::*;

fn read(format: ToolFormat, pieces: &[&str]) -> Vec<ToolEvent> {
    let mut parser = ToolCallParser::new(format, ["f".to_owned(), "g".to_owned()]);
    let mut out = Events::default();
    let add = |events: Vec<ToolEvent>, out: &mut Events| {
        for event in events {
            match event {
                ToolEvent::Content(text) => out.content(&text),
                ToolEvent::Arguments { index, text } => out.arguments(index, &text),
                call @ ToolEvent::Call { .. } => out.push(call),
            }
        }
    };
    for piece in pieces {
        add(parser.push(piece), &mut out);
    }
    add(parser.finish(), &mut out);
    out.0
}

fn content(text: &str) -> ToolEvent {
    ToolEvent::Content(text.into())
}

fn call(index: usize, name: &str, arguments: &str) -> [ToolEvent; 2] {
    [
        ToolEvent::Call {
            index,
            name: name.into(),
        },
        ToolEvent::Arguments {
            index,
            text: arguments.into(),
        },
    ]
}

#[test]
fn hermes_calls_are_told_from_the_content_around_them() {
    let text = "Let me see.\n<tool_call>\n{\"name\": \"f\", \"arguments\": {\"a\": [1, \"}\"]}}\n</tool_call>\n\
                <tool_call>{\"arguments\": {}, \"name\": \"g\"}</tool_call>\n";
    let expected = [
        vec![content("Let me see.")],
        call(0, "f", "{\"a\": [1, \"}\"]}").to_vec(),
        call(1, "g", "{}").to_vec(),
    ];
    assert_eq!(read(ToolFormat::Hermes, &[text]), expected.concat());
}

#[test]
fn mistral_calls_are_a_list() {
    let text = "[TOOL_CALLS][{\"name\": \"f\", \"arguments\": {\"a\": 1}}, {\"name\": \"g\", \"arguments\": {}}]";
    let expected = [call(0, "f", "{\"a\": 1}"), call(1, "g", "{}")].concat();
    assert_eq!(read(ToolFormat::Mistral, &[text]), expected);
}

#[test]
fn a_llama_call_is_the_whole_answer_and_of_a_known_function() {
    let text = "{\"name\": \"f\", \"parameters\": {\"a\": \"x\"}}";
    assert_eq!(
        read(ToolFormat::Llama, &[text]),
        call(0, "f", "{\"a\": \"x\"}")
    );
    for text in [
        "{\"name\": \"unknown\", \"parameters\": {}}",
        "{\"city\": \"Paris\"}",
        "The object {\"name\": \"f\"} is JSON",
        "{ not json",
    ] {
        assert_eq!(read(ToolFormat::Llama, &[text]), [content(text)]);
    }
}

#[test]
fn arguments_given_as_a_string_or_not_at_all_become_json_text() {
    let quoted = "<tool_call>{\"name\": \"f\", \"arguments\": \"{\\\"a\\\": 1}\"}</tool_call>";
    assert_eq!(
        read(ToolFormat::Hermes, &[quoted]),
        call(0, "f", "{\"a\": 1}")
    );
    let without = "<tool_call>{\"name\": \"f\"}</tool_call>";
    assert_eq!(read(ToolFormat::Hermes, &[without]), call(0, "f", "{}"));
    let others = "<tool_call>{\"id\": 7, \"x\": {\"y\": \"}\"}, \"name\": \"f\", \"arguments\": {}}</tool_call>";
    assert_eq!(read(ToolFormat::Hermes, &[others]), call(0, "f", "{}"));
}

#[test]
fn what_is_no_call_stays_content_to_the_last_character() {
    for text in [
        "no calls here",
        "a < b and a <tool b",
        "ends with <tool_ca",
        "<tool_call> is what a call begins with",
        "<tool_call>{\"nome\": 1}</tool_call>",
        "<tool_call>\n{\"name\": \"f",
        "  leading and trailing  ",
        "emoji 🙂 <🙂",
    ] {
        assert_eq!(read(ToolFormat::Hermes, &[text]), [content(text)], "{text}");
    }
}

#[test]
fn an_answer_cut_off_within_arguments_keeps_what_was_written() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {\"a\": \"lon";
    assert_eq!(
        read(ToolFormat::Hermes, &[text]),
        call(0, "f", "{\"a\": \"lon")
    );
}

#[test]
fn text_after_a_call_without_its_end_mark_is_not_lost() {
    let text = "<tool_call>{\"name\": \"f\", \"arguments\": {}} and so on";
    let expected = [call(0, "f", "{}").to_vec(), vec![content("and so on")]].concat();
    assert_eq!(read(ToolFormat::Hermes, &[text]), expected);
}

#[test]
fn arguments_come_as_they_are_written() {
    let mut parser = ToolCallParser::new(ToolFormat::Hermes, []);
    assert_eq!(parser.push("<tool_call>{\"name\": \"f\", \"argu").len(), 1);
    let more = parser.push("ments\": {\"a\":");
    assert_eq!(
        more,
        [ToolEvent::Arguments {
            index: 0,
            text: "{\"a\":".into()
        }]
    );
    assert_eq!(parser.calls(), 1);
}

proptest! {
    #[test]
    fn pieces_make_no_difference(
        parts in prop::collection::vec(prop::sample::select(vec![
            "<tool_call>", "</tool_call>", "{\"name\": \"f\", \"arguments\": {\"a\": 1}}", "{\"name\": \"", "text", " ", "\n", "{", "}", "[TOOL_CALLS]", "[", "]", ",", "é🙂", "\"", "\\",
        ]), 0..12),
        cuts in prop::collection::vec(0usize..200, 0..6),
    ) {
        let text = parts.concat();
        let mut cuts: Vec<usize> = cuts.into_iter().map(|cut| cut.min(text.len())).filter(|&cut| text.is_char_boundary(cut)).collect();
        cuts.extend([0, text.len()]);
        cuts.sort_unstable();
        let pieces: Vec<&str> = cuts.windows(2).map(|cut| &text[cut[0]..cut[1]]).collect();
        for format in [ToolFormat::Hermes, ToolFormat::Mistral, ToolFormat::Llama] {
            prop_assert_eq!(read(format, &pieces), read(format, &[&text]));
        }
    }

    #[test]
    fn without_marks_nothing_is_lost(text in "[a-z <>{}\"\\[\\]\n]{0,60}") {
        let all: String = read(ToolFormat::Hermes, &[&text]).iter().map(|event| match event {
            ToolEvent::Content(text) => text.as_str(),
            _ => "",
        }).collect();
        prop_assert_eq!(all, text);
    }
}
