//! Files of repositories on Hugging Face and its mirrors.

use reqwest::Url;

use super::joined;
use crate::uri::HuggingFaceFile;

/// Names that a token goes by.
pub(super) const TOKEN_KEYS: &[&str] = &["token", "HF_TOKEN"];

const ENDPOINT: &str = "https://huggingface.co";

/// Where the file is downloaded from.
pub(super) fn url(file: &HuggingFaceFile, endpoint: Option<&Url>) -> Result<Url, String> {
    let default = Url::parse(ENDPOINT).map_err(|error| error.to_string())?;
    let segments = file
        .repository
        .split('/')
        .chain(["resolve", &file.revision]);
    joined(
        endpoint.unwrap_or(&default),
        segments.chain(file.path.split('/')),
    )
}

#[cfg(test)]
mod tests {
    use reqwest::Url;

    use crate::uri::{ModelUri, PlainHttp};

    fn url(uri: &str, endpoint: Option<&str>) -> String {
        let ModelUri::HuggingFace(file) = ModelUri::parse(uri, PlainHttp::LoopbackOnly).unwrap()
        else {
            panic!("{uri} is of another scheme");
        };
        let endpoint = endpoint.map(|endpoint| Url::parse(endpoint).unwrap());
        super::url(&file, endpoint.as_ref()).unwrap().to_string()
    }

    #[test]
    fn files_are_resolved_at_their_revision_and_escaped() {
        assert_eq!(
            url("hf://owner/repo/sub dir/m#1.gguf", None),
            "https://huggingface.co/owner/repo/resolve/main/sub%20dir/m%231.gguf"
        );
        assert_eq!(
            url(
                "hf://owner/repo/m.gguf@refs/pr/1",
                Some("https://mirror.example/hf/")
            ),
            "https://mirror.example/hf/owner/repo/resolve/refs%2Fpr%2F1/m.gguf"
        );
    }
}
