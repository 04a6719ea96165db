//! Keys of full blocks: a keyed hash of all tokens up to a block's end.
//!
//! Keys find blocks; they prove nothing. A hit also compares the block's tokens and its predecessor ([`crate::blocks`]), so
//! even somebody who knows the seed and makes two prompts collide gets no other block than his own.

use std::hash::Hasher as _;

use siphasher::sip128::{Hasher128 as _, SipHasher13};

use crate::scope::CacheScope;

/// Names the content of a full block: its tokens, all tokens before them, and the scope.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct BlockKey(pub u128);

/// Key of the hash. Pods that share stored blocks need the same one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct KeySeed([u64; 2]);

pub(crate) fn finish(hasher: &SipHasher13) -> u128 {
    let hash = hasher.finish128();
    u128::from(hash.h1) << 64 | u128::from(hash.h2)
}

impl KeySeed {
    /// The seed of this name, such as a service's: all of its pods come to the same one.
    pub fn of_name(name: &str) -> Self {
        let mut hasher = SipHasher13::new_with_keys(0x7061_676f_6461_5f6b, 0x6579_735f_7631_0000);
        hasher.write(name.as_bytes());
        let hash = hasher.finish128();
        Self([hash.h1, hash.h2])
    }

    /// The key before the first block.
    pub fn root(self, scope: CacheScope) -> BlockKey {
        let mut hasher = self.hasher();
        hasher.write(&scope.bits().to_le_bytes());
        BlockKey(finish(&hasher))
    }

    /// The key of a block of `tokens` after the one of key `before`.
    pub fn next(self, before: BlockKey, tokens: &[u32]) -> BlockKey {
        let mut hasher = self.hasher();
        hasher.write(&before.0.to_le_bytes());
        for token in tokens {
            hasher.write(&token.to_le_bytes());
        }
        BlockKey(finish(&hasher))
    }

    /// Appends the keys of the full blocks of `tokens` that `keys` lacks. `keys` are those of the same tokens' first blocks.
    pub fn extend(
        self,
        keys: &mut Vec<BlockKey>,
        scope: CacheScope,
        tokens: &[u32],
        block_tokens: usize,
    ) {
        let mut before = keys.last().copied().unwrap_or_else(|| self.root(scope));
        for block in tokens.chunks_exact(block_tokens).skip(keys.len()) {
            before = self.next(before, block);
            keys.push(before);
        }
    }

    fn hasher(self) -> SipHasher13 {
        SipHasher13::new_with_keys(self.0[0], self.0[1])
    }
}

impl Default for KeySeed {
    fn default() -> Self {
        Self::of_name("")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn keys(seed: KeySeed, scope: CacheScope, tokens: &[u32]) -> Vec<BlockKey> {
        let mut keys = Vec::new();
        seed.extend(&mut keys, scope, tokens, 4);
        keys
    }

    #[test]
    fn a_key_depends_on_all_tokens_before_and_on_none_after() {
        let tokens: Vec<u32> = (0..16).collect();
        let (seed, scope) = (KeySeed::default(), CacheScope::default());
        let whole = keys(seed, scope, &tokens);
        assert_eq!(whole.len(), 4);
        for changed in 0..16 {
            let mut other = tokens.clone();
            other[changed] += 100;
            let other = keys(seed, scope, &other);
            for block in 0..4 {
                assert_eq!(
                    whole[block] == other[block],
                    block < changed / 4,
                    "{changed} {block}"
                );
            }
        }
    }

    #[test]
    fn keys_grow_with_the_tokens_and_partial_blocks_have_none() {
        let tokens: Vec<u32> = (0..15).collect();
        let (seed, scope) = (KeySeed::default(), CacheScope::default());
        let mut grown = Vec::new();
        for len in 0..=15 {
            seed.extend(&mut grown, scope, &tokens[..len], 4);
            assert_eq!(grown.len(), len / 4);
        }
        assert_eq!(grown, keys(seed, scope, &tokens));
    }

    #[test]
    fn seeds_and_scopes_share_no_key() {
        let tokens: Vec<u32> = (0..8).collect();
        let scope = CacheScope::of(&crate::scope::ScopeParts {
            weight_version: 1,
            ..Default::default()
        });
        let all = [
            keys(KeySeed::of_name("ns/a"), CacheScope::default(), &tokens),
            keys(KeySeed::of_name("ns/b"), CacheScope::default(), &tokens),
            keys(KeySeed::of_name("ns/a"), scope, &tokens),
        ];
        assert!(all[0] != all[1] && all[0] != all[2] && all[1] != all[2]);
        // Committed: another machine, another day, the same key.
        let again = keys(KeySeed::of_name("ns/a"), CacheScope::default(), &tokens);
        assert_eq!(all[0], again);
    }
}
