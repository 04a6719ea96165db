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
mod keys;
mod random;
mod sampling;
mod scheduler;
mod scope;
mod sequence;

pub use blocks::{
    Block, BlockPool, BlockTable, Complete, Content, Found, Link, Mutable, PoolState, Shared,
};
pub use class::Class;
pub use keys::{BlockKey, KeySeed};
pub use random::{derive_seed, uniform};
pub use sampling::{
    AllowedTokens, SampleError, Sampled, Sampler, SamplingError, SamplingParams, TokenLogprobs,
    logprobs_of,
};
pub use scheduler::{
    LengthLimit, Limits, LimitsError, Load, PlannedRow, Progress, Refusal, Scheduler, StepPlan,
};
pub use scope::{CacheScope, ScopeParts};
pub use sequence::{FinishReason, NewSequence, SequenceId};
