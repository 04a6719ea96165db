//! What the commands that take a model share: where it is, what it is called, how large the engine becomes.

use std::path::{Path, PathBuf};

use super::fetch;
use crate::cli::{SizeArgs, TrustArgs};
use crate::config::EngineSize;
use crate::failure::Fatal;

/// The file that `model` names: a path as it is, an address after fetching it into the cache, where it stays.
pub fn resolve(model: &str, trust: &TrustArgs) -> Result<PathBuf, Fatal> {
    if !model.contains("://") {
        return Ok(PathBuf::from(model));
    }
    let name = model
        .rsplit('/')
        .next()
        .unwrap_or_default()
        .split(['?', '#'])
        .next()
        .unwrap_or_default();
    if name.is_empty() {
        return Err(Fatal::invalid_config(format!("{model} names no file")));
    }
    let path = cache_folder()?.join("models").join(name);
    fetch::fetch(model, &path, trust)?;
    Ok(path)
}

fn cache_folder() -> Result<PathBuf, Fatal> {
    if let Some(folder) = std::env::var_os("PAGODA_CACHE_DIR") {
        return Ok(folder.into());
    }
    let home = std::env::var_os("HOME")
        .ok_or_else(|| Fatal::invalid_config("neither PAGODA_CACHE_DIR nor HOME is set"))?;
    Ok(PathBuf::from(home).join(".cache/pagoda"))
}

/// A model's name by default: its file's, without the extension.
pub fn name_of(path: &Path) -> String {
    path.file_stem().map_or_else(
        || "model".to_owned(),
        |stem| stem.to_string_lossy().into_owned(),
    )
}

/// The engine's size by the command line.
pub fn size(args: &SizeArgs) -> EngineSize {
    EngineSize {
        max_context_tokens: Some(args.context as usize),
        kv_bytes: args.kv_memory,
        ..EngineSize::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_as_it_is_and_named_after_its_file() {
        let path = resolve("some/model-q4.gguf", &TrustArgs::default()).unwrap();
        assert_eq!(path, Path::new("some/model-q4.gguf"));
        assert_eq!(name_of(&path), "model-q4");
    }

    #[test]
    fn an_address_without_a_file_is_refused() {
        assert!(
            resolve("https://host/", &TrustArgs::default())
                .unwrap_err()
                .message
                .contains("names no file")
        );
    }
}
