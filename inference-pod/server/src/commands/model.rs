//! What the commands that take a model share: where it is, what it is called, how large the engine becomes.

use std::path::{Path, PathBuf};

use pagoda_crds::names::cache_key;
use pagoda_model::KvElement;
use pagoda_source::ModelUri;

use super::fetch;
use crate::cli::{KvType, SizeArgs, SourceArgs};
use crate::config::EngineSize;
use crate::failure::Fatal;

/// Digits of the key that tell equally named files of different sources apart.
const KEY_DIGITS: usize = 16;

/// The file that `model` names: a path as it is, an address after fetching it into the cache, where it stays.
pub fn resolve(model: &str, source: &SourceArgs) -> Result<PathBuf, Fatal> {
    if !model.contains("://") {
        return Ok(PathBuf::from(model));
    }
    let uri = ModelUri::parse(model, fetch::plain_http(source))
        .map_err(|error| Fatal::invalid_config(error.to_string()))?;
    let name = uri
        .file_name()
        .ok_or_else(|| Fatal::invalid_config(format!("{uri} names no file")))?;
    let key = cache_key(model, source.endpoint.as_deref(), source.sha256.as_deref());
    let folder = cache_folder()?.join("models").join(&key[..KEY_DIGITS]);
    let path = folder.join(name);
    fetch::fetch(model, &path, source)?;
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
        kv_element: match args.kv_type {
            KvType::F16 => KvElement::F16,
            KvType::Int8 => KvElement::Int8Group32,
        },
        ..EngineSize::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_is_taken_as_it_is_and_named_after_its_file() {
        let path = resolve("some/model-q4.gguf", &SourceArgs::default()).unwrap();
        assert_eq!(path, Path::new("some/model-q4.gguf"));
        assert_eq!(name_of(&path), "model-q4");
    }

    #[test]
    fn an_address_without_a_file_is_refused() {
        assert!(
            resolve("https://host/", &SourceArgs::default())
                .unwrap_err()
                .message
                .contains("names no file")
        );
    }
}
