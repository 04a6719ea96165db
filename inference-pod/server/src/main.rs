//! `pagoda-engine`: see `pagoda-engine --help`.

use std::process::ExitCode;

fn main() -> ExitCode {
    pagoda_engine::run()
}
