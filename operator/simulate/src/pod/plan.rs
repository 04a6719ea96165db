//! What the next steps are: who decodes, which prompts go on, who is let in, and who must give way.

use std::cmp::Reverse;

use super::{LOOKED_AT, MAX_PASSED_OVER, Pod, Steps, pending};
use crate::requests::{RequestId, Requests};
use crate::time::Nanos;

impl Pod {
    /// Plans the next steps and returns when they end, if there is anything to do.
    pub(super) fn begin(&mut self, requests: &mut Requests, now: Nanos) -> Option<Nanos> {
        let preempted = self.make_room(requests, now);
        let last_tokens = self
            .prompts
            .iter()
            .filter(|id| pending(requests, **id) == 1);
        let decodes = self.decoding + last_tokens.count() as u32;
        let mut budget = self.profile.step_tokens.saturating_sub(decodes);
        self.plan_prompts(requests, &mut budget);
        if !preempted {
            self.admit(requests, &mut budget);
        }
        if self.decoding == 0 && self.rows.is_empty() {
            return None;
        }
        let alone = self.rows.is_empty() && !preempted;
        let left = if alone { self.steps_alike() } else { 1 };
        let (decodes, prompt_tokens) = self.shape(requests);
        let steps = Steps {
            began: now,
            each: self.profile.step(decodes, prompt_tokens),
            left,
            decodes,
            prompt_tokens,
        };
        self.steps = Some(steps);
        Some(steps.end())
    }

    /// Takes the blocks that decodes grow into, at the cost of the newest sequences. Whether it cost any.
    fn make_room(&mut self, requests: &mut Requests, now: Nanos) -> bool {
        let mut preempted = false;
        while self.needed_in(self.done) > self.kv.available() {
            self.preempt_newest(requests, now);
            preempted = true;
        }
        self.take_for(self.done);
        preempted
    }

    fn preempt_newest(&mut self, requests: &mut Requests, now: Nanos) {
        let Some((sequence, id)) = self.running.pop() else {
            return;
        };
        if let Some(ends_with) = requests[id].in_pod.ends_with {
            let left = (ends_with - self.done) as u32;
            let asked = &requests[id].asked;
            let known = asked.prompt_tokens + asked.output_tokens - left;
            self.stop_decoding(requests, id, known);
            self.release(requests, id, known - 1);
            requests[id].last_token = now;
        } else {
            self.prompts.retain(|other| *other != id);
            self.release(requests, id, requests[id].known());
        }
        let in_pod = &mut requests[id].in_pod;
        (in_pod.computed, in_pod.shared, in_pod.passed_over) = (0, 0, 0);
        let place = self
            .waiting
            .partition_point(|other| requests[*other].in_pod.sequence < sequence);
        self.waiting.insert(place, id);
        self.counters.preemptions += 1;
    }

    fn plan_prompts(&mut self, requests: &Requests, budget: &mut u32) {
        self.rows.clear();
        for id in &self.prompts {
            let pending = pending(requests, *id);
            // The last token of a prompt is a decode to the engine, and already in the budget.
            let tokens = if pending == 1 {
                1
            } else {
                pending.min(*budget)
            };
            if tokens > 0 {
                self.rows.push((*id, tokens));
                *budget -= if pending == 1 { 0 } else { tokens };
            }
        }
    }

    fn admit(&mut self, requests: &mut Requests, budget: &mut u32) {
        let mut index = 0;
        while *budget > 0
            && index < self.waiting.len().min(LOOKED_AT)
            && self.running.len() < self.profile.max_sequences as usize
        {
            let id = self.waiting[index];
            if self.start(requests, id) {
                self.waiting.remove(index);
                for passed in self.waiting.iter().take(index) {
                    requests[*passed].in_pod.passed_over += 1;
                }
                let tokens = pending(requests, id).min(*budget);
                *budget -= tokens;
                self.rows.push((id, tokens));
            } else if requests[id].in_pod.passed_over >= MAX_PASSED_OVER {
                return;
            } else {
                index += 1;
            }
        }
    }

    /// Takes blocks for all tokens of a waiting sequence, if that leaves every running one a block to grow into.
    fn start(&mut self, requests: &mut Requests, id: RequestId) -> bool {
        let request = &mut requests[id];
        let known = request.known();
        let blocks = known.div_ceil(self.profile.block_tokens);
        // One token at least must be computed, for its answer.
        let findable = if self.profile.prefix_cache {
            (known - 1) / crate::trace::PREFIX_TOKENS
        } else {
            0
        };
        let findable = (findable as usize).min(request.asked.prefix.len());
        let prefix = &request.asked.prefix[..findable];
        let Some(found) = self.kv.admit(blocks, prefix, self.running.len() as u32) else {
            return false;
        };
        request.in_pod.shared = found;
        request.in_pod.computed = found * crate::trace::PREFIX_TOKENS;
        if self.profile.prefix_cache {
            self.counters.cache_queries += u64::from(known);
            self.counters.cache_hits += u64::from(request.in_pod.computed);
        }
        let sequence = request.in_pod.sequence;
        let place = self.running.partition_point(|(other, _)| *other < sequence);
        self.running.insert(place, (sequence, id));
        let place = self
            .prompts
            .partition_point(|other| requests[*other].in_pod.sequence < sequence);
        self.prompts.insert(place, id);
        true
    }

    /// Steps until a sequence ends or there are no blocks to grow into; only decodes are under way. Whoever waits
    /// could not be let in now, and until then nothing makes it easier.
    fn steps_alike(&self) -> u64 {
        let Some(Reverse((first_end, ..))) = self.ends.peek() else {
            return 1;
        };
        let most = first_end.saturating_sub(self.done).max(1);
        let block = u64::from(self.profile.block_tokens);
        let mut available = u64::from(self.kv.available());
        // In as many steps as a block has tokens each sequence takes one block.
        let cycles = (available / u64::from(self.decoding.max(1))).min((most - 1) / block);
        available -= cycles * u64::from(self.decoding);
        let mut steps = 1 + cycles * block;
        while steps < most {
            let needed = u64::from(self.needed_in(self.done + steps));
            if needed > available {
                break;
            }
            available -= needed;
            steps += 1;
        }
        steps
    }

    /// Sequences that decode in the step planned, and tokens of prompts in it. A row of one token that is not a prompt's first
    /// is a decode, as to the engine.
    fn shape(&self, requests: &Requests) -> (u64, u64) {
        let (mut decodes, mut prompt_tokens) = (u64::from(self.decoding), 0);
        for (id, tokens) in &self.rows {
            if *tokens == 1 && requests[*id].in_pod.computed > 0 {
                decodes += 1;
            } else {
                prompt_tokens += u64::from(*tokens);
            }
        }
        (decodes, prompt_tokens)
    }
}
