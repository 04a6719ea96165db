//! The processes behind a pod. The local cluster's pods are processes of this machine, found by their cgroup, so that a test
//! can do to them what the kernel's out-of-memory killer would.

use std::fs;
use std::process::Command;

use anyhow::{Result, ensure};

/// SIGKILL to every process called `program` in the pod with this uid; there must be one.
pub fn kill_nine(pod_uid: &str, program: &str) -> Result<()> {
    let pids = pids_in_pod(pod_uid, program)?;
    ensure!(!pids.is_empty(), "pod {pod_uid} has no process {program}");
    for pid in pids {
        let status = Command::new("kill")
            .args(["-9", &pid.to_string()])
            .status()?;
        ensure!(status.success(), "kill -9 {pid} failed");
    }
    Ok(())
}

fn pids_in_pod(pod_uid: &str, program: &str) -> Result<Vec<u32>> {
    let mut pids = Vec::new();
    for entry in fs::read_dir("/proc")? {
        let name = entry?.file_name();
        let Some(pid) = name.to_str().and_then(|name| name.parse::<u32>().ok()) else {
            continue;
        };
        // A process may end between the listing and the look at it.
        let cgroup = fs::read_to_string(format!("/proc/{pid}/cgroup")).unwrap_or_default();
        let command = fs::read_to_string(format!("/proc/{pid}/comm")).unwrap_or_default();
        if is_of_pod(&cgroup, pod_uid) && command.trim() == cut_to_comm(program) {
            pids.push(pid);
        }
    }
    Ok(pids)
}

/// The kernel keeps 15 bytes of a program's name.
fn cut_to_comm(program: &str) -> &str {
    &program[..program.len().min(15)]
}

/// The cgroupfs driver writes the uid as it is, the systemd driver with underscores.
fn is_of_pod(cgroup: &str, pod_uid: &str) -> bool {
    cgroup.contains(&format!("pod{pod_uid}"))
        || cgroup.contains(&format!("pod{}", pod_uid.replace('-', "_")))
}
