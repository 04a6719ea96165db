//! Memory, budgeted before it is taken: how much there is, what is needed, and the refusal with its arithmetic.

use std::fmt;
use std::path::Path;

use pagoda_crds::wire::defaults::KV_BYTES;

use crate::cgroup::{self, CgroupVersion};

/// What a process needs beyond its model: the tokenizer, connections, the allocator's slack.
pub const PROCESS_BYTES: u64 = 48 << 20;

/// How much memory this process may take, and what says so.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MemoryLimit {
    /// Bytes, all that the process has already included.
    pub bytes: u64,
    /// What sets it.
    pub source: LimitSource,
}

/// What limits memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LimitSource {
    /// The container's limit.
    Cgroup,
    /// What the machine has free.
    Machine,
}

impl fmt::Display for LimitSource {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Cgroup => "cgroup limit",
            Self::Machine => "free memory of this machine",
        })
    }
}

/// What an engine will hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Demand {
    /// Weights as they lie in memory.
    pub weight_bytes: u64,
    /// Activations, and buffers while loading.
    pub working_bytes: u64,
    /// Bytes of one KV block over all layers.
    pub block_bytes: u64,
    /// Longest sequence.
    pub context_tokens: u64,
    /// Sequences at once.
    pub max_sequences: u64,
    /// Tokens in a block.
    pub block_tokens: u64,
}

/// Weights and KV do not fit.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error(
    "model {} + KV {} for {kv_tokens} tokens + working memory {} = {}, but the {} is {}: give the container more memory, or lower kvMemory or maxContextTokens",
    Bytes(*weight_bytes), Bytes(*kv_bytes), Bytes(*working_bytes), Bytes(weight_bytes.saturating_add(*kv_bytes).saturating_add(*working_bytes)), limit.source, Bytes(limit.bytes)
)]
pub struct OutOfMemory {
    /// Weights.
    pub weight_bytes: u64,
    /// All but weights and KV.
    pub working_bytes: u64,
    /// KV blocks.
    pub kv_bytes: u64,
    /// Tokens in those blocks.
    pub kv_tokens: u64,
    /// What there is.
    pub limit: MemoryLimit,
}

/// KV takes less than it would with more memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ShrunkKv {
    kv_bytes: u64,
    kv_tokens: u64,
    usual_bytes: u64,
    weight_bytes: u64,
    working_bytes: u64,
    limit: MemoryLimit,
}

impl fmt::Display for ShrunkKv {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "KV is {} for {} tokens instead of {}: the {} is {}, of which the model takes {} and working memory {}",
            Bytes(self.kv_bytes),
            self.kv_tokens,
            Bytes(self.usual_bytes),
            self.limit.source,
            Bytes(self.limit.bytes),
            Bytes(self.weight_bytes),
            Bytes(self.working_bytes),
        )
    }
}

impl OutOfMemory {
    fn total_bytes(&self) -> u64 {
        self.weight_bytes
            .saturating_add(self.kv_bytes)
            .saturating_add(self.working_bytes)
    }
}

/// Share of what weights and working memory leave that KV may take by default.
const DEFAULT_KV_SHARE: f64 = 0.6;

impl Demand {
    /// Blocks that all sequences at full length fill: more are never used.
    fn most_blocks(&self) -> u64 {
        self.context_tokens
            .div_ceil(self.block_tokens)
            .saturating_mul(self.max_sequences)
    }

    fn working_bytes(&self) -> u64 {
        self.working_bytes.saturating_add(PROCESS_BYTES)
    }

    /// How many KV blocks to make: as many as `kv_bytes` hold, and no more than can be used. Without `kv_bytes`: the
    /// API's default, less where that is more than a share of what is left of `limit`, but one sequence at full context
    /// in any case.
    ///
    /// Refuses when weights and those blocks exceed `limit`.
    pub fn plan_blocks(
        &self,
        kv_bytes: Option<u64>,
        limit: Option<MemoryLimit>,
    ) -> Result<u32, OutOfMemory> {
        let wanted = kv_bytes.unwrap_or_else(|| self.default_kv_bytes(limit));
        let most = self.most_blocks().clamp(1, u64::from(u32::MAX));
        let blocks = (wanted / self.block_bytes.max(1)).clamp(1, most);
        let refusal = OutOfMemory {
            weight_bytes: self.weight_bytes,
            working_bytes: self.working_bytes(),
            kv_bytes: blocks.saturating_mul(self.block_bytes),
            kv_tokens: blocks * self.block_tokens,
            limit: limit.unwrap_or(MemoryLimit {
                bytes: u64::MAX,
                source: LimitSource::Machine,
            }),
        };
        if refusal.total_bytes() > refusal.limit.bytes {
            Err(refusal)
        } else {
            Ok(blocks as u32)
        }
    }

