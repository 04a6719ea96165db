//! The cache in the hands of many.

use std::fs::{self, File};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime};

use tempfile::TempDir;

use super::folder::{CacheFolder, MODEL};
use super::{Cache, fetch_cached};
use crate::error::FetchError;
use crate::fetch::{FetchRequest, Fetched};
use crate::lock::{self, ModelLock};
use crate::uri::{ModelUri, PlainHttp};

struct Bed {
    folder: TempDir,
    cache: Cache,
}

impl Bed {
    fn new(cap_bytes: u64) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let directory = folder.path().join("cache");
        super::prepare(&directory).unwrap();
        let protect = Duration::ZERO;
        Self {
            folder,
            cache: Cache {
                directory,
                cap_bytes,
                protect,
            },
        }
    }

    /// A model of this size at the source, and its request.
    fn source(&self, name: char, bytes: usize) -> FetchRequest {
        let path = self.folder.path().join(name.to_string());
        fs::write(&path, vec![name as u8; bytes]).unwrap();
        let uri = format!("file://{}", path.display());
        let uri = ModelUri::parse(&uri, PlainHttp::LoopbackOnly).unwrap();
        FetchRequest::new(uri, PathBuf::new())
    }

    async fn fetch(&self, name: char, bytes: usize) -> Result<(PathBuf, Fetched), FetchError> {
        let request = self.source(name, bytes);
        fetch_cached(&request, &self.cache, &key(name), |_| ()).await
    }

    fn has(&self, name: char) -> bool {
        self.cache.directory.join(key(name)).join(MODEL).exists()
    }

    /// Makes a model one that was last asked for so long ago.
    fn age(&self, name: char, seconds: u64) {
        let marker = self.cache.directory.join(key(name)).join("used");
        let then = SystemTime::now() - Duration::from_secs(seconds);
        File::options()
            .write(true)
            .open(marker)
            .unwrap()
            .set_modified(then)
            .unwrap();
    }
}

fn key(name: char) -> String {
    format!("{:02x}", name as u8).repeat(32)
}

/// Bytes of models that lie in a directory, whole or in part.
fn bytes_in(directory: &Path) -> u64 {
    let folders = fs::read_dir(directory)
        .unwrap()
        .map(|entry| entry.unwrap().path());
    let files = folders
        .filter_map(|folder| fs::read_dir(folder).ok())
        .flatten();
    let models = files.filter_map(Result::ok).filter(|file| {
        let name = file.file_name();
        name == MODEL || name == "model.gguf.partial"
    });
    models
        .filter_map(|file| Some(file.metadata().ok()?.len()))
        .sum()
}

#[tokio::test]
async fn a_model_is_fetched_once_and_then_found() {
    let bed = Bed::new(1000);
    let (path, first) = bed.fetch('a', 400).await.unwrap();
    assert_eq!(path, bed.cache.directory.join(key('a')).join(MODEL));
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o777;
    assert_eq!(mode(&path), 0o644, "others read it and do not change it");
    assert_eq!(mode(path.parent().unwrap()), 0o777, "others may evict it");
    assert!(!first.was_present);
    fs::remove_file(bed.folder.path().join("a")).unwrap();
    let request = FetchRequest {
        sha256: Some(first.sha256),
        ..FetchRequest::new(
            ModelUri::parse("file:///gone", PlainHttp::LoopbackOnly).unwrap(),
            "",
        )
    };
    let (_, second) = fetch_cached(&request, &bed.cache, &key('a'), |_| ())
        .await
        .unwrap();
    assert!(second.was_present);
    assert_eq!(fs::read(path).unwrap(), vec![b'a'; 400]);
}

#[tokio::test]
async fn a_model_that_is_not_as_it_was_downloaded_is_fetched_again() {
    let bed = Bed::new(1000);
    let (path, _) = bed.fetch('a', 400).await.unwrap();
    File::options()
        .write(true)
        .open(&path)
        .unwrap()
        .set_len(399)
        .unwrap();
    assert!(!bed.fetch('a', 400).await.unwrap().1.was_present);
    assert_eq!(fs::metadata(&path).unwrap().len(), 400);
    fs::remove_file(path.with_file_name("entry.json")).unwrap();
    assert!(
        !bed.fetch('a', 400).await.unwrap().1.was_present,
        "nobody vouches for it"
    );
}

