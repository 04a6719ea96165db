//! Writes an image as `docker save` would: `manifest.json`, a configuration, one layer. The same content gives the same
//! bytes, so a digest tells whether anything changed.

use std::fs::{self, File};
use std::io::{self, BufReader, BufWriter, Read, Write};
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde_json::{Value, json};
use sha2::{Digest, Sha256};

use super::hex;

/// Repository and tag, such as `pagoda/engine` and `dev`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ImageName {
    /// Without a tag; a first part without a dot means Docker Hub's names.
    pub repository: String,
    /// After the colon.
    pub tag: String,
}

impl ImageName {
    /// From its two parts.
    pub fn new(repository: impl Into<String>, tag: impl Into<String>) -> Self {
        Self {
            repository: repository.into(),
            tag: tag.into(),
        }
    }

    /// From `REPOSITORY:TAG`; fails without a tag, because an image that is never pulled has no sensible default.
    pub fn parse(text: &str) -> Result<Self> {
        let (repository, tag) = text
            .rsplit_once(':')
            .filter(|(repository, tag)| {
                !repository.is_empty() && !tag.is_empty() && !tag.contains('/')
            })
            .with_context(|| format!("image name {text:?} has no tag: write REPOSITORY:TAG"))?;
        Ok(Self::new(repository, tag))
    }

    /// `REPOSITORY:TAG` as a pod names it.
    pub fn short(&self) -> String {
        format!("{}:{}", self.repository, self.tag)
    }

    /// As containerd names it, registry included.
    pub fn full(&self) -> String {
        let first = self
            .repository
            .split_once('/')
            .map_or("", |(first, _)| first);
        match self.repository.contains('/') {
            true if first.contains(['.', ':']) || first == "localhost" => self.short(),
            true => format!("docker.io/{}", self.short()),
            false => format!("docker.io/library/{}", self.short()),
        }
    }
}

/// One file of an image.
#[derive(Debug, Clone)]
pub struct LayerFile {
    /// Where it comes from.
    pub source: PathBuf,
    /// Absolute path in the image.
    pub path: String,
    /// Permissions, such as `0o755`.
    pub mode: u32,
}

/// An image of files `FROM scratch`, run as user 65532.
#[derive(Debug, Clone)]
pub struct Archive {
    /// Its only content.
    pub files: Vec<LayerFile>,
    /// What runs; empty for an image that only carries data.
    pub entrypoint: Vec<String>,
}

/// An image of one statically linked program.
#[derive(Debug)]
pub struct Program;

impl Program {
    /// The program file `source` at `path`, which is also the entry point.
    pub fn at(source: PathBuf, path: &str) -> Archive {
        Archive {
            files: vec![LayerFile {
                source,
                path: path.to_owned(),
                mode: 0o755,
            }],
            entrypoint: vec![path.to_owned()],
        }
    }
}

impl Archive {
    /// An image that carries the file `source` at `path`, readable by all.
    pub fn of_data(source: PathBuf, path: &str) -> Self {
        Self {
            files: vec![LayerFile {
                source,
                path: path.to_owned(),
                mode: 0o644,
            }],
            entrypoint: Vec::new(),
        }
    }

    /// Twelve hexadecimal digits of what the image consists of, without its name.
    pub fn content_digest(&self) -> Result<String> {
        let layer = self.write_layer(io::sink())?;
        Ok(hex(
            &Sha256::digest(self.configuration(&layer).to_string())[..6]
        ))
    }

    /// Writes the image, named `name`, to `target`, by way of a temporary file beside it.
    pub fn archive(&self, name: &ImageName, target: &Path) -> Result<()> {
        let fresh = target.with_extension("new");
        let layer_file = target.with_extension("layer");
        let write = || -> Result<()> {
            let layer = self.write_layer(BufWriter::new(File::create(&layer_file)?))?;
            write_image(
                &self.configuration(&layer),
                &layer,
                &layer_file,
                name,
                BufWriter::new(File::create(&fresh)?),
            )?;
            Ok(fs::rename(&fresh, target)?)
        };
        let outcome =
            write().with_context(|| format!("cannot write the image archive {}", target.display()));
        fs::remove_file(&layer_file).ok();
        outcome
    }

    fn configuration(&self, layer_digest: &str) -> Value {
        json!({
            "architecture": architecture(),
            "os": "linux",
            "config": {"User": "65532:65532", "Entrypoint": self.entrypoint, "WorkingDir": "/"},
            "rootfs": {"type": "layers", "diff_ids": [format!("sha256:{layer_digest}")]},
            "history": [{"created": "1970-01-01T00:00:00Z", "created_by": "pagoda-e2e"}],
        })
    }

    /// Writes the layer and returns its digest in hexadecimal.
    fn write_layer(&self, output: impl Write) -> Result<String> {
        let mut tar = tar::Builder::new(Hashing {
            inner: output,
            digest: Sha256::new(),
        });
        for file in &self.files {
            let source = File::open(&file.source)
                .with_context(|| format!("cannot open {}", file.source.display()))?;
            let length = source.metadata()?.len();
            append(
                &mut tar,
                file.path.trim_start_matches('/'),
                file.mode,
                length,
                BufReader::new(source),
            )
            .with_context(|| format!("cannot put {} into the image", file.source.display()))?;
        }
        let mut hashing = tar.into_inner()?;
        hashing.flush()?;
        Ok(hex(&hashing.digest.finalize()))
    }
}

