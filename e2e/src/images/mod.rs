//! Images without a builder or a registry: a docker archive of one layer, made here, imported into the local cluster.

mod archive;
mod build;
mod llama_server;
mod load;

pub use archive::{Archive, ImageName, LayerFile, Program};
pub use build::{PRODUCT_IMAGES, ProductImage, build_product};
pub use llama_server::{LLAMA_SERVER_IMAGE, load_llama_server};
pub use load::{
    LoadedImage, LoadedImages, load_images, load_model, load_product, recorded, write_product,
};

/// Lower-case hexadecimal.
pub fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes
        .iter()
        .fold(String::with_capacity(bytes.len() * 2), |mut text, byte| {
            let _ = write!(text, "{byte:02x}");
            text
        })
}
