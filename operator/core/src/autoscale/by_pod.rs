//! What is remembered of each pod of a service, for services of few pods and of thousands.

use std::{collections::HashSet, sync::Arc};

/// Something of each pod, by its name.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct ByPod<T> {
    /// Sorted by name up to `sorted`; behind that, pods that came since [`ByPod::sort`].
    all: Vec<(Arc<str>, T)>,
    sorted: usize,
}

impl<T> Default for ByPod<T> {
    fn default() -> Self {
        Self {
            all: Vec::new(),
            sorted: 0,
        }
    }
}

impl<T> ByPod<T> {
    /// What is remembered of a pod.
    pub fn get(&self, name: &str) -> Option<&T> {
        self.find(name).map(|at| &self.all[at].1)
    }

    /// The same, to be changed.
    pub fn get_mut(&mut self, name: &str) -> Option<&mut T> {
        self.find(name).map(|at| &mut self.all[at].1)
    }

    /// Begins to remember a pod that is not known; found again once all are sorted.
    pub fn add(&mut self, name: Arc<str>, value: T) -> &mut T {
        if self.all.len() == self.all.capacity() && self.all.len() < 8 {
            // Tens of thousands of services have a pod or two: those do not grow by doubling.
            self.all.reserve_exact(1);
        }
        self.all.push((name, value));
        let at = self.all.len() - 1;
        &mut self.all[at].1
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    /// Takes up those that came; and when more are remembered than live, forgets those that do not.
    pub fn settle<'a>(&mut self, living: impl ExactSizeIterator<Item = &'a Arc<str>>) {
        self.sort();
        if self.all.len() > living.len() {
            self.forget_others(living);
        }
    }

    /// Forgets those that do not live.
    pub fn forget_others<'a>(&mut self, living: impl Iterator<Item = &'a Arc<str>>) {
        let living: HashSet<&str> = living.map(|name| &**name).collect();
        self.sort();
        self.all.retain(|(name, _)| living.contains(&**name));
        self.all.shrink_to_fit();
        self.sorted = self.all.len();
    }

    /// Takes up those that came.
    pub fn sort(&mut self) {
        if self.sorted != self.all.len() {
            self.all.sort_by(|a, b| a.0.cmp(&b.0));
            self.sorted = self.all.len();
        }
    }

    fn find(&self, name: &str) -> Option<usize> {
        let sorted = &self.all[..self.sorted];
        sorted
            .binary_search_by(|(other, _)| (**other).cmp(name))
            .ok()
    }
}

impl<T: Default> ByPod<T> {
    /// What is remembered of a pod, from now on if not before.
    pub fn of(&mut self, name: &Arc<str>) -> &mut T {
        match self.find(name) {
            Some(at) => &mut self.all[at].1,
            None => self.add(Arc::clone(name), T::default()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeMap;

    proptest! {
        #[test]
        fn remembers_as_a_map_does_and_forgets_who_is_gone(looks in proptest::collection::vec(proptest::collection::btree_set(0_u8..12, 0..8), 1..20)) {
            let (mut by_pod, mut map) = (ByPod::<u32>::default(), BTreeMap::<String, u32>::new());
            for (look, pods) in looks.iter().enumerate() {
                let names: Vec<Arc<str>> = pods.iter().rev().map(|pod| format!("pod-{pod}").into()).collect();
                for name in &names {
                    *by_pod.of(name) += look as u32;
                    *map.entry(name.to_string()).or_default() += look as u32;
                }
                by_pod.settle(names.iter());
                map.retain(|name, _| names.iter().any(|other| **other == **name));
                prop_assert_eq!(by_pod.all.len(), map.len());
                for (name, count) in &map {
                    prop_assert_eq!(by_pod.get(name), Some(count));
                }
            }
        }
    }
}
