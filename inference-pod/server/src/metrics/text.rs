//! The older Prometheus text format out of OpenMetrics.

/// In OpenMetrics a counter `x` has the sample `x_total`; in 0.0.4 the type line must say `x_total` too. `HELP` precedes
/// `TYPE`, so it is held until the type is known. `EOF` is dropped.
pub(super) fn to_prometheus_text(open_metrics: &str) -> String {
    let mut out = String::with_capacity(open_metrics.len() + 1024);
    let mut help = None;
    for line in open_metrics.lines().filter(|line| *line != "# EOF") {
        if line.starts_with("# HELP ") {
            help = Some(line);
            continue;
        }
        let counter = line
            .strip_prefix("# TYPE ")
            .and_then(|rest| rest.strip_suffix(" counter"));
        if let Some(help) = help.take() {
            push_line(
                &mut out,
                &counter.map_or_else(|| help.to_owned(), |name| rename(help, name)),
            );
        }
        push_line(
            &mut out,
            &counter.map_or_else(|| line.to_owned(), |name| rename(line, name)),
        );
    }
    out
}

fn rename(line: &str, name: &str) -> String {
    line.replacen(&format!(" {name} "), &format!(" {name}_total "), 1)
}

fn push_line(out: &mut String, line: &str) {
    out.push_str(line);
    out.push('\n');
}
