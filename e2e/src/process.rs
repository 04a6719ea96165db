//! Processes by identity: a pid alone may have been recycled, a pid with its start time has not.

use std::ffi::OsString;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::thread::sleep;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::process::{Pid, PidfdFlags, Signal, pidfd_open, pidfd_send_signal};
use serde::{Deserialize, Serialize};

const POLL: Duration = Duration::from_millis(20);
/// USER_HZ, which is 100 on every architecture that Rust and Kubernetes share.
const TICKS_PER_SECOND: u64 = 100;

/// One process, told apart from any later one with the same pid by its start time in clock ticks since boot.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
pub struct ProcessIdentity {
    /// Process id.
    pub pid: i32,
    /// Field 22 of `/proc/PID/stat`.
    pub start_ticks: u64,
}

impl ProcessIdentity {
    /// The process that has `pid` now; `None` when there is none, or only a zombie that nobody has collected.
    pub fn observe(pid: i32) -> Option<Self> {
        let stat = parse_stat(&fs::read_to_string(format!("/proc/{pid}/stat")).ok()?)?;
        (!matches!(stat.state, 'Z' | 'X')).then_some(Self {
            pid,
            start_ticks: stat.start_ticks,
        })
    }

    /// Whether this very process still runs.
    pub fn is_alive(self) -> bool {
        Self::observe(self.pid) == Some(self)
    }

    /// Sends `signal` to this process and to no other, even when the pid is recycled in between: the pidfd is taken
    /// first and the identity checked after. A process that is gone is no error.
    pub fn signal(self, signal: Signal) -> Result<()> {
        let Some(pid) = Pid::from_raw(self.pid) else {
            return Ok(());
        };
        let Ok(handle) = pidfd_open(pid, PidfdFlags::empty()) else {
            return Ok(());
        };
        if !self.is_alive() {
            return Ok(());
        }
        match pidfd_send_signal(&handle, signal) {
            Ok(()) | Err(rustix::io::Errno::SRCH) => Ok(()),
            Err(error) => Err(error).with_context(|| format!("cannot signal process {}", self.pid)),
        }
    }

    /// Resident memory in bytes; 0 for a process that is gone.
    pub fn resident_bytes(self) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.pid)).unwrap_or_default();
        let kib = status.lines().find_map(|line| {
            line.strip_prefix("VmRSS:")?
                .trim()
                .split(' ')
                .next()?
                .parse::<u64>()
                .ok()
        });
        kib.unwrap_or(0) * 1024
    }

    /// Processor time used so far, user and system together; zero for a process that is gone.
    pub fn cpu_time(self) -> Duration {
        let text = fs::read_to_string(format!("/proc/{}/stat", self.pid)).unwrap_or_default();
        let stat = parse_stat(&text).filter(|stat| stat.start_ticks == self.start_ticks);
        stat.map_or(Duration::ZERO, |stat| {
            Duration::from_millis(stat.cpu_ticks * 1000 / TICKS_PER_SECOND)
        })
    }
}

struct Stat {
    state: char,
    cpu_ticks: u64,
    start_ticks: u64,
}

/// The command name (field 2) is in parentheses and may itself hold spaces and parentheses, so fields count from the
/// last closing one.
fn parse_stat(text: &str) -> Option<Stat> {
    let mut fields = text.get(text.rfind(')')? + 1..)?.split_ascii_whitespace();
    let state = fields.next()?.chars().next()?;
    let mut field = |skipped: usize| fields.nth(skipped)?.parse::<u64>().ok();
    let cpu_ticks = field(10)? + field(0)?;
    let start_ticks = field(6)?;
    Some(Stat {
        state,
        cpu_ticks,
        start_ticks,
    })
}

/// Ends all of `processes`: SIGTERM, up to `grace` for them to go, then SIGKILL. Fails when one outlives that by 5 s.
pub fn terminate(processes: &[ProcessIdentity], grace: Duration) -> Result<()> {
    for (signal, patience) in [
        (Signal::TERM, grace),
        (Signal::KILL, Duration::from_secs(5)),
    ] {
        for process in processes {
            process.signal(signal)?;
        }
        if wait_gone(processes, patience) {
            return Ok(());
        }
    }
    let left: Vec<i32> = processes
        .iter()
        .filter(|process| process.is_alive())
        .map(|process| process.pid)
        .collect();
    bail!(
        "processes {left:?} did not end 5 s after SIGKILL: look at them with `ps -o pid,stat,wchan,args -p PID`"
    )
}

fn wait_gone(processes: &[ProcessIdentity], patience: Duration) -> bool {
    let deadline = Instant::now() + patience;
    loop {
        if !processes.iter().any(|process| process.is_alive()) {
            return true;
        }
        if Instant::now() >= deadline {
            return false;
        }
        sleep(POLL);
    }
}

/// Every live process in the network namespace that `netns` (a file such as `/run/netns/NAME`) holds.
pub fn in_network_namespace(netns: &Path) -> Result<Vec<ProcessIdentity>> {
    let Ok(wanted) = fs::metadata(netns) else {
        return Ok(Vec::new());
    };
    let same = |pid: &i32| {
        fs::metadata(format!("/proc/{pid}/ns/net"))
            .is_ok_and(|ns| (ns.ino(), ns.dev()) == (wanted.ino(), wanted.dev()))
    };
    Ok(all_pids()?
        .into_iter()
        .filter(same)
        .filter_map(ProcessIdentity::observe)
        .collect())
}

