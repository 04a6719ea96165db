//! Whether the machine is quiet enough to measure on.

use std::fs;
use std::thread::sleep;
use std::time::Duration;

use anyhow::{Context, Result};

const SAMPLE: Duration = Duration::from_millis(500);
/// Cores that others may use before a comparison says more about them than about the engines: threads that wait for one
/// another by spinning, as llama.cpp's do, lose most of their speed when one of them has no core.
pub const TOLERATED_BUSY_CORES: f64 = 0.25;

/// How many cores are busy now, while this program only waits.
pub fn busy_cores() -> Result<f64> {
    let before = CpuTicks::now()?;
    sleep(SAMPLE);
    let cores = std::thread::available_parallelism().map_or(1, usize::from);
    Ok(CpuTicks::now()?.busy_share_since(&before) * cores as f64)
}

/// Clock ticks of all cores together since boot.
#[derive(Debug, Clone, Copy)]
struct CpuTicks {
    idle: u64,
    total: u64,
}

impl CpuTicks {
    fn now() -> Result<Self> {
        let text = fs::read_to_string("/proc/stat").context("cannot read /proc/stat")?;
        Self::parse(&text).context("/proc/stat has no line of all cores")
    }

    /// The first line: user, nice, system, idle, iowait, irq, softirq, steal; what follows is in user already.
    fn parse(text: &str) -> Option<Self> {
        let line = text.lines().next()?.strip_prefix("cpu ")?;
        let ticks: Vec<u64> = line
            .split_whitespace()
            .take(8)
            .map(str::parse)
            .collect::<Result<_, _>>()
            .ok()?;
        let idle = ticks.get(3)? + ticks.get(4)?;
        Some(Self {
            idle,
            total: ticks.iter().sum(),
        })
    }

    fn busy_share_since(self, before: &Self) -> f64 {
        let total = self.total.saturating_sub(before.total);
        let idle = self.idle.saturating_sub(before.idle).min(total);
        if total == 0 {
            0.0
        } else {
            (total - idle) as f64 / total as f64
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn time_idle_or_waiting_for_a_disk_is_not_busy_and_guests_are_not_counted_twice() {
        let before = CpuTicks::parse("cpu  100 0 100 1000 0 0 0 0 50 0\ncpu0 1 2 3\n").unwrap();
        let after = CpuTicks::parse("cpu  150 10 110 1020 10 0 0 0 90 0\n").unwrap();
        assert!((after.busy_share_since(&before) - 0.7).abs() < 1e-9);
    }

    #[test]
    fn no_time_between_two_looks_is_no_load() {
        let ticks = CpuTicks::parse("cpu  1 2 3 4 5 6 7 8\n").unwrap();
        assert!(ticks.busy_share_since(&ticks).abs() < 1e-9);
        assert!(CpuTicks::parse("intr 1 2 3\n").is_none());
    }
}
