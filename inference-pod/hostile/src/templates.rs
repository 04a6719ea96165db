//! A model's chat template, which is a program from whoever made the file.

use pagoda_text::{ChatRequest, ChatTemplate, Json, Message, TemplateError};

use crate::Mutator;

/// Templates that work: what models have, in small.
pub fn template_seeds() -> Vec<Vec<u8>> {
    let seeds = [
        pagoda_text::CHATML,
        "{{ bos_token }}{% for m in messages %}{% if (m['role'] == 'user') != (loop.index0 % 2 == 0) %}\
         {{ raise_exception('roles must alternate') }}{% endif %}{% if m.role == 'user' %}{{ '[INST] ' + m.content.strip() + \
         ' [/INST]' }}{% else %}{{ m.content + eos_token }}{% endif %}{% endfor %}",
        "{%- set ns = namespace(last=none) -%}{%- for m in messages[::-1] -%}{%- set ns.last = m -%}{%- endfor -%}\
         {%- macro turn(m) -%}<start_of_turn>{{ m.role }}\n{{ m.content | trim }}<end_of_turn>{%- endmacro -%}\
         {%- for m in messages -%}{{ turn(m) }}{%- endfor -%}{%- if add_generation_prompt -%}<start_of_turn>model\n{%- endif -%}",
        "{% if tools %}{{ tools | tojson(indent=2) }}{% endif %}{{ strftime_now('%d %b %Y') }}{% for m in messages %}\
         {% for call in m.tool_calls or [] %}{{ call.function.arguments.items() | list | length }}{% endfor %}\
         {{ m.content if m.content is string else m.content[0].text }}{% endfor %}",
    ];
    seeds.map(|seed| seed.as_bytes().to_vec()).to_vec()
}

/// Words of the language, and what is tried with it.
const WORDS: &[&[u8]] = &[
    b"{% for i in range(999999999) %}",
    b"{% endfor %}",
    b"{{ messages * 1000000 }}",
    b"{{ 'x' * 999999999 }}",
    b"{% include '/etc/passwd' %}",
    b"{% import 'x' as y %}",
    b"{{ self.__class__.__mro__ }}",
    b"{{ messages.append(messages) }}",
    b"{% macro a() %}{{ a() }}{% endmacro %}{{ a() }}",
    b"{{ range(0, 1000000000) | list | tojson }}",
    b"{{ messages | tojson(indent=999999) }}",
    b"{{ ((((((((",
    b"| join(messages) | replace('', 'xxxxxxxx')",
    b"{% set x = x ~ x ~ x %}",
];

/// Those seeds, changed.
pub fn template_inputs(seed: u64) -> Mutator {
    Mutator::new(seed, template_seeds(), WORDS)
}

/// Parses and renders. Both end, within the budget, in text or in an error of few words. Returns whether it parsed.
pub fn chat_template(bytes: &[u8]) -> bool {
    let source = String::from_utf8_lossy(bytes);
    let template = match ChatTemplate::parse(&source) {
        Ok(template) => template,
        Err(error) => {
            check(&error);
            return false;
        }
    };
    assert_eq!(template.source(), source);
    let calls = r#"[{"type":"function","function":{"name":"f","arguments":"{\"a\":1}"}}]"#;
    let calling = Message {
        tool_calls: serde_json::from_str::<Json>(calls).ok(),
        ..Message::new("assistant", "")
    };
    let messages = [
        Message::new("system", "be <|im_end|> kind"),
        Message::new("user", "hi \u{1f600}"),
        calling,
    ];
    for messages in [&messages[1..2], &messages[..]] {
        if let Err(error) =
            template.render(&ChatRequest::new(messages, 1_700_000_000), "<s>", "</s>")
        {
            check(&error);
        }
    }
    true
}

/// A message goes into logs and answers: it must not be the template's to fill.
const LONGEST_MESSAGE_BYTES: usize = 64 << 10;

fn check(error: &TemplateError) {
    let message = error.to_string();
    assert!(
        !message.is_empty() && message.len() < LONGEST_MESSAGE_BYTES,
        "{} bytes",
        message.len()
    );
}