#[tokio::test]
async fn the_longest_unasked_makes_room_first() {
    let bed = Bed::new(1000);
    for (name, age) in [('a', 10), ('b', 30), ('c', 20)] {
        bed.fetch(name, 300).await.unwrap();
        bed.age(name, age);
    }
    bed.fetch('d', 300).await.unwrap();
    assert_eq!(
        ['a', 'b', 'c', 'd'].map(|name| bed.has(name)),
        [true, false, true, true]
    );
    // Asking for it makes a model the newest.
    bed.age('d', 15);
    bed.fetch('c', 300).await.unwrap();
    bed.fetch('e', 600).await.unwrap();
    assert_eq!(
        ['a', 'c', 'd', 'e'].map(|name| bed.has(name)),
        [false, true, false, true]
    );
    assert!(
        !bed.cache.directory.join(key('a')).exists(),
        "its folder is gone too"
    );
}

#[tokio::test]
async fn a_model_that_is_served_stays_whatever_is_needed() {
    let bed = Bed::new(1000);
    let (path, _) = bed.fetch('a', 600).await.unwrap();
    bed.age('a', 5000);
    let served = ModelLock::hold(&path).unwrap();
    let error = bed.fetch('b', 600).await.unwrap_err();
    assert!(matches!(error, FetchError::DiskFull { .. }));
    assert!(
        error.to_string().contains("600 are of models being served"),
        "{error}"
    );
    assert!(bed.has('a'));
    drop(served);
    bed.fetch('b', 600).await.unwrap();
    assert!(!bed.has('a'));
}

#[tokio::test]
async fn a_model_that_a_pod_is_about_to_load_stays_for_a_while() {
    let mut bed = Bed::new(1000);
    bed.cache.protect = super::PROTECTED;
    bed.fetch('a', 600).await.unwrap();
    let error = bed.fetch('b', 600).await.unwrap_err();
    assert!(error.to_string().contains("about to load"), "{error}");
    bed.age('a', 601);
    bed.fetch('b', 600).await.unwrap();
    assert!(!bed.has('a'));
}

#[tokio::test]
async fn nothing_goes_where_that_would_not_be_enough_and_the_arithmetic_is_told() {
    let bed = Bed::new(1000);
    bed.fetch('a', 300).await.unwrap();
    let (path, _) = bed.fetch('b', 600).await.unwrap();
    let _served = ModelLock::hold(&path).unwrap();
    let error = bed.fetch('c', 500).await.unwrap_err();
    assert!(
        error
            .to_string()
            .contains("100 bytes are missing for a model of 500"),
        "{error}"
    );
    assert!(bed.has('a') && bed.has('b'));
    let error = bed.fetch('d', 1001).await.unwrap_err();
    assert!(
        error.to_string().contains("1001 bytes") && error.to_string().contains("may hold 1000"),
        "{error}"
    );
}

#[tokio::test]
async fn what_others_put_into_the_directory_is_left_alone() {
    let bed = Bed::new(1000);
    bed.fetch('a', 600).await.unwrap();
    let theirs = [
        bed.cache.directory.join("notes.txt"),
        bed.cache.directory.join(key('a')).join("notes.txt"),
    ];
    for path in &theirs {
        fs::write(path, "x").unwrap();
    }
    fs::create_dir(bed.cache.directory.join("folder")).unwrap();
    bed.fetch('b', 600).await.unwrap();
    assert!(!bed.has('a'));
    assert!(theirs.iter().all(|path| path.exists()));
    assert!(bed.cache.directory.join("folder").exists());
}

#[tokio::test]
async fn a_part_that_nobody_goes_on_with_counts_and_can_go() {
    let bed = Bed::new(1000);
    let folder = CacheFolder::new(&bed.cache.directory)
        .model(&key('a'))
        .unwrap();
    fs::write(folder.model_path().with_extension("gguf.partial"), [0; 700]).unwrap();
    folder.reserve(900).unwrap();
    folder.touch().unwrap();
    bed.fetch('b', 200).await.unwrap();
    assert!(
        folder.model_path().with_extension("gguf.partial").exists(),
        "700 and 200 fit"
    );
    bed.fetch('c', 200).await.unwrap();
    assert_eq!(['b', 'c'].map(|name| bed.has(name)), [true, true]);
    assert!(!bed.cache.directory.join(key('a')).exists());
}