fn write_image(
    configuration: &Value,
    layer: &str,
    layer_file: &Path,
    name: &ImageName,
    output: impl Write,
) -> Result<()> {
    let configuration = configuration.to_string();
    let configuration_name = format!("{}.json", hex(&Sha256::digest(&configuration)));
    let layer_name = format!("{layer}/layer.tar");
    let manifest =
        json!([{"Config": configuration_name, "RepoTags": [name.full()], "Layers": [layer_name]}])
            .to_string();
    let mut tar = tar::Builder::new(output);
    append(
        &mut tar,
        "manifest.json",
        0o644,
        manifest.len() as u64,
        manifest.as_bytes(),
    )?;
    append(
        &mut tar,
        &configuration_name,
        0o644,
        configuration.len() as u64,
        configuration.as_bytes(),
    )?;
    let layer = File::open(layer_file)?;
    let length = layer.metadata()?.len();
    append(&mut tar, &layer_name, 0o644, length, BufReader::new(layer))?;
    Ok(tar.into_inner()?.flush()?)
}

/// Owner, group and time are left zero, so that equal content gives equal bytes.
fn append(
    tar: &mut tar::Builder<impl Write>,
    path: &str,
    mode: u32,
    length: u64,
    content: impl Read,
) -> io::Result<()> {
    let mut header = tar::Header::new_gnu();
    header.set_size(length);
    header.set_mode(mode);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    tar.append_data(&mut header, path, content)
}

/// This machine's architecture in Docker's words.
fn architecture() -> &'static str {
    match std::env::consts::ARCH {
        "x86_64" => "amd64",
        "aarch64" => "arm64",
        other => other,
    }
}

/// Passes bytes on and digests them on the way.
struct Hashing<W> {
    inner: W,
    digest: Sha256,
}

impl<W: Write> Write for Hashing<W> {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let written = self.inner.write(bytes)?;
        self.digest.update(&bytes[..written]);
        Ok(written)
    }

    fn flush(&mut self) -> io::Result<()> {
        self.inner.flush()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn files_of(archive: &Path) -> std::collections::BTreeMap<String, Vec<u8>> {
        let mut tar = tar::Archive::new(File::open(archive).unwrap());
        let read = |entry: io::Result<tar::Entry<File>>| {
            let mut entry = entry.unwrap();
            let mut bytes = Vec::new();
            entry.read_to_end(&mut bytes).unwrap();
            (entry.path().unwrap().display().to_string(), bytes)
        };
        tar.entries().unwrap().map(read).collect()
    }

    proptest! {
        #[test]
        fn manifest_configuration_and_layer_name_each_other_by_digest(content in prop::collection::vec(any::<u8>(), 0..3000)) {
            let folder = tempfile::tempdir().unwrap();
            let (source, target) = (folder.path().join("program"), folder.path().join("image.tar"));
            fs::write(&source, &content).unwrap();
            let name = ImageName::new("pagoda/engine", "dev");
            Program::at(source, "/pagoda-engine").archive(&name, &target).unwrap();
            let files = files_of(&target);
            let manifest: Value = serde_json::from_slice(&files["manifest.json"]).unwrap();
            prop_assert_eq!(&manifest[0]["RepoTags"], &json!(["docker.io/pagoda/engine:dev"]));
            let configuration_name = manifest[0]["Config"].as_str().unwrap();
            let configuration = &files[configuration_name];
            prop_assert_eq!(format!("{}.json", hex(&Sha256::digest(configuration))), configuration_name);
            let configuration: Value = serde_json::from_slice(configuration).unwrap();
            let layer = &files[manifest[0]["Layers"][0].as_str().unwrap()];
            prop_assert_eq!(&configuration["rootfs"]["diff_ids"][0], &json!(format!("sha256:{}", hex(&Sha256::digest(layer)))));
            let mut inner = tar::Archive::new(layer.as_slice());
            let mut entry = inner.entries().unwrap().next().unwrap().unwrap();
            let path = entry.path().unwrap().into_owned();
            prop_assert_eq!(path, Path::new("pagoda-engine"));
            prop_assert_eq!(entry.header().mode().unwrap(), 0o755);
            let mut found = Vec::new();
            entry.read_to_end(&mut found).unwrap();
            prop_assert_eq!(found, content);
        }
    }

    #[test]
    fn the_digest_follows_the_content_and_nothing_else() {
        let folder = tempfile::tempdir().unwrap();
        let (one, two) = (folder.path().join("one"), folder.path().join("two"));
        fs::write(&one, "same").unwrap();
        fs::write(&two, "same").unwrap();
        let digest = |file: &PathBuf| Program::at(file.clone(), "/p").content_digest().unwrap();
        assert_eq!(digest(&one), digest(&two));
        assert_eq!(digest(&one).len(), 12);
        fs::write(&two, "other").unwrap();
        assert_ne!(digest(&one), digest(&two));
    }

    #[test]
    fn names_are_completed_as_containerd_completes_them() {
        assert_eq!(
            ImageName::parse("pagoda/engine:dev").unwrap().full(),
            "docker.io/pagoda/engine:dev"
        );
        assert_eq!(
            ImageName::parse("pause:1").unwrap().full(),
            "docker.io/library/pause:1"
        );
        assert_eq!(
            ImageName::parse("pagoda.local/model:q4").unwrap().full(),
            "pagoda.local/model:q4"
        );
        assert_eq!(
            ImageName::parse("localhost:5000/model:q4").unwrap().full(),
            "localhost:5000/model:q4"
        );
    }

    #[test]
    fn a_name_without_a_tag_is_refused() {
        for text in ["pagoda/engine", "localhost:5000/engine", ":dev", "engine:"] {
            assert!(
                ImageName::parse(text)
                    .unwrap_err()
                    .to_string()
                    .contains("REPOSITORY:TAG")
            );
        }
    }
}
