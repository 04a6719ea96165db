//! Puts images into the local cluster's containerd, each under a tag that names its content, so that a changed program
//! rolls its pods and an unchanged one is not imported again.

use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

use super::archive::{Archive, ImageName, Program};
use super::build::{PRODUCT_IMAGES, ProductImage, build_product};
use crate::cluster::{Cluster, Paths};
use crate::progress::Progress;

/// An image that the cluster has.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct LoadedImage {
    /// Such as `docker.io/pagoda/engine`.
    pub repository: String,
    /// Such as `dev-0123456789ab`.
    pub tag: String,
}

impl LoadedImage {
    /// `REPOSITORY:TAG` for a pod or the chart.
    pub fn reference(&self) -> String {
        format!("{}:{}", self.repository, self.tag)
    }
}

/// The product's images by name: `operator`, `gateway`, `engine`.
pub type LoadedImages = BTreeMap<String, LoadedImage>;

/// [`load_images`] of everything that the chart installs.
pub fn load_product(
    cluster: &Cluster,
    workspace: &Path,
    progress: &Progress,
) -> Result<LoadedImages> {
    load_images(cluster, workspace, &PRODUCT_IMAGES, progress)
}

/// Builds the programs of `images` from `workspace` and loads an image of each. Returns all that the cluster has by now,
/// and remembers it for [`recorded`].
pub fn load_images(
    cluster: &Cluster,
    workspace: &Path,
    images: &[ProductImage],
    progress: &Progress,
) -> Result<LoadedImages> {
    let mut loaded = recorded(cluster).unwrap_or_default();
    for (image, program) in build_product(workspace, images, progress)? {
        let archive = Program::at(program, &format!("/{}", image.package));
        let tag = format!("dev-{}", archive.content_digest()?);
        let name = ImageName::new(format!("pagoda/{}", image.name), tag);
        load(cluster, &archive, &name, progress)?;
        let newest = ImageName::new(name.repository.clone(), "dev");
        cluster.containerd().tag(&name.full(), &newest.full())?;
        let repository = format!("docker.io/{}", name.repository);
        loaded.insert(
            image.name.to_owned(),
            LoadedImage {
                repository,
                tag: name.tag,
            },
        );
    }
    let record = record_file(cluster.paths());
    fs::write(&record, serde_json::to_vec_pretty(&loaded)?)
        .with_context(|| format!("cannot write {}", record.display()))?;
    Ok(loaded)
}

/// Builds the product's programs from `workspace` and writes an archive of each image `pagoda/NAME:TAG` into `folder`.
pub fn write_product(
    workspace: &Path,
    folder: &Path,
    tag: &str,
    progress: &Progress,
) -> Result<Vec<PathBuf>> {
    fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))?;
    let write = |(image, program): (ProductImage, PathBuf)| {
        let file = folder.join(format!("pagoda-{}.tar", image.name));
        let name = ImageName::new(format!("pagoda/{}", image.name), tag);
        Program::at(program, &format!("/{}", image.package)).archive(&name, &file)?;
        Ok(file)
    };
    build_product(workspace, &PRODUCT_IMAGES, progress)?
        .into_iter()
        .map(write)
        .collect()
}

/// What the last [`load_product`] loaded into this cluster.
pub fn recorded(cluster: &Cluster) -> Result<LoadedImages> {
    let record = record_file(cluster.paths());
    let text = fs::read(&record).context("this cluster has none of the product's images yet: run `pagoda-e2e images build-load` first")?;
    serde_json::from_slice(&text).with_context(|| format!("cannot read {}", record.display()))
}

/// Loads an image called `name` that carries the model file `model` at `/model.gguf`. Returns the source that an
/// InferenceService names.
pub fn load_model(
    cluster: &Cluster,
    model: &Path,
    name: &ImageName,
    progress: &Progress,
) -> Result<String> {
    let archive = Archive::of_data(model.to_owned(), "/model.gguf");
    // The name is the caller's, so its content is remembered by a second one.
    let by_content = ImageName::new(
        name.repository.clone(),
        format!("content-{}", archive.content_digest()?),
    );
    load(cluster, &archive, &by_content, progress)?;
    cluster.containerd().tag(&by_content.full(), &name.full())?;
    Ok(format!("image://{}//model.gguf", name.short()))
}

/// Imports `archive` as `name` unless the cluster has an image of that name, which must say what is in it.
pub(super) fn load(
    cluster: &Cluster,
    archive: &Archive,
    name: &ImageName,
    progress: &Progress,
) -> Result<()> {
    let containerd = cluster.containerd();
    if containerd.images()?.contains(&name.full()) {
        progress.step(format!("image {} is there", name.short()));
        return Ok(());
    }
    let folder = cluster.paths().cache.images();
    fs::create_dir_all(&folder)?;
    let file: PathBuf = folder.join(format!(
        "{}-{}.tar",
        name.repository.replace(['/', ':'], "-"),
        std::process::id()
    ));
    archive.archive(name, &file)?;
    let bytes = fs::metadata(&file)?.len();
    let outcome = containerd.import(&file);
    fs::remove_file(&file).ok();
    outcome?;
    progress.step(format!(
        "image {} loaded ({:.1} MB)",
        name.short(),
        bytes as f64 / 1e6
    ));
    Ok(())
}

fn record_file(paths: &Paths) -> PathBuf {
    paths.root().join("images.json")
}
