//! Where this process's cgroup lies in the file system, for both cgroup versions.

use std::path::{Path, PathBuf};

/// Which set of files a cgroup folder has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CgroupVersion {
    /// A controller has its own tree: `/sys/fs/cgroup/memory/...`.
    V1,
    /// One tree for all: `/sys/fs/cgroup/...`.
    V2,
}

/// Folders that limit this process, from its own cgroup up to the root, by the text of `/proc/self/cgroup`.
///
/// Inside a container the path is often that of the host and leads nowhere: then only the mount's root exists, which is
/// the container's own cgroup. Folders that do not exist are harmless, so all are returned.
pub fn folders(proc_cgroup: &str, mount: &Path, controller: &str) -> Vec<(CgroupVersion, PathBuf)> {
    proc_cgroup
        .lines()
        .filter_map(|line| root_and_path(line, mount, controller))
        .flat_map(ancestors)
        .collect()
}

/// One line is `ID:CONTROLLERS:PATH`; version 2 has the id 0 and no controllers.
fn root_and_path(
    line: &str,
    mount: &Path,
    controller: &str,
) -> Option<(CgroupVersion, PathBuf, PathBuf)> {
    let mut fields = line.splitn(3, ':');
    let (id, controllers, path) = (fields.next()?, fields.next()?, fields.next()?);
    let path = PathBuf::from(path.trim_start_matches('/'));
    if id == "0" && controllers.is_empty() {
        return Some((CgroupVersion::V2, mount.to_path_buf(), path));
    }
    controllers
        .split(',')
        .any(|name| name == controller)
        .then(|| (CgroupVersion::V1, mount.join(controller), path))
}

fn ancestors(
    (version, root, path): (CgroupVersion, PathBuf, PathBuf),
) -> Vec<(CgroupVersion, PathBuf)> {
    path.ancestors()
        .map(|part| (version, root.join(part)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn paths(text: &str) -> Vec<(CgroupVersion, String)> {
        let folders = folders(text, Path::new("/c"), "memory");
        folders
            .into_iter()
            .map(|(version, path)| (version, path.to_string_lossy().trim_end_matches('/').into()))
            .collect()
    }

    #[test]
    fn walks_from_the_own_cgroup_to_the_root() {
        let expected = [
            (CgroupVersion::V2, "/c/a/b".into()),
            (CgroupVersion::V2, "/c/a".into()),
            (CgroupVersion::V2, "/c".into()),
        ];
        assert_eq!(paths("0::/a/b\n"), expected);
    }

    #[test]
    fn finds_the_controller_of_version_1_among_others() {
        let text = "5:cpu,cpuacct:/x\n4:memory:/a\n";
        assert_eq!(
            paths(text),
            [
                (CgroupVersion::V1, "/c/memory/a".into()),
                (CgroupVersion::V1, "/c/memory".into())
            ]
        );
    }

    #[test]
    fn garbage_gives_nothing() {
        assert_eq!(paths("nonsense\n\n:::\n"), []);
    }
}
