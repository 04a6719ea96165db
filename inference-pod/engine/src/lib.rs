//! Pure engine state machines: sequences, block pool, scheduler, sampling.
//!
//! Nothing here does I/O, reads a clock, draws randomness or touches a tensor. Time is a [`std::time::Duration`]
//! since an epoch of the caller's choice, randomness is a seed, identity is a counter. So one engine step is one
//! function call in a test:
//!
//! 1. [`Scheduler::submit`] accepts a prompt, or says why it can never run.
//! 2. [`Scheduler::schedule`] turns the state into a [`StepPlan`]: which tokens of which sequences to compute.
//! 3. The caller computes them, samples with a [`Sampler`], and tells [`Scheduler::record`] about every row.
//! 4. [`Scheduler::finish`] (or [`Scheduler::cancel`]) gives a sequence's blocks back at once.

mod blocks;
mod class;
mod drafts;
mod keys;
mod limits;
mod plan;
mod policy;
mod prediction;
mod random;
mod sampling;
mod scheduler;
mod scope;
mod sequence;
mod step_cost;
mod waste;

pub use blocks::{
    Block, BlockPool, BlockTable, Complete, Content, Found, Link, Mutable, PoolState, Shared,
};
pub use class::Class;
pub use drafts::{Drafter, guess};
pub use keys::{BlockKey, KeySeed};
pub use limits::{LengthLimit, Limits, LimitsError, Refusal};
pub use plan::{Counters, Load, PlannedRow, Progress, StepPlan};
pub use policy::{MAX_DRAFT, Policy, Speculation, SpeculationError};
pub use prediction::{Features, LengthPredictor, Prediction};
pub use random::{derive_seed, uniform};
pub use sampling::{
    AllowedTokens, SampleError, Sampled, Sampler, SamplingError, SamplingParams, TokenLogprobs,
    logprobs_of,
};
pub use scheduler::Scheduler;
pub use scope::{CacheScope, ScopeParts};
pub use sequence::{FinishReason, NewSequence, PromptOutputs, SequenceId};
pub use step_cost::{StepCost, StepWork};
pub use waste::Filling;
