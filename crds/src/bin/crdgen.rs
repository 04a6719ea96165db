//! Prints the CustomResourceDefinition as YAML, or with a path writes it there.

use std::{env, fs, process::ExitCode};

fn main() -> ExitCode {
    let yaml = pagoda_crds::schema::crd_yaml();
    let Some(path) = env::args_os().nth(1) else {
        print!("{yaml}");
        return ExitCode::SUCCESS;
    };
    match fs::write(&path, yaml) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("failed to write {}: {error}", path.display());
            ExitCode::FAILURE
        }
    }
}
