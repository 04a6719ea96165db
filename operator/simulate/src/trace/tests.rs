use proptest::prelude::*;

use super::*;
use crate::time::{MILLISECOND, SECOND};

fn read(text: &str) -> Result<Vec<Arrival>, TraceError> {
    Reader::new(text.as_bytes()).collect()
}

fn error(text: &str) -> String {
    read(text).expect_err("refused").to_string()
}

#[test]
fn reads_mooncakes_rows_from_the_first_ones_time_on() {
    let text = "{\"timestamp\": 1000, \"input_length\": 1300, \"output_length\": 5, \"hash_ids\": [7, 8, 9]}\n\n\
        {\"timestamp\": 1250.5, \"input_length\": 512, \"output_length\": 1}\n";
    let rows = read(text).expect("a trace");
    assert_eq!(
        rows[0].prefix[..],
        [7, 8],
        "the last id stands for fewer tokens"
    );
    assert_eq!(
        (rows[0].at, rows[0].prompt_tokens, rows[0].output_tokens),
        (0, 1300, 5)
    );
    assert_eq!(rows[1].at, 250 * MILLISECOND + MILLISECOND / 2);
}

#[test]
fn reads_azures_rows_with_their_fractions_of_a_second() {
    let text = "\u{feff}TIMESTAMP,ContextTokens,GeneratedTokens\r\n2023-11-16 18:17:03.9799600,4808,10\r\n\
        2023-11-16 18:17:04.0319600,3180,8\r\n2023-11-17 18:17:03.9799600,110,27";
    let rows = read(text).expect("a trace");
    assert_eq!(rows[1].at, 52 * MILLISECOND);
    assert_eq!(rows[2].at, 86_400 * SECOND);
    assert_eq!((rows[2].prompt_tokens, rows[2].output_tokens), (110, 27));
}

#[test]
fn an_empty_trace_says_which_formats_there_are() {
    for text in ["", "\n \n", "TIMESTAMP,ContextTokens,GeneratedTokens\n"] {
        assert!(error(text).contains("no request"), "{text:?}");
    }
    assert!(error("a,b,c\n1,2,3").contains("line 1: neither a Mooncake trace"));
}

#[test]
fn a_bad_row_is_refused_with_its_line_and_what_to_do() {
    let good = "{\"timestamp\": 5, \"input_length\": 10, \"output_length\": 5}\n";
    for (row, said) in [
        ("{\"timestamp\": 1", "line 2: not a row of a Mooncake trace"),
        (
            "{\"timestamp\": 4, \"input_length\": 10, \"output_length\": 5}",
            "sort the trace",
        ),
        (
            "{\"timestamp\": 6, \"input_length\": 0, \"output_length\": 5}",
            "prompt of 0 tokens",
        ),
        (
            "{\"timestamp\": 6, \"input_length\": 10, \"output_length\": 0}",
            "answer of 0 tokens",
        ),
        (
            "{\"timestamp\": 6, \"input_length\": 10, \"output_length\": 5, \"hash_ids\": [1, 2]}",
            "2 hash_ids for 10 tokens",
        ),
        (
            "{\"timestamp\": 1e300, \"input_length\": 10, \"output_length\": 5}",
            "more than ten years",
        ),
        (
            "{\"timestamp\": 6, \"input_length\": -1, \"output_length\": 5}",
            "not a row",
        ),
        (
            "{\"timestamp\": 6, \"input_length\": 4000000000, \"output_length\": 5}",
            "remove the row or correct it",
        ),
    ] {
        let said_so = error(&format!("{good}{row}\n"));
        assert!(
            said_so.starts_with("line 2: ") && said_so.contains(said),
            "{row}: {said_so}"
        );
    }
    let header = "TIMESTAMP,ContextTokens,GeneratedTokens\n2023-11-16 18:17:03,1,1\n";
    for (row, said) in [
        ("yesterday,1,1", "is no time: write it as"),
        ("2023-11-16 18:17:02,1,1", "sort the trace"),
        ("2023-11-16 18:17:04,1", "three columns"),
        ("2023-11-16 18:17:04,1,x", "GeneratedTokens is \"x\""),
    ] {
        let said_so = error(&format!("{header}{row}\n"));
        assert!(
            said_so.starts_with("line 3: ") && said_so.contains(said),
            "{row}: {said_so}"
        );
    }
}