    /// What to tell where `limit` made fewer `blocks` than would be made without it.
    pub fn shrunk(
        &self,
        blocks: u32,
        kv_bytes: Option<u64>,
        limit: Option<MemoryLimit>,
    ) -> Option<ShrunkKv> {
        let unlimited = self.plan_blocks(kv_bytes, None).ok()?;
        let limit = limit.filter(|_| unlimited > blocks)?;
        let bytes = |blocks: u32| u64::from(blocks).saturating_mul(self.block_bytes);
        Some(ShrunkKv {
            kv_bytes: bytes(blocks),
            kv_tokens: u64::from(blocks) * self.block_tokens,
            usual_bytes: bytes(unlimited),
            weight_bytes: self.weight_bytes,
            working_bytes: self.working_bytes(),
            limit,
        })
    }

    fn default_kv_bytes(&self, limit: Option<MemoryLimit>) -> u64 {
        let one_sequence = self
            .context_tokens
            .div_ceil(self.block_tokens)
            .saturating_mul(self.block_bytes);
        let usual = KV_BYTES.max(one_sequence);
        let Some(limit) = limit else { return usual };
        let left = limit
            .bytes
            .saturating_sub(self.weight_bytes)
            .saturating_sub(self.working_bytes());
        let share = (left as f64 * DEFAULT_KV_SHARE) as u64;
        usual.min(share).max(one_sequence)
    }
}

/// The memory this process may take: the tightest cgroup limit, or what the machine has free where there is none.
pub fn limit() -> Option<MemoryLimit> {
    let cgroup = cgroup_limit(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup"));
    let machine = std::fs::read_to_string("/proc/meminfo")
        .ok()
        .and_then(|text| available_bytes(&text));
    tightest(cgroup, machine)
}

/// A cgroup limit above what the machine has free limits nothing.
fn tightest(cgroup: Option<u64>, machine: Option<u64>) -> Option<MemoryLimit> {
    let candidates = [
        (cgroup, LimitSource::Cgroup),
        (machine, LimitSource::Machine),
    ];
    let limits = candidates.into_iter().filter_map(|(bytes, source)| {
        Some(MemoryLimit {
            bytes: bytes?,
            source,
        })
    });
    limits.min_by_key(|limit| limit.bytes)
}

fn cgroup_limit(proc_cgroup: &Path, mount: &Path) -> Option<u64> {
    let text = std::fs::read_to_string(proc_cgroup).ok()?;
    let limits = cgroup::folders(&text, mount, "memory")
        .into_iter()
        .filter_map(|(version, folder)| {
            let file = match version {
                CgroupVersion::V2 => "memory.max",
                CgroupVersion::V1 => "memory.limit_in_bytes",
            };
            limit_bytes(&std::fs::read_to_string(folder.join(file)).ok()?)
        });
    limits.min()
}

/// A number of bytes; `max` (version 2) and values near 2^63 (version 1) mean none.
fn limit_bytes(text: &str) -> Option<u64> {
    text.trim().parse().ok().filter(|bytes| *bytes < 1 << 60)
}

/// `MemAvailable` of `/proc/meminfo`, in bytes.
fn available_bytes(meminfo: &str) -> Option<u64> {
    let line = meminfo
        .lines()
        .find_map(|line| line.strip_prefix("MemAvailable:"))?;
    let kibibytes: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
    kibibytes.checked_mul(1024)
}

/// A size as a person reads it.
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = [(1u64 << 30, "GiB"), (1 << 20, "MiB"), (1 << 10, "KiB")];
        match units.into_iter().find(|(size, _)| self.0 >= *size) {
            Some((size, unit)) => write!(f, "{:.1} {unit}", self.0 as f64 / size as f64),
            None => write!(f, "{} B", self.0),
        }
    }
}

