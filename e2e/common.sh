# Sourced by ./demo, ./test and ./bench: where things are kept, what must be installed, how a step reports itself.
# Nothing here runs on sourcing but the settings below.

repo_root="$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)"
export PAGODA_CACHE_DIR="${PAGODA_CACHE_DIR:-$HOME/.cache/pagoda}"
export CARGO_TARGET_DIR="${CARGO_TARGET_DIR:-$PAGODA_CACHE_DIR/target}"
log_dir="$PAGODA_CACHE_DIR/logs"

bold="" dim="" red="" green="" plain=""
if [[ -t 1 && -z "${NO_COLOR:-}" ]]; then
    bold=$'\e[1m' dim=$'\e[2m' red=$'\e[31m' green=$'\e[32m' plain=$'\e[0m'
fi

say() { printf '%s\n' "$*"; }
fail() { printf '%s\n' "${red}error:${plain} $*" >&2; exit 1; }

# What this machine must have before anything can be built. What Debian packages is installed, saying so.
ensure_build_tools() {
    local packages=()
    command -v cc >/dev/null || packages+=(gcc libc6-dev)
    command -v git >/dev/null || packages+=(git)
    command -v curl >/dev/null || packages+=(curl)
    install_packages "${packages[@]}"
    # rustup's directory is not on the PATH of a shell that was open when it was installed.
    command -v cargo >/dev/null || PATH="$HOME/.cargo/bin:$PATH"
    command -v go >/dev/null || PATH="/usr/local/go/bin:$PATH"
    command -v cargo >/dev/null || fail "cargo is missing: install Rust with rustup (https://rustup.rs), then run this again"
    command -v go >/dev/null || fail "go is missing: install Go 1.24 or newer (https://go.dev/dl), then run this again"
    command -v python3 >/dev/null || fail "python3 is missing: install Python 3.10 or newer, then run this again"
    # Debian's python3 brings neither; the model comes by pip, and a benchmark's peers into an environment of their own.
    python3 -m pip --version >/dev/null 2>&1 || install_packages python3-pip
    python3 -c 'import ensurepip' 2>/dev/null || install_packages python3-venv
    claim_build_cache
}

# install_packages NAME...: apt-get install of what is not installed yet.
install_packages() {
    local missing=() package
    for package in "$@"; do
        dpkg-query -W -f='${Status}' "$package" 2>/dev/null | grep -q 'install ok installed' || missing+=("$package")
    done
    ((${#missing[@]})) || return 0
    command -v apt-get >/dev/null || fail "these packages are missing and there is no apt-get to install them: ${missing[*]}"
    [[ $EUID -eq 0 ]] || fail "these Debian packages are missing, and only root can install them: ${missing[*]}"
    say "installing Debian packages: ${missing[*]}"
    mkdir -p "$log_dir"
    { apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends "${missing[@]}"; } \
        >"$log_dir/apt.log" 2>&1 || fail "apt-get failed; see $log_dir/apt.log"
}

# Cargo names what it builds from a clone the same in every clone, and tells by time alone what is new. So the cache must
# know whose it is: another clone's sources count as changed, or its older products would pass for this one's.
claim_build_cache() {
    local owner="$CARGO_TARGET_DIR/checkout"
    [[ -f "$owner" && "$(<"$owner")" == "$repo_root" ]] && return 0
    mkdir -p "$CARGO_TARGET_DIR"
    git -C "$repo_root" ls-files -z | (cd "$repo_root" && xargs -0 touch -c --)
    printf '%s' "$repo_root" >"$owner"
}

host_triple() { rustc -vV | sed -n 's/^host: //p'; }

# Where build_programs leaves the programs.
programs_dir() { printf '%s\n' "$CARGO_TARGET_DIR/$(host_triple)/release"; }

# Builds all programs in one go, with the flags of the images: one resolution of features, nothing compiled twice.
# The images' own build then finds everything done.
build_programs() {
    local triple variable
    triple="$(host_triple)"
    variable="CARGO_TARGET_$(tr 'a-z-' 'A-Z_' <<<"$triple")_RUSTFLAGS"
    env -u RUSTFLAGS -u CARGO_ENCODED_RUSTFLAGS "$variable=-C target-feature=+crt-static" \
        cargo build --release --locked --target "$triple" \
        --package pagoda-operator --package pagoda-gateway --package pagoda-engine --package pagoda-cli --package pagoda-e2e
}
