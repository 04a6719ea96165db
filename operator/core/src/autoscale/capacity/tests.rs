//! What is learned of pods that are played through, token by token, and looked at each second.

mod learner;
mod play;
mod recommend;
