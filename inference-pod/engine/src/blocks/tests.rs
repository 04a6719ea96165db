use std::collections::HashMap;

use super::*;
use crate::keys::KeySeed;
use proptest::prelude::*;

const BLOCK: usize = 16;
const SCOPE: CacheScope = CacheScope::DEFAULT;

/// A sequence over a pool, as the scheduler keeps it.
#[derive(Default)]
struct Chain {
    tokens: Vec<u32>,
    keys: Vec<BlockKey>,
    table: BlockTable,
}

impl Chain {
    /// Takes blocks for all of `tokens`, kept ones first, and returns how many were found.
    fn begin(pool: &BlockPool, tokens: Vec<u32>, block_tokens: usize) -> (Self, usize) {
        let mut chain = Self {
            tokens,
            ..Self::default()
        };
        KeySeed::default().extend(&mut chain.keys, SCOPE, &chain.tokens, block_tokens);
        let found = chain
            .table
            .adopt(pool, SCOPE, &chain.keys, &chain.tokens, block_tokens);
        assert!(
            chain
                .table
                .grow_to(chain.tokens.len().div_ceil(block_tokens), pool)
        );
        (chain, found)
    }

    fn publish(&mut self, block_tokens: usize) {
        self.table
            .publish(SCOPE, &self.keys, &self.tokens, block_tokens);
    }
}

#[test]
fn dropping_a_table_returns_its_blocks() {
    let pool = BlockPool::new(10);
    let mut table = BlockTable::default();
    assert!(table.grow_to(4, &pool));
    assert_eq!((table.ids(), pool.free()), ([0, 1, 2, 3].as_slice(), 6));
    drop(table);
    assert_eq!(pool.free(), 10);
}

#[test]
fn a_table_that_cannot_grow_takes_nothing() {
    let pool = BlockPool::new(3);
    let (mut first, mut second) = (BlockTable::default(), BlockTable::default());
    assert!(first.grow_to(2, &pool));
    assert!(!second.grow_to(2, &pool));
    assert_eq!((second.ids().len(), pool.free()), (0, 1));
}

/// vLLM's `test_prefill`, without its null block: our ids are one less.
#[test]
fn blocks_are_shared_freed_and_reused_in_the_order_of_vllms_vector() {
    let pool = BlockPool::new(10);
    let common: Vec<u32> = (0..48).collect();
    let with = |rest: u32| [common.clone(), vec![rest; 7]].concat();
    let (mut first, found) = Chain::begin(&pool, with(3), BLOCK);
    assert_eq!((first.table.ids(), found), ([0, 1, 2, 3].as_slice(), 0));
    first.publish(BLOCK);
    let (mut second, found) = Chain::begin(&pool, with(4), BLOCK);
    assert_eq!((second.table.ids(), found), ([0, 1, 2, 4].as_slice(), 3));
    second.publish(BLOCK);
    drop(first);
    drop(second);
    assert_eq!(pool.free_order(), [4, 3, 5, 6, 7, 8, 9, 2, 1, 0]);
    assert_eq!(
        pool.state(),
        PoolState {
            total: 10,
            free: 10,
            idle: 3,
            evictions: 0
        }
    );
}

#[test]
fn the_tail_of_a_kept_chain_is_given_up_before_its_head() {
    let pool = BlockPool::new(4);
    let tokens: Vec<u32> = (0..12).collect();
    let (mut chain, _) = Chain::begin(&pool, tokens.clone(), 4);
    chain.publish(4);
    drop(chain);
    // One block was never used; each further one shortens what is found by one.
    let mut taken = Vec::new();
    for left in [3, 2, 1, 0] {
        taken.push(pool.allocate().unwrap());
        let mut keys = Vec::new();
        KeySeed::default().extend(&mut keys, SCOPE, &tokens, 4);
        let found = pool.look(SCOPE, &keys, &tokens, 4);
        assert_eq!((found.blocks, found.idle), (left, left));
    }
    assert_eq!(pool.state().evictions, 3);
}

#[test]
fn the_same_content_computed_twice_is_kept_once() {
    let pool = BlockPool::new(8);
    let tokens: Vec<u32> = (0..12).collect();
    let (mut one, _) = Chain::begin(&pool, tokens.clone(), 4);
    let (mut two, found) = Chain::begin(&pool, tokens, 4);
    assert_eq!((found, pool.free()), (0, 2));
    one.publish(4);
    two.publish(4);
    assert_eq!((one.table.ids(), pool.free()), (two.table.ids(), 5));
    assert_eq!(one.table.freeable(), 0, "the other still reads them");
    drop(two);
    assert_eq!(one.table.freeable(), 3);
}

#[test]
fn colliding_keys_cost_a_hit_and_never_give_another_content() {
    let pool = BlockPool::new(8);
    let key = BlockKey(1);
    let publish = |tokens: &[u32], before| {
        let content = Content {
            key,
            scope: SCOPE,
            before,
            tokens,
        };
        pool.allocate().unwrap().complete(content).publish()
    };
    let kept = publish(&[1, 2], Link::ROOT).unwrap();
    assert!(publish(&[1, 3], Link::ROOT).is_err(), "other tokens");
    assert!(
        publish(&[1, 2], kept.link()).is_err(),
        "another predecessor"
    );
    let look = |scope, before, tokens| {
        pool.find(&Content {
            key,
            scope,
            before,
            tokens,
        })
        .map(|block| block.id())
    };
    assert_eq!(look(SCOPE, Link::ROOT, &[1, 2]), Some(kept.id()));
    assert_eq!(look(SCOPE, Link::ROOT, &[2, 1]), None);
    assert_eq!(look(SCOPE, kept.link(), &[1, 2]), None);
    let other = CacheScope::of(&crate::scope::ScopeParts {
        tenant_salt: b"x",
        ..Default::default()
    });
    assert_eq!(look(other, Link::ROOT, &[1, 2]), None);
}

