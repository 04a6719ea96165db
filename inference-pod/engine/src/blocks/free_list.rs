//! The order in which free blocks are reused: an intrusive doubly linked list over block ids.
//!
//! Links live in one array, so taking a block out of the middle is O(1): that is what a hit on a free block does.

/// No block: the end of the list in either direction.
const NONE: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
struct Links {
    previous: u32,
    next: u32,
    listed: bool,
}

/// Free blocks, next to be reused at the front.
#[derive(Debug)]
pub(super) struct FreeList {
    links: Vec<Links>,
    front: u32,
    back: u32,
    len: usize,
}

impl FreeList {
    /// A list of the blocks `0..count`, in that order.
    pub(super) fn full(count: u32) -> Self {
        let links = Links {
            previous: NONE,
            next: NONE,
            listed: false,
        };
        let mut list = Self {
            links: vec![links; count as usize],
            front: NONE,
            back: NONE,
            len: 0,
        };
        for id in 0..count {
            list.push_back(id);
        }
        list
    }

    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn pop_front(&mut self) -> Option<u32> {
        (self.front != NONE).then(|| {
            let id = self.front;
            self.unlink(id);
            id
        })
    }

    /// Puts a block where it is reused next.
    pub(super) fn push_front(&mut self, id: u32) {
        let next = self.front;
        self.link(id, NONE, next);
    }

    /// Puts a block where it is reused last.
    pub(super) fn push_back(&mut self, id: u32) {
        let previous = self.back;
        self.link(id, previous, NONE);
    }

    /// Blocks in the order in which they will be reused.
    #[cfg(test)]
    pub(super) fn iter(&self) -> impl Iterator<Item = u32> + '_ {
        let first = (self.front != NONE).then_some(self.front);
        std::iter::successors(first, |id| {
            let next = self.links[*id as usize].next;
            (next != NONE).then_some(next)
        })
    }

    fn link(&mut self, id: u32, previous: u32, next: u32) {
        assert!(
            !self.links[id as usize].listed,
            "block {id} was freed twice"
        );
        self.links[id as usize] = Links {
            previous,
            next,
            listed: true,
        };
        self.set_next(previous, id);
        self.set_previous(next, id);
        self.len += 1;
    }

    /// Takes a block out of the middle.
    pub(super) fn unlink(&mut self, id: u32) {
        let Links {
            previous,
            next,
            listed,
        } = self.links[id as usize];
        debug_assert!(listed, "block {id} is not free");
        self.links[id as usize].listed = false;
        self.set_next(previous, next);
        self.set_previous(next, previous);
        self.len -= 1;
    }

    fn set_next(&mut self, id: u32, next: u32) {
        if id == NONE {
            self.front = next;
        } else {
            self.links[id as usize].next = next;
        }
    }

    fn set_previous(&mut self, id: u32, previous: u32) {
        if id == NONE {
            self.back = previous;
        } else {
            self.links[id as usize].previous = previous;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drain(list: &mut FreeList) -> Vec<u32> {
        std::iter::from_fn(|| list.pop_front()).collect()
    }

    #[test]
    fn hands_out_blocks_in_order_and_then_none() {
        assert_eq!(drain(&mut FreeList::full(4)), [0, 1, 2, 3]);
        assert_eq!(FreeList::full(0).pop_front(), None);
    }

    #[test]
    fn reuses_the_block_at_the_front_and_keeps_the_back_for_last() {
        let mut list = FreeList::full(3);
        assert_eq!((list.pop_front(), list.pop_front()), (Some(0), Some(1)));
        list.push_back(0);
        list.push_front(1);
        assert_eq!(drain(&mut list), [1, 2, 0]);
    }

    #[test]
    fn a_block_leaves_the_middle_without_disturbing_the_rest() {
        let mut list = FreeList::full(5);
        list.unlink(2);
        assert_eq!(list.len(), 4);
        assert_eq!(drain(&mut list), [0, 1, 3, 4]);
    }

    #[test]
    #[should_panic(expected = "block 1 was freed twice")]
    fn freeing_a_block_twice_is_a_bug_that_is_seen() {
        FreeList::full(2).push_front(1);
    }
}