fn all_pids() -> Result<Vec<i32>> {
    let entries = fs::read_dir("/proc").context("cannot list /proc")?;
    Ok(entries
        .flatten()
        .filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .collect())
}

/// Runs `command` to its end and returns its standard output. A failure names the command and quotes its error output.
pub fn run(command: &mut Command) -> Result<String> {
    let output = run_for_output(command)?;
    if output.status.success() {
        return Ok(String::from_utf8_lossy(&output.stdout).into_owned());
    }
    let said = String::from_utf8_lossy(&output.stderr);
    bail!(
        "`{}` failed ({}): {}",
        command_line(command),
        output.status,
        said.trim()
    )
}

/// Like [`run`], but a non-zero exit is the caller's to judge.
pub fn run_for_output(command: &mut Command) -> Result<Output> {
    command
        .output()
        .with_context(|| format!("cannot start `{}`", command_line(command)))
}

/// The command as one would type it, without quoting.
pub fn command_line(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    words
        .map(|word| word.to_string_lossy())
        .collect::<Vec<_>>()
        .join(" ")
}

/// Starts `arguments` (program first) in a session of its own, so that it outlives this program and its terminal, with
/// exactly the environment `environment`, appending its output to `log`. It is no child of ours: whoever reaps orphans
/// reaps it, and a long-lived caller keeps no zombies.
pub fn spawn_detached(
    arguments: &[OsString],
    environment: &[(&str, String)],
    log: &Path,
) -> Result<ProcessIdentity> {
    // Descriptors that the caller's shell hands down stay behind: a lock that one of them holds would be held for as long
    // as the program runs.
    let script = r#"exec 3>&- 4>&- 5>&- 6>&- 7>&- 8>&- 9>&-; log=$1; shift; setsid "$@" </dev/null >>"$log" 2>&1 & echo $!"#;
    let mut command = Command::new("sh");
    command
        .args(["-c", script, "sh"])
        .arg(log)
        .args(arguments)
        .current_dir("/")
        .env_clear();
    command.envs(environment.iter().map(|(name, value)| (*name, value)));
    let pid = run(&mut command)?
        .trim()
        .parse()
        .context("the shell did not say which process it started")?;
    ProcessIdentity::observe(pid).with_context(|| {
        let program = arguments
            .first()
            .map(|word| word.to_string_lossy().into_owned())
            .unwrap_or_default();
        format!("{program} ended at once: see {}", log.display())
    })
}

/// The debug build of one of the workspace's programs, beside the running test or benchmark.
pub fn debug_program(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe().context("this program has no path")?;
    let folder = own.ancestors().find(|folder| folder.ends_with("debug"));
    let folder =
        folder.with_context(|| format!("this program is no debug build: name that of {name}"))?;
    Ok(folder.join(name))
}

/// Finds `name` on `PATH` and in the folders where Debian keeps administration programs.
pub fn find_program(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    let administration = ["/usr/local/sbin", "/usr/sbin", "/sbin"].map(std::path::PathBuf::from);
    std::env::split_paths(&path)
        .chain(administration)
        .map(|folder| folder.join(name))
        .find(|file| file.is_file())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_start_time_after_a_command_name_with_spaces_and_parentheses() {
        let text = "42 (a) b (c)) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 987654 20 21";
        let stat = parse_stat(text).unwrap();
        assert_eq!(
            (stat.state, stat.cpu_ticks, stat.start_ticks),
            ('S', 11 + 12, 987_654)
        );
    }

    #[test]
    fn refuses_a_stat_line_that_is_cut_short() {
        assert!(parse_stat("42 (sh) S 1 2 3").is_none());
        assert!(parse_stat("").is_none());
    }

    #[test]
    fn a_recycled_pid_is_not_the_process_and_is_never_signalled() {
        let me = ProcessIdentity::observe(std::process::id().cast_signed()).unwrap();
        assert!(me.is_alive());
        let earlier = ProcessIdentity {
            start_ticks: me.start_ticks - 1,
            ..me
        };
        assert!(!earlier.is_alive());
        // Were it signalled, this test would not live to return.
        earlier.signal(Signal::KILL).unwrap();
    }

    #[test]
    fn terminate_kills_a_process_that_ignores_sigterm() {
        let mut child = Command::new("sh")
            .args(["-c", "trap '' TERM; while :; do sleep 0.05; done"])
            .spawn()
            .unwrap();
        let identity = ProcessIdentity::observe(child.id().cast_signed()).unwrap();
        terminate(&[identity], Duration::from_millis(200)).unwrap();
        assert!(!identity.is_alive());
        child.wait().unwrap();
    }

    #[test]
    fn a_failed_command_is_named_and_its_error_output_quoted() {
        let error = run(Command::new("sh").args(["-c", "echo no such thing >&2; exit 3"]))
            .unwrap_err()
            .to_string();
        assert!(
            error.contains("sh -c") && error.contains("no such thing"),
            "{error}"
        );
    }
}
