//! Every constant of the model of capacity, in one place, with its reason. The simulator tunes them.

/// Busy seconds of a pod after which an observation counts half: long enough for the noise of a mix of requests, short
/// enough to follow an adapter or a driver that changed.
pub const FORGET_BUSY_SECONDS: f64 = 600.0;
/// Observations beyond which a model is believed.
pub const BELIEVE_INTERVALS: f64 = 5.0;
/// The same in busy seconds.
pub const BELIEVE_BUSY_SECONDS: f64 = 3.0;
/// An interval is as long at least, where the engine does not tell its work: its counters move a request at a time.
pub const OUTSIDE_INTERVAL_MILLIS: u64 = 5_000;
/// Longer intervals say nothing: the pod was out of sight.
pub const LONGEST_INTERVAL_MILLIS: u64 = 30_000;
/// Sequences that decode on average, from which on a pod whose engine does not tell its work was surely never idle: of a
/// Poisson number with this mean less than 2 percent are zero.
pub const SURELY_BUSY_SEQUENCES: f64 = 4.0;
/// An error beyond so many usual ones counts as one of so many (Huber, "Robust estimation of a location parameter", 1964).
pub const HUBER: f64 = 3.0;
/// How firmly a sequence is believed to add nothing to a step, while the number of sequences hardly varies: relative.
pub const RIDGE: f64 = 1e-4;
/// A pod is trusted with so many times the sequences that were seen at once: the line is not followed further than that.
pub const EXTRAPOLATE: f64 = 3.0;
/// And with so many in any case.
pub const FEWEST_SEQUENCES: f64 = 8.0;

/// Half-lives of the cost of a request in seconds: the short one sees a hit rate fall, the long one does not mistake a
/// few long prompts for it.
pub const COST_SHORT_SECONDS: f64 = 15.0;
/// See above.
pub const COST_LONG_SECONDS: f64 = 180.0;
/// Requests that the long mean counts as, against those of the short one.
pub const COST_PRIOR_REQUESTS: f64 = 20.0;
/// Requests from which on their cost is known.
pub const COST_REQUESTS: f64 = 5.0;
/// Half-life of what is known of the variability of prompts and arrivals, in seconds: the few longest prompts make most of it.
pub const SPREAD_SECONDS: f64 = 300.0;
/// As many of the usual kind are believed in beforehand: sums of prompts, and arrivals.
pub const SPREAD_PRIOR: f64 = 50.0;
/// Most that the variability of prompts and arrivals is believed to be: squared coefficient of variation.
pub const MOST_VARIABILITY: f64 = 16.0;

/// How long a wait is among pods that share the load, against one that is alone. Two servers with one queue make it half; the
/// gateway looks at all that a pod has to do and not at its prompts alone, so half of that gain is counted on.
pub const SHARED_WAIT: f64 = 0.75;
/// Prompt tokens of a step, where the engine does not tell: vLLM's default.
pub const STEP_TOKENS: f64 = 2_048.0;
/// A pod is never planned busier than this, whatever its latency would allow.
pub const MOST_BUSY: f64 = 0.95;
/// Percent of a target that an idle pod may take by itself. Beyond that the target is out of reach, and so much above
/// what an idle pod takes is aimed at instead.
pub const REACHABLE_FACTOR: f64 = 1.25;
/// Standard deviations beyond their mean for which as many sequences as run at once must leave room: whoever finds none waits
/// for another to end.
pub const SEATS_DEVIATIONS: f64 = 1.645;
/// Share of the KV cache that is planned with.
pub const KV_SHARE: f64 = 0.9;
/// Seconds in which requests that wait beyond the usual are to be served.
pub const DRAIN_SECONDS: f64 = 20.0;
/// And this share of the time that a pod takes to start: pods that are started for them come when they have waited long
/// already, and stay for the stabilisation window.
pub const DRAIN_START_SHARE: f64 = 0.25;

/// Observations from which on a percentile is measured: so many above it.
pub const TAIL_OBSERVATIONS: f64 = 3.0;
/// What the measured percentile may make of a capacity at least and at most.
pub const CORRECT_LEAST: f64 = 0.4;
/// See above.
pub const CORRECT_MOST: f64 = 1.5;
/// How fast a miss corrects: the logarithm of the capacity moves by so much of the logarithm of the miss in a window.
pub const CORRECT_GAIN: f64 = 0.25;
/// Half-life of a correction that nothing confirms, in seconds.
pub const CORRECT_FORGET_SECONDS: f64 = 1_800.0;
/// A pod that carries this share of its capacity says something about it by being fast.
pub const CORRECT_UP_LOAD: f64 = 0.8;
/// And a percentile below this share of the target says that it could carry more.
pub const CORRECT_UP_BELOW: f64 = 0.7;
/// Without a model the number of pods grows by this factor at most in a window.
pub const BLIND_GROWTH: f64 = 2.0;

/// Revisions and hardware that are remembered: as many as the status holds.
pub const MOST_ENTRIES: usize = 16;
/// Start times of which the median is the start time.
pub const STARTS: usize = 5;

/// Of the standard deviations that a target's percentile stands for, so many are allowed for in the rate: under a rate that is
/// just carried as many requests miss the target as it allows, under most lower ones hardly any do.
pub const HEADROOM_SHARE: f64 = 0.55;
/// How far a rate is allowed for to rise while a pod starts, as a share of it.
pub const HEADROOM_MOST: f64 = 1.5;
/// Rates within the time that a pod takes to start.
pub const HEADROOM_STEPS: u64 = 4;
/// Comparisons from which on rises are known; before that, those that are missing count as none, so that one step is no habit.
pub const HEADROOM_COMPARISONS: f64 = 24.0;
/// How much of what was learned of rises is kept at each of them: half after 70, which is half an hour where pods start within a
/// minute and a half.
pub const HEADROOM_KEEP: f64 = 0.99;
/// Half of the window is how late an average is.
pub const WINDOW_LAG: f64 = 0.5;
/// Shorter times than this are the autoscaler's own.
pub const LEAST_LEAD_MILLIS: u64 = 4_000;
