//! How many threads compute: what the container's CPU quota and the process's affinity allow.

use std::path::Path;

use crate::cgroup::{self, CgroupVersion};

/// Threads to compute with: the CPUs this process may use, cut to its quota.
///
/// A quota of 1.5 CPUs gives two threads: they are throttled a quarter of the time and still do half as much again
/// as one.
pub fn available() -> usize {
    let allowed = std::fs::read_to_string("/proc/self/status")
        .ok()
        .and_then(|status| allowed_cpus(&status));
    let allowed = allowed.or_else(|| std::thread::available_parallelism().ok().map(usize::from));
    combine(
        allowed,
        quota(Path::new("/proc/self/cgroup"), Path::new("/sys/fs/cgroup")),
    )
}

/// The number of threads for `allowed` CPUs and a quota in CPUs.
fn combine(allowed: Option<usize>, quota: Option<f64>) -> usize {
    let allowed = allowed.unwrap_or(1).max(1);
    quota.map_or(allowed, |cpus| allowed.min((cpus.ceil() as usize).max(1)))
}

/// Counts the list in `Cpus_allowed_list: 0-3,8` of `/proc/self/status`.
fn allowed_cpus(status: &str) -> Option<usize> {
    let list = status
        .lines()
        .find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    list.trim().split(',').map(range_len).sum()
}

fn range_len(range: &str) -> Option<usize> {
    let (first, last) = range.split_once('-').unwrap_or((range, range));
    let (first, last): (usize, usize) = (first.trim().parse().ok()?, last.trim().parse().ok()?);
    last.checked_sub(first)?.checked_add(1)
}

/// The tightest CPU quota on the way from this process's cgroup to the root, in CPUs.
fn quota(proc_cgroup: &Path, mount: &Path) -> Option<f64> {
    let text = std::fs::read_to_string(proc_cgroup).ok()?;
    let quotas =
        cgroup::folders(&text, mount, "cpu")
            .into_iter()
            .filter_map(|(version, folder)| {
                let read = |file: &str| std::fs::read_to_string(folder.join(file)).ok();
                match version {
                    CgroupVersion::V2 => quota_v2(&read("cpu.max")?),
                    CgroupVersion::V1 => {
                        quota_v1(&read("cpu.cfs_quota_us")?, &read("cpu.cfs_period_us")?)
                    }
                }
            });
    quotas.reduce(f64::min)
}

/// `cpu.max`: `QUOTA PERIOD` in microseconds, or `max PERIOD`.
fn quota_v2(text: &str) -> Option<f64> {
    let mut words = text.split_whitespace();
    ratio(words.next()?, words.next()?)
}

/// `cpu.cfs_quota_us` and `cpu.cfs_period_us`; a quota of -1 means none.
fn quota_v1(quota: &str, period: &str) -> Option<f64> {
    ratio(quota.trim(), period.trim())
}

fn ratio(quota: &str, period: &str) -> Option<f64> {
    let (quota, period): (f64, f64) = (quota.parse().ok()?, period.parse().ok()?);
    (quota > 0.0 && period > 0.0).then(|| quota / period)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_quotas_of_both_cgroup_versions() {
        assert_eq!(quota_v2("150000 100000\n"), Some(1.5));
        assert_eq!(quota_v2("max 100000\n"), None);
        assert_eq!(quota_v2(""), None);
        assert_eq!(quota_v1("50000\n", "100000\n"), Some(0.5));
        assert_eq!(quota_v1("-1\n", "100000\n"), None);
        assert_eq!(quota_v1("1", "0"), None);
    }

    #[test]
    fn counts_the_cpus_of_an_affinity_list() {
        assert_eq!(
            allowed_cpus("Name:\tx\nCpus_allowed_list:\t0-3,8,10-11\n"),
            Some(7)
        );
        assert_eq!(allowed_cpus("Cpus_allowed_list:\t5\n"), Some(1));
        assert_eq!(allowed_cpus("Cpus_allowed_list:\t3-1\n"), None);
        assert_eq!(allowed_cpus("Name:\tx\n"), None);
    }

    #[test]
    fn a_quota_rounds_up_and_never_exceeds_the_affinity() {
        assert_eq!(combine(Some(8), None), 8);
        assert_eq!(combine(Some(8), Some(1.5)), 2);
        assert_eq!(combine(Some(8), Some(0.25)), 1);
        assert_eq!(combine(Some(2), Some(16.0)), 2);
        assert_eq!(combine(None, None), 1);
    }

    #[test]
    fn the_tightest_ancestor_counts() {
        let mount = tempfile::tempdir().unwrap();
        let pod = mount.path().join("kubepods/pod1");
        std::fs::create_dir_all(pod.join("container")).unwrap();
        std::fs::write(pod.join("cpu.max"), "100000 100000").unwrap();
        std::fs::write(pod.join("container/cpu.max"), "max 100000").unwrap();
        let proc_cgroup = mount.path().join("self");
        std::fs::write(&proc_cgroup, "0::/kubepods/pod1/container\n").unwrap();
        assert_eq!(quota(&proc_cgroup, mount.path()), Some(1.0));
    }

    #[test]
    fn this_machine_offers_at_least_one_thread() {
        assert!(available() >= 1);
    }
}
