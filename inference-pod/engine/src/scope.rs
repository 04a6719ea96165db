//! What a stored key and value depend on besides the tokens before it.

use siphasher::sip128::SipHasher13;

use crate::keys::finish;

/// Names a set of sequences that may read each other's KV blocks. Blocks of different scopes are never mixed, whatever
/// their tokens. The default is the scope of the weights alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct CacheScope(u128);

/// What sets a scope apart.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ScopeParts<'a> {
    /// A secret of the tenant's that the server derived; empty where all clients may share. Without one, a client can
    /// learn by timing whether another sent a prompt that begins the same.
    pub tenant_salt: &'a [u8],
    /// Name and version of the adapter over the weights; empty without.
    pub adapter: &'a str,
    /// Version of the weights, where they change under a running engine.
    pub weight_version: u64,
    /// Layers that are skipped, one bit each.
    pub skip_mask: u128,
}

impl CacheScope {
    /// The scope of the weights alone.
    pub const DEFAULT: Self = Self(0);

    /// The scope of these parts: 128 bits of a hash in which each part has its own place.
    pub fn of(parts: &ScopeParts<'_>) -> Self {
        use std::hash::Hasher as _;
        if *parts == ScopeParts::default() {
            return Self::default();
        }
        let mut hasher = SipHasher13::new_with_keys(0x7061_676f_6461_5f73, 0x636f_7065_5f76_3100);
        // Lengths first: no byte can move from one part to its neighbour.
        for part in [parts.tenant_salt, parts.adapter.as_bytes()] {
            hasher.write(&(part.len() as u64).to_le_bytes());
            hasher.write(part);
        }
        hasher.write(&parts.weight_version.to_le_bytes());
        hasher.write(&parts.skip_mask.to_le_bytes());
        Self(finish(&hasher))
    }

    /// Its bits.
    pub fn bits(self) -> u128 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashSet;

    #[test]
    fn every_part_makes_a_scope_of_its_own() {
        let default = ScopeParts::default();
        let all = [
            default,
            ScopeParts {
                tenant_salt: b"a",
                ..default
            },
            ScopeParts {
                adapter: "a",
                ..default
            },
            ScopeParts {
                tenant_salt: b"ab",
                ..default
            },
            ScopeParts {
                tenant_salt: b"a",
                adapter: "b",
                ..default
            },
            ScopeParts {
                weight_version: 1,
                ..default
            },
            ScopeParts {
                skip_mask: 1,
                ..default
            },
            ScopeParts {
                skip_mask: 1 << 64,
                ..default
            },
        ];
        let scopes: HashSet<CacheScope> = all.iter().map(CacheScope::of).collect();
        assert_eq!(scopes.len(), all.len());
        assert_eq!(CacheScope::of(&default), CacheScope::default());
    }

    #[test]
    fn pods_of_one_service_agree_on_a_scope() {
        let parts = ScopeParts {
            tenant_salt: b"salt",
            adapter: "adapter",
            weight_version: 7,
            skip_mask: 5,
        };
        assert_eq!(CacheScope::of(&parts), CacheScope::of(&parts));
    }
}
