//! Pure engine state machines: sequences, block pool, scheduler, sampling.
