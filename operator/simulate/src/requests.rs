//! Requests under way, each known by a number for as long as it is.

use crate::time::Nanos;
use crate::trace::Arrival;

/// Names a request under way.
pub type RequestId = u32;

/// A request under way.
#[derive(Debug, Default)]
pub struct Request {
    /// What was asked, and when.
    pub asked: Arrival,
    /// When its present pod got it.
    pub at_pod: Nanos,
    /// When its first token came.
    pub first_token: Option<Nanos>,
    /// When its last token came.
    pub last_token: Nanos,
    /// The pod that has it.
    pub pod: Option<u32>,
    pub(crate) in_pod: InPod,
}

/// A request as its pod sees it.
#[derive(Debug, Default)]
pub(crate) struct InPod {
    /// Number in order of arrival at the pod.
    pub(crate) sequence: u64,
    /// Tokens whose keys and values are computed.
    pub(crate) computed: u32,
    /// Tokens generated; while it decodes, those up to when that began.
    pub(crate) generated: u32,
    /// It decodes, and ends with this step of its pod.
    pub(crate) ends_with: Option<u64>,
    /// Leading ids of its prefix that others may read.
    pub(crate) shared: u32,
    /// How many later ones were let in before it.
    pub(crate) passed_over: u32,
}

impl Request {
    /// Tokens that are known: the prompt and what was generated.
    pub(crate) fn known(&self) -> u32 {
        self.asked.prompt_tokens + self.in_pod.generated
    }
}

/// All requests under way.
#[derive(Debug, Default)]
pub struct Requests {
    slots: Vec<Request>,
    free: Vec<RequestId>,
}

impl Requests {
    /// Takes a request in.
    pub fn insert(&mut self, asked: Arrival) -> RequestId {
        let request = Request {
            asked,
            ..Request::default()
        };
        if let Some(id) = self.free.pop() {
            self.slots[id as usize] = request;
            return id;
        }
        self.slots.push(request);
        self.slots.len() as RequestId - 1
    }

    /// Forgets a request, and returns it.
    pub fn remove(&mut self, id: RequestId) -> Request {
        self.free.push(id);
        std::mem::take(&mut self.slots[id as usize])
    }

    /// How many there are.
    pub fn len(&self) -> usize {
        self.slots.len() - self.free.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}

impl std::ops::Index<RequestId> for Requests {
    type Output = Request;

    fn index(&self, id: RequestId) -> &Request {
        &self.slots[id as usize]
    }
}

impl std::ops::IndexMut<RequestId> for Requests {
    fn index_mut(&mut self, id: RequestId) -> &mut Request {
        &mut self.slots[id as usize]
    }
}
