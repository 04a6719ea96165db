//! Rows by key, and by the service that they belong to.

use std::{
    collections::HashMap,
    hash::{DefaultHasher, Hash, Hasher},
    sync::{PoisonError, RwLock, RwLockReadGuard, RwLockWriteGuard},
};

use crate::key::Key;

/// Rows of one kind. Values are shared, so that reading one copies nothing.
#[derive(Debug)]
pub struct Table<V>(RwLock<Rows<V>>);

#[derive(Debug)]
struct Rows<V> {
    rows: HashMap<Key, Row<V>>,
    /// Rows of a service that do not bear its name; most rows do, and are found by it.
    of_service: HashMap<Key, Vec<Key>>,
}

#[derive(Debug)]
struct Row<V> {
    service: Option<Key>,
    version: u64,
    epoch: u32,
    value: V,
}

/// What is kept of an object.
#[derive(Clone, Debug)]
pub struct Kept<V> {
    /// Its key.
    pub key: Key,
    /// The service that it belongs to.
    pub service: Option<Key>,
    /// Its `resourceVersion`.
    pub version: String,
    /// The rest.
    pub value: V,
}

/// What a write changed.
#[derive(Debug, PartialEq, Eq)]
pub enum Change<V> {
    /// That version was known.
    Nothing,
    /// Not known before.
    New,
    /// Known before, as this, and as a part of that service.
    Replaced(V, Option<Key>),
}

impl<V> Default for Table<V> {
    fn default() -> Self {
        Self(RwLock::new(Rows {
            rows: HashMap::new(),
            of_service: HashMap::new(),
        }))
    }
}

impl<V: Clone> Table<V> {
    /// One value.
    pub fn get(&self, key: &Key) -> Option<V> {
        self.read().rows.get(key).map(|row| row.value.clone())
    }

    /// Whether there is such a row.
    pub fn contains(&self, key: &Key) -> bool {
        self.read().rows.contains_key(key)
    }

    /// All values of a service, by name.
    pub fn of(&self, service: &Key) -> Vec<(Key, V)> {
        let rows = self.read();
        let found = rows
            .of(service)
            .map(|(key, row)| (key.clone(), row.value.clone()));
        let mut found: Vec<_> = found.collect();
        found.sort_by(|(a, _), (b, _)| a.cmp(b));
        found
    }

    /// All values of a service, in the order in which they came.
    pub fn values_of(&self, service: &Key) -> Vec<V> {
        let rows = self.read();
        rows.of(service).map(|(_, row)| row.value.clone()).collect()
    }

    /// All values.
    pub fn all(&self) -> Vec<V> {
        self.read().rows.values().map(|r| r.value.clone()).collect()
    }

    /// Rows that pass a test, with their services.
    pub fn entries_where(&self, test: impl Fn(&V) -> bool) -> Vec<(Option<Key>, V)> {
        let rows = self.read();
        let passing = rows.rows.values().filter(|row| test(&row.value));
        passing
            .map(|row| (row.service.clone(), row.value.clone()))
            .collect()
    }

    /// All keys with their values.
    pub fn entries(&self) -> Vec<(Key, V)> {
        let rows = self.read();
        let all = rows.rows.iter();
        all.map(|(key, row)| (key.clone(), row.value.clone()))
            .collect()
    }

    /// Number of rows.
    pub fn len(&self) -> usize {
        self.read().rows.len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Keeps an object. Epochs count readings of everything.
    pub fn put(&self, kept: Kept<V>, epoch: u32) -> Change<V> {
        let mut rows = self.write();
        let version = digest(&kept.version);
        if let Some(row) = rows.rows.get_mut(&kept.key)
            && row.version == version
        {
            row.epoch = epoch;
            return Change::Nothing;
        }
        let before = rows.take(&kept.key);
        let service = kept.service.map(|service| rows.link(service, &kept.key));
        let row = Row {
            service,
            version,
            epoch,
            value: kept.value,
        };
        rows.rows.insert(kept.key, row);
        before.map_or(Change::New, |row| Change::Replaced(row.value, row.service))
    }

    /// Forgets an object, and says what it was and whose.
    pub fn remove(&self, key: &Key) -> Option<(V, Option<Key>)> {
        let row = self.write().take(key)?;
        Some((row.value, row.service))
    }

    /// Forgets what a reading of everything within a namespace did not find.
    pub fn sweep(&self, namespace: Option<&str>, epoch: u32) -> Vec<(Key, V, Option<Key>)> {
        let mut rows = self.write();
        let gone: Vec<Key> = rows
            .rows
            .iter()
            .filter(|(key, row)| row.epoch != epoch && key.is_within(namespace))
            .map(|(key, _)| key.clone())
            .collect();
        gone.into_iter()
            .filter_map(|key| rows.take(&key).map(|row| (key, row.value, row.service)))
            .collect()
    }

    fn read(&self) -> RwLockReadGuard<'_, Rows<V>> {
        self.0.read().unwrap_or_else(PoisonError::into_inner)
    }