#[tokio::test]
async fn what_is_reserved_for_a_download_under_way_is_not_given_away() {
    let bed = Bed::new(1000);
    let folder = CacheFolder::new(&bed.cache.directory)
        .model(&key('a'))
        .unwrap();
    let held = folder.try_hold().unwrap().unwrap();
    folder.reserve(900).unwrap();
    let error = bed.fetch('b', 200).await.unwrap_err();
    assert!(
        error.to_string().contains("900 of downloads under way"),
        "{error}"
    );
    drop(held);
    bed.fetch('b', 200).await.unwrap();
}

#[tokio::test]
async fn a_key_is_never_a_path() {
    let bed = Bed::new(1000);
    let request = bed.source('a', 1);
    for key in ["", "..", "../../etc", &"A".repeat(64), &"g".repeat(64)] {
        fetch_cached(&request, &bed.cache, key, |_| ())
            .await
            .unwrap_err();
    }
}

/// Removes a lock file while others wait for it, again and again: two holders at a time would be seen.
#[test]
fn a_lock_that_is_removed_is_never_held_twice() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("lock");
    let inside = AtomicU64::new(0);
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (path, inside) = (&path, &inside);
            scope.spawn(move || {
                for round in 0..300 {
                    let held = lock::exclusive_at(path, lock::open_shared).unwrap();
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    // The last thing that a holder does.
                    if (round + thread) % 3 == 0 {
                        fs::remove_file(path).unwrap();
                    }
                    drop(held);
                }
            });
        }
    });
}

/// Many fetches of a few models, more than fit, some of them dropped midway, some models held: at no moment is the cap
/// exceeded, and what is brought is whole.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn the_cap_holds_whoever_fetches_what() {
    const BYTES: usize = 3 << 20;
    let bed = Arc::new(Bed::new(10 << 20));
    let names = ['a', 'b', 'c', 'd', 'e', 'f'];
    let requests: Arc<Vec<FetchRequest>> =
        Arc::new(names.iter().map(|&name| bed.source(name, BYTES)).collect());
    let over = Arc::new(AtomicBool::new(false));
    let watching = std::thread::spawn({
        let (bed, over) = (bed.clone(), over.clone());
        move || {
            let mut most = 0;
            while !over.load(Ordering::SeqCst) {
                // Downloads go on meanwhile; only what goes does not go while the rest is being counted.
                let _accounts = CacheFolder::new(&bed.cache.directory).accounts().unwrap();
                most = most.max(bytes_in(&bed.cache.directory));
            }
            most
        }
    });
    let workers = (0..12_usize).map(|worker| {
        let (bed, requests) = (bed.clone(), requests.clone());
        tokio::spawn(async move {
            let mut brought = 0;
            for round in 0..12_usize {
                let which = (worker * 7 + round * 5 + round * round) % names.len();
                let key = key(names[which]);
                let fetching = fetch_cached(&requests[which], &bed.cache, &key, |_| ());
                if (worker + round).is_multiple_of(5) {
                    // As if the pod were deleted.
                    let _ = tokio::time::timeout(Duration::from_millis(3), fetching).await;
                    continue;
                }
                match fetching.await {
                    Ok((path, fetched)) => {
                        assert_eq!(fetched.bytes, BYTES as u64);
                        // Evicted since: another pod's turn.
                        let Ok(_held) = ModelLock::hold(&path) else {
                            continue;
                        };
                        let bytes = fs::read(&path).unwrap();
                        assert!(
                            bytes.len() == BYTES
                                && bytes.iter().all(|&byte| byte == names[which] as u8)
                        );
                        brought += 1;
                    }
                    Err(FetchError::DiskFull { .. }) => {}
                    Err(error) => panic!("{error}"),
                }
            }
            brought
        })
    });
    let mut brought = 0;
    for worker in workers.collect::<Vec<_>>() {
        brought += worker.await.unwrap();
    }
    over.store(true, Ordering::SeqCst);
    let most = watching.join().unwrap();
    assert!(most <= 10 << 20, "{most} bytes at a moment");
    assert!(most > BYTES as u64, "{most}: the watcher saw nothing");
    assert!(brought > 20, "{brought}");
}
