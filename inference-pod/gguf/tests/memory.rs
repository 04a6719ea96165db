//! What a header costs in memory, whatever it states. One test, for all allocations of the process are counted.

use pagoda_gguf::Gguf;
use peak_alloc::PeakAlloc;

#[global_allocator]
static ALLOCATOR: PeakAlloc = PeakAlloc;

/// Most bytes allocated while reading, for each byte of the file. An empty string is 8 bytes there and 24 here, and a vector
/// that grows holds twice what it has.
const MOST_A_BYTE: usize = 12;

/// A file of one kind of item only, as small as that kind can be.
struct Bomb {
    name: &'static str,
    bytes: Vec<u8>,
}

fn header(tensors: u64, entries: u64) -> Vec<u8> {
    let mut bytes = b"GGUF\x03\0\0\0".to_vec();
    bytes.extend(tensors.to_le_bytes());
    bytes.extend(entries.to_le_bytes());
    bytes
}

fn array(element: u32, count: u64, item: &[u8]) -> Vec<u8> {
    let mut bytes = header(0, 1);
    bytes.extend(1_u64.to_le_bytes());
    bytes.push(b'k');
    bytes.extend(9_u32.to_le_bytes());
    bytes.extend(element.to_le_bytes());
    bytes.extend(count.to_le_bytes());
    bytes.extend(item.repeat(count as usize));
    bytes
}

fn bombs() -> Vec<Bomb> {
    let empty_array: Vec<u8> = [0_u32.to_le_bytes().as_slice(), &0_u64.to_le_bytes()].concat();
    let entries = |count: u64| {
        let mut bytes = header(0, count);
        for index in 0..count {
            bytes.extend(4_u64.to_le_bytes());
            bytes.extend((index as u32).to_le_bytes().map(|byte| byte & 0x7f));
            bytes.extend(0_u32.to_le_bytes());
            bytes.push(1);
        }
        bytes
    };
    let tensors = |count: u64| {
        let mut bytes = header(count, 0);
        for index in 0..count {
            bytes.extend(4_u64.to_le_bytes());
            bytes.extend(format!("{index:04x}").into_bytes());
            bytes.extend(1_u32.to_le_bytes());
            bytes.extend(1_u64.to_le_bytes());
            bytes.extend(0_u32.to_le_bytes());
            bytes.extend((index * 32).to_le_bytes());
        }
        bytes
    };
    vec![
        Bomb {
            name: "empty strings",
            bytes: array(8, 300_000, &0_u64.to_le_bytes()),
        },
        Bomb {
            name: "empty arrays",
            bytes: array(9, 200_000, &empty_array),
        },
        Bomb {
            name: "bytes",
            bytes: array(0, 3_000_000, &[7]),
        },
        Bomb {
            name: "entries of the metadata",
            bytes: entries(100),
        },
        Bomb {
            name: "tensors without data",
            bytes: tensors(50_000),
        },
        // Counts that nothing follows: the file's end is what bounds them.
        Bomb {
            name: "a count of tensors alone",
            bytes: [header(60_000, 0), vec![0; 2_000_000]].concat(),
        },
        Bomb {
            name: "a count of entries alone",
            bytes: [header(0, 150_000), vec![0xff; 2_000_000]].concat(),
        },
    ]
}

#[test]
fn memory_is_a_small_multiple_of_the_file_whatever_the_header_states() {
    for Bomb { name, bytes } in bombs() {
        let before = ALLOCATOR.current_usage();
        ALLOCATOR.reset_peak_usage();
        let parsed = Gguf::parse(&bytes);
        let taken = ALLOCATOR.peak_usage().saturating_sub(before);
        assert!(
            taken <= bytes.len() * MOST_A_BYTE + (1 << 16),
            "{name}: {taken} bytes for a file of {} ({:?})",
            bytes.len(),
            parsed.map(|_| ())
        );
    }
    // The head of a file that is said to be vast: nothing is reserved for what was not read.
    let head = array(8, 30_000_000, &[]);
    ALLOCATOR.reset_peak_usage();
    let before = ALLOCATOR.current_usage();
    assert!(Gguf::parse_head(&head, 1 << 40).is_err());
    assert!(ALLOCATOR.peak_usage().saturating_sub(before) < 1 << 16);
}