    fn write(&self) -> RwLockWriteGuard<'_, Rows<V>> {
        self.0.write().unwrap_or_else(PoisonError::into_inner)
    }
}

impl<V> Rows<V> {
    fn take(&mut self, key: &Key) -> Option<Row<V>> {
        let row = self.rows.remove(key)?;
        if let Some(service) = &row.service
            && service != key
            && let Some(keys) = self.of_service.get_mut(service)
        {
            keys.retain(|other| other != key);
            if keys.is_empty() {
                self.of_service.remove(service);
            }
        }
        Some(row)
    }

    /// All rows of a service.
    fn of<'a>(&'a self, service: &'a Key) -> impl Iterator<Item = (&'a Key, &'a Row<V>)> {
        let namesake = self.rows.get_key_value(service);
        let namesake = namesake.filter(|(_, row)| row.service.as_ref() == Some(service));
        let others = self.of_service.get(service).into_iter().flatten();
        let others = others.filter_map(|key| self.rows.get_key_value(key));
        namesake.into_iter().chain(others)
    }

    /// One text for a service, however many rows it has.
    fn link(&mut self, service: Key, key: &Key) -> Key {
        if service == *key {
            return key.clone();
        }
        let shared = match self.of_service.get_key_value(&service) {
            Some((shared, _)) => shared.clone(),
            None => service,
        };
        let keys = self.of_service.entry(shared.clone()).or_default();
        // Most services have a row or two: those do not grow by doubling.
        if keys.len() < 4 {
            keys.reserve_exact(1);
        }
        keys.push(key.clone());
        shared
    }
}

/// Versions are compared for equality alone, which eight bytes of any text do.
fn digest(version: &str) -> u64 {
    let mut hasher = DefaultHasher::new();
    version.hash(&mut hasher);
    hasher.finish()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    fn kept(name: u8, service: u8, version: u8) -> Kept<u8> {
        Kept {
            key: Key::new("n", &name.to_string()),
            service: (service > 0).then(|| Key::new("n", &service.to_string())),
            version: version.to_string(),
            value: version,
        }
    }

    proptest! {
        #[test]
        fn the_index_tells_what_looking_at_every_row_would(
            steps in proptest::collection::vec((any::<bool>(), 0_u8..6, 0_u8..3, 0_u8..4), 0..60)
        ) {
            let table = Table::default();
            let mut model: BTreeMap<u8, (u8, u8)> = BTreeMap::new();
            for (put, name, service, version) in steps {
                if put {
                    // An API server gives a changed object another version.
                    let unchanged = model.get(&name).is_some_and(|(_, v)| *v == version);
                    let service = if unchanged { model[&name].0 } else { service };
                    let change = table.put(kept(name, service, version), 1);
                    prop_assert_eq!(change == Change::Nothing, unchanged);
                    model.insert(name, (service, version));
                } else {
                    prop_assert_eq!(table.remove(&Key::new("n", &name.to_string())).is_some(), model.remove(&name).is_some());
                }
                for service in 1..3 {
                    let found: Vec<u8> = table.of(&Key::new("n", &service.to_string())).into_iter().map(|(_, v)| v).collect();
                    let expected: Vec<u8> = model.values().filter(|(s, _)| *s == service).map(|(_, v)| *v).collect();
                    prop_assert_eq!(found, expected);
                }
            }
        }
    }

    #[test]
    fn a_reading_of_one_namespace_forgets_nothing_of_another() {
        let table = Table::default();
        let row = |namespace: &str| Kept {
            key: Key::new(namespace, "x"),
            service: None,
            version: "1".into(),
            value: (),
        };
        table.put(row("a"), 1);
        table.put(row("b"), 1);
        assert_eq!(table.sweep(Some("a"), 2).len(), 1);
        assert_eq!(table.len(), 1);
        table.put(row("b"), 2);
        assert!(table.sweep(None, 2).is_empty(), "it was found again");
    }
}