/// Reads `512Mi`, `2GiB`, `1.5G` or a plain number of bytes.
pub fn parse_bytes(text: &str) -> Result<u64, String> {
    let digits = text
        .find(|c: char| !c.is_ascii_digit() && c != '.')
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(digits);
    let factor: u64 = match unit
        .trim()
        .trim_end_matches(['B', 'b'])
        .to_ascii_lowercase()
        .as_str()
    {
        "" => 1,
        "k" => 1_000,
        "m" => 1_000_000,
        "g" => 1_000_000_000,
        "ki" => 1 << 10,
        "mi" => 1 << 20,
        "gi" => 1 << 30,
        _ => {
            return Err(format!(
                "{text:?} is no size: write 512Mi, 2Gi or a number of bytes"
            ));
        }
    };
    match number.parse::<f64>() {
        Ok(number) if number > 0.0 && number * (factor as f64) < 1e18 => {
            Ok((number * factor as f64) as u64)
        }
        _ => Err(format!(
            "{text:?} is no size: write 512Mi, 2Gi or a number of bytes"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const WORKING: u64 = 64 << 20;

    fn demand() -> Demand {
        Demand {
            weight_bytes: 4 << 30,
            working_bytes: WORKING - PROCESS_BYTES,
            block_bytes: 1 << 20,
            context_tokens: 8192,
            max_sequences: 8,
            block_tokens: 16,
        }
    }

    fn cgroup(bytes: u64) -> MemoryLimit {
        MemoryLimit {
            bytes,
            source: LimitSource::Cgroup,
        }
    }

    #[test]
    fn refuses_with_the_arithmetic() {
        let refusal = demand()
            .plan_blocks(Some(2 << 30), Some(cgroup(4 << 30)))
            .unwrap_err();
        assert_eq!(
            refusal.to_string(),
            "model 4.0 GiB + KV 2.0 GiB for 32768 tokens + working memory 64.0 MiB = 6.1 GiB, but the cgroup limit is 4.0 GiB: give the container more memory, or lower kvMemory or maxContextTokens"
        );
    }

    #[test]
    fn makes_the_blocks_that_the_memory_asked_for_holds() {
        assert_eq!(
            demand().plan_blocks(Some(100 << 20), Some(cgroup(8 << 30))),
            Ok(100)
        );
        assert_eq!(demand().plan_blocks(Some(1), None), Ok(1));
    }

    #[test]
    fn makes_no_more_blocks_than_all_sequences_can_fill() {
        assert_eq!(demand().plan_blocks(Some(1 << 50), None), Ok(4096));
        let small = Demand {
            max_sequences: 1,
            context_tokens: 32,
            ..demand()
        };
        assert_eq!(small.plan_blocks(None, None), Ok(2));
    }

    #[test]
    fn takes_the_apis_default_or_less_where_that_is_more_than_its_share() {
        let small = Demand {
            context_tokens: 1024,
            ..demand()
        };
        let blocks = |free_mib: u64| {
            let limit = cgroup((4 << 30) + WORKING + (free_mib << 20));
            small.plan_blocks(None, Some(limit))
        };
        assert_eq!((blocks(4096), blocks(500)), (Ok(512), Ok(300)));
    }

    #[test]
    fn says_that_kv_is_smaller_than_usual_and_why() {
        let small = Demand {
            context_tokens: 1024,
            ..demand()
        };
        let limit = Some(cgroup((4 << 30) + WORKING + (500 << 20)));
        let blocks = small.plan_blocks(None, limit).unwrap();
        assert_eq!(
            small.shrunk(blocks, None, limit).unwrap().to_string(),
            "KV is 300.0 MiB for 4800 tokens instead of 512.0 MiB: the cgroup limit is 4.6 GiB, of which the model takes 4.0 GiB and working memory 64.0 MiB"
        );
        let ample = Some(cgroup(64 << 30));
        let blocks = small.plan_blocks(None, ample).unwrap();
        assert_eq!(small.shrunk(blocks, None, ample), None);
        assert_eq!(small.shrunk(blocks, None, None), None);
    }

    #[test]
    fn by_default_tries_for_one_sequence_at_full_context_and_says_when_it_does_not_fit() {
        assert!(
            demand()
                .plan_blocks(None, Some(cgroup((4 << 30) + WORKING + (512 << 20))))
                .is_ok_and(|blocks| blocks == 512)
        );
        assert!(
            demand()
                .plan_blocks(None, Some(cgroup((4 << 30) + WORKING + (511 << 20))))
                .is_err()
        );
    }

    #[test]
    fn reads_limits_of_both_cgroup_versions() {
        assert_eq!(limit_bytes("1073741824\n"), Some(1 << 30));
        assert_eq!(limit_bytes("max\n"), None);
        assert_eq!(limit_bytes("9223372036854771712\n"), None);
    }

    #[test]
    fn the_tighter_of_cgroup_and_machine_counts() {
        assert_eq!(
            tightest(Some(5), Some(9)),
            Some(MemoryLimit {
                bytes: 5,
                source: LimitSource::Cgroup
            })
        );
        assert_eq!(
            tightest(None, Some(9)),
            Some(MemoryLimit {
                bytes: 9,
                source: LimitSource::Machine
            })
        );
        assert_eq!(
            available_bytes("MemTotal: 9 kB\nMemAvailable:   2048 kB\n"),
            Some(2 << 20)
        );
    }

    #[test]
    fn sizes_are_read_as_people_write_them() {
        assert_eq!(parse_bytes("512Mi"), Ok(512 << 20));
        assert_eq!(parse_bytes("2GiB"), Ok(2 << 30));
        assert_eq!(parse_bytes("1.5G"), Ok(1_500_000_000));
        assert_eq!(parse_bytes("1000"), Ok(1000));
        for wrong in ["", "-1", "12 parsecs", "Mi", "0"] {
            assert!(parse_bytes(wrong).is_err(), "{wrong}");
        }
    }
}
