//! `pagoda-loadgen`: see `pagoda-loadgen --help`.

use clap::Parser;
use pagoda_e2e::loadgen::{self, LoadgenArgs};

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    loadgen::main(LoadgenArgs::parse()).await
}