#[test]
fn a_successor_of_a_block_that_was_given_up_is_not_found_behind_its_replacement() {
    let pool = BlockPool::new(3);
    let content = |key, before, tokens| Content {
        key: BlockKey(key),
        scope: SCOPE,
        before,
        tokens,
    };
    let head = pool
        .allocate()
        .unwrap()
        .complete(content(1, Link::ROOT, &[1]))
        .publish()
        .unwrap();
    let tail = pool
        .allocate()
        .unwrap()
        .complete(content(2, head.link(), &[2]))
        .publish()
        .unwrap();
    drop(head);
    // The head's block is the second of the free ones: both are taken, and its key is used for another content.
    let (_spare, reused) = (pool.allocate().unwrap(), pool.allocate().unwrap());
    let impostor = reused
        .complete(content(1, Link::ROOT, &[9]))
        .publish()
        .unwrap();
    assert!(pool.find(&content(2, impostor.link(), &[2])).is_none());
    drop(tail);
}

/// A pool so plain that it is its own proof: vectors, searched from the front.
#[derive(Default)]
struct Naive {
    free: Vec<u32>,
    owners: HashMap<u32, usize>,
    /// Block by all tokens up to its end.
    kept: HashMap<Vec<u32>, u32>,
}

impl Naive {
    fn allocate(&mut self) -> Option<u32> {
        if self.free.is_empty() {
            return None;
        }
        let id = self.free.remove(0);
        self.kept.retain(|_, kept| *kept != id);
        self.owners.insert(id, 1);
        Some(id)
    }

    fn share(&mut self, id: u32) {
        self.free.retain(|free| *free != id);
        *self.owners.entry(id).or_insert(0) += 1;
    }

    fn release(&mut self, id: u32) {
        let owners = self.owners.get_mut(&id).unwrap();
        *owners -= 1;
        if *owners == 0 {
            if self.kept.values().any(|kept| *kept == id) {
                self.free.push(id);
            } else {
                self.free.insert(0, id);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Operation {
    /// A sequence of this many tokens of a small alphabet begins and is computed.
    Begin(Vec<u32>),
    /// The nth sequence ends.
    End(usize),
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let begin = prop::collection::vec(0u32..2, 1..14).prop_map(Operation::Begin);
    prop::collection::vec(
        prop_oneof![3 => begin, 2 => (0usize..8).prop_map(Operation::End)],
        1..120,
    )
}

/// Begins the same sequence in the plain pool; `None` where it does not fit.
fn begin_naive(naive: &mut Naive, tokens: &[u32], block: usize) -> Vec<u32> {
    let mut ids = Vec::new();
    for end in (block..=tokens.len()).step_by(block) {
        let Some(id) = naive.kept.get(&tokens[..end]).copied() else {
            break;
        };
        naive.share(id);
        ids.push(id);
    }
    while ids.len() < tokens.len().div_ceil(block) {
        ids.push(naive.allocate().unwrap());
    }
    for (place, id) in ids.iter().enumerate() {
        let end = (place + 1) * block;
        if end <= tokens.len() {
            naive.kept.entry(tokens[..end].to_vec()).or_insert(*id);
        }
    }
    ids
}

proptest! {
    #[test]
    fn does_what_a_plain_pool_does(operations in operations()) {
        let (pool, mut naive) = (BlockPool::new(12), Naive { free: (0..12).collect(), ..Naive::default() });
        let mut running: Vec<(Chain, Vec<u32>)> = Vec::new();
        for operation in operations {
            match operation {
                Operation::Begin(tokens) => {
                    if tokens.len().div_ceil(2) > pool.free() {
                        continue;
                    }
                    let ids = begin_naive(&mut naive, &tokens, 2);
                    let (mut chain, _) = Chain::begin(&pool, tokens, 2);
                    chain.publish(2);
                    prop_assert_eq!(chain.table.ids(), &ids);
                    running.push((chain, ids));
                }
                Operation::End(nth) if !running.is_empty() => {
                    let nth = nth % running.len();
                    let (chain, ids) = running.remove(nth);
                    drop(chain);
                    // The chain's own blocks first, then the shared ones, each from the end.
                    let full = |id: &&u32| naive_keeps(&naive, **id);
                    let own: Vec<u32> = ids.iter().rev().filter(|id| !full(id)).copied().collect();
                    let shared: Vec<u32> = ids.iter().rev().filter(full).copied().collect();
                    own.into_iter().chain(shared).for_each(|id| naive.release(id));
                }
                Operation::End(_) => {}
            }
            let mut owned: Vec<u32> = running.iter().flat_map(|(_, ids)| ids.clone()).collect();
            owned.sort_unstable();
            owned.dedup();
            prop_assert_eq!(pool.free() + owned.len(), 12, "free and used are all");
            prop_assert_eq!(pool.free_order(), naive.free.clone());
        }
    }
}

fn naive_keeps(naive: &Naive, id: u32) -> bool {
    naive.kept.values().any(|kept| *kept == id)
}