#[test]
fn a_file_without_line_ends_is_not_read_into_memory() {
    let endless = std::io::BufReader::new(std::io::repeat(b'x'));
    let rows: Result<Vec<Arrival>, _> = Reader::new(endless).collect();
    assert!(
        rows.expect_err("refused")
            .to_string()
            .contains("longer than")
    );
}

fn rows(count: usize) -> Vec<Arrival> {
    (0..count)
        .map(|nth| Arrival {
            at: nth as Nanos * SECOND / 10,
            prompt_tokens: 1000,
            output_tokens: 10,
            prefix: [nth as u64].into(),
        })
        .collect()
}

fn shaped(count: usize, shape: Shape) -> Vec<Arrival> {
    let rows = rows(count).into_iter().map(Ok);
    Shaped::new(rows, shape)
        .collect::<Result<_, _>>()
        .expect("no fault")
}

#[test]
fn a_shape_of_ones_changes_nothing() {
    assert_eq!(shaped(50, Shape::default()), rows(50));
}

#[test]
fn copies_are_other_peoples_requests() {
    let shape = Shape {
        scale_load: 3.0,
        ..Shape::default()
    };
    let mut ids: Vec<u64> = shaped(50, shape).iter().map(|a| a.prefix[0]).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 150);
}

proptest! {
    #[test]
    fn no_bytes_make_a_reader_panic_or_go_on_after_a_fault(bytes in proptest::collection::vec(any::<u8>(), 0..400)) {
        let mut reader = Reader::new(&bytes[..]);
        let faults = reader.by_ref().filter(Result::is_err).count();
        prop_assert!(faults <= 1);
        prop_assert!(reader.next().is_none());
    }

    #[test]
    fn rows_that_nearly_fit_are_read_or_refused_with_their_line(
        rows in proptest::collection::vec(("[0-9.e+-]{1,6}", "-?[0-9]{1,8}", "[0-9]{1,6}"), 1..20),
    ) {
        let mooncake = rows.iter().fold(String::new(), |text, (t, i, o)| {
            format!("{text}{{\"timestamp\": {t}, \"input_length\": {i}, \"output_length\": {o}, \"hash_ids\": []}}\n")
        });
        let azure = rows.iter().fold("TIMESTAMP,ContextTokens,GeneratedTokens\n".to_owned(), |text, (t, i, o)| {
            format!("{text}2023-11-16 18:17:0{t},{i},{o}\n")
        });
        for text in [mooncake, azure] {
            match read(&text) {
                Ok(read) => {
                    prop_assert_eq!(read.len(), rows.len());
                    prop_assert!(read.is_sorted_by_key(|a| a.at));
                }
                Err(error) => prop_assert!(error.to_string().starts_with("line ")),
            }
        }
    }

    #[test]
    fn a_shaped_trace_is_in_order_and_as_large_as_asked(
        count in 1_usize..300, speed_up in 0.1_f64..10.0, scale_load in 0.1_f64..5.0, jitter in 0_u64..5_000_000_000, seed in any::<u64>(),
    ) {
        let shape = Shape { speed_up, scale_load, jitter, seed };
        let shaped_rows = shaped(count, shape);
        prop_assert!(shaped_rows.is_sorted_by_key(|a| a.at));
        prop_assert!((shaped_rows.len() as f64 - count as f64 * scale_load).abs() <= count as f64 * 0.5 + 5.0 && shaped_rows.len() >= count * scale_load.floor() as usize);
        let last = (count as f64 - 1.0) * 1e8 / speed_up + jitter as f64;
        prop_assert!(shaped_rows.iter().all(|a| a.at as f64 <= last + 1.0));
        prop_assert_eq!(shaped_rows, shaped(count, shape));
    }
}
