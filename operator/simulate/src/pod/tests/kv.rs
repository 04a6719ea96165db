use std::collections::BTreeMap;

use proptest::prelude::*;

use super::super::prefix::PrefixCache;

/// The same by lists: who reads what, and in which order it was left.
#[derive(Default)]
struct Model {
    readers: BTreeMap<u64, u32>,
    left: Vec<u64>,
}

impl Model {
    fn release(&mut self, ids: &[u64]) {
        for id in ids.iter().rev() {
            let readers = self.readers.get_mut(id).expect("kept");
            *readers -= 1;
            if *readers == 0 {
                self.left.push(*id);
            }
        }
    }

    fn drop_oldest(&mut self) -> bool {
        if self.left.is_empty() {
            return false;
        }
        let id = self.left.remove(0);
        self.readers.remove(&id);
        true
    }
}

#[derive(Clone, Debug)]
enum Step {
    Take(Vec<u64>),
    Release(usize),
    Drop,
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let ids = proptest::collection::btree_set(0_u64..12, 1..5)
        .prop_map(|set| set.into_iter().collect::<Vec<_>>());
    let step = prop_oneof![
        3 => ids.prop_map(Step::Take),
        2 => (0_usize..6).prop_map(Step::Release),
        1 => Just(Step::Drop),
    ];
    proptest::collection::vec(step, 0..120)
}

proptest! {
    #[test]
    fn the_prefix_least_recently_used_goes_first_and_none_that_is_read(steps in steps()) {
        let (mut cache, mut model) = (PrefixCache::default(), Model::default());
        let mut held: Vec<Vec<u64>> = Vec::new();
        for step in steps {
            match step {
                Step::Take(ids) => {
                    let found = ids.iter().take_while(|id| model.readers.contains_key(id)).count();
                    let idle = ids[..found].iter().filter(|id| model.readers[id] == 0).count();
                    prop_assert_eq!(cache.look(&ids), (found as u32, idle as u32));
                    cache.hold(&ids[..found]);
                    let mut mine = ids[..found].to_vec();
                    for id in &mine {
                        model.left.retain(|other| other != id);
                        *model.readers.get_mut(id).expect("kept") += 1;
                    }
                    for id in &ids[found..] {
                        let new = !model.readers.contains_key(id);
                        prop_assert_eq!(cache.insert(*id), new);
                        if new {
                            model.readers.insert(*id, 1);
                            mine.push(*id);
                        }
                    }
                    held.push(mine);
                }
                Step::Release(nth) => if nth < held.len() {
                    let ids = held.remove(nth);
                    cache.release(&ids);
                    model.release(&ids);
                },
                Step::Drop => prop_assert_eq!(cache.drop_oldest(), model.drop_oldest()),
            }
            prop_assert_eq!(cache.idle() as usize, model.left.len());
            prop_assert_eq!((cache.held() + cache.idle()) as usize, model.readers.len());
        }
    }
}
