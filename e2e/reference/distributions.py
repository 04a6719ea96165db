"""A reference's next-token distributions in a form small enough to commit, and mean KL divergence from it.

Full log-probabilities of 2,000 positions over 49,152 tokens would be 400 MB. Kept instead, for each position:

- the TOP_COUNT most probable tokens with their log-probabilities: their part of the sum is exact;
- SAMPLE_COUNT tokens drawn (fixed seed, with replacement) from the rest with the reference's own probabilities.

With P the reference, Q the other engine, T the top tokens and r = Q(x)/P(x), and because both sum to one,

    KL(P||Q) = sum_T P (r - 1 - ln r) + sum_rest P (r - 1 - ln r)

where every term is >= 0. The first sum is computed; the second is estimated by P(rest) times the mean of
(r - 1 - ln r) over the drawn tokens, which is unbiased. `generate.py` measures how close that comes to the full KL
and writes it beside the values.

File format (little endian): magic "PGDD", u32 version 1, u32 positions, u32 top count, u32 sample count, then for
each position: f32 P(rest); top u16 token ids; sample u16 token ids; top f32 log-probabilities; sample f32 ones.
Version 2, for larger vocabularies, has u32 token ids.
"""

import struct
from dataclasses import dataclass

import numpy as np

MAGIC = b"PGDD"
# Version to the type of token ids.
ID_TYPES = {1: np.dtype("<u2"), 2: np.dtype("<u4")}
TOP_COUNT, SAMPLE_COUNT = 48, 16


@dataclass
class Compact:
    """`ids` and `log_probs` [positions, top + samples], the top tokens first; `rest` [positions] is P(rest)."""

    top: int
    rest: np.ndarray
    ids: np.ndarray
    log_probs: np.ndarray


def compact(log_probs, top=TOP_COUNT, samples=SAMPLE_COUNT, seed=20261130):
    """Compact form of log_probs [positions, vocab] in f64."""
    positions, vocab = log_probs.shape
    generator = np.random.Generator(np.random.PCG64(seed))
    ids = np.empty((positions, top + samples), ID_TYPES[1] if vocab <= 1 << 16 else ID_TYPES[2])
    rest = np.empty(positions, np.float32)
    for at, row in enumerate(log_probs):
        best = np.argpartition(-row, top)[:top]
        best = best[np.argsort(-row[best], kind="stable")]
        tail = np.delete(np.arange(vocab), best)
        mass = np.cumsum(np.exp(row[tail]))
        drawn = np.searchsorted(mass, generator.random(samples) * mass[-1])
        ids[at, :top], ids[at, top:] = best, tail[np.minimum(drawn, len(tail) - 1)]
        rest[at] = mass[-1]
    chosen = np.take_along_axis(log_probs, ids.astype(np.int64), axis=1).astype(np.float32)
    return Compact(top, rest, ids, chosen)


def mean_kl(reference, log_probs):
    """Mean KL divergence in nats of log_probs [positions, vocab] from a Compact reference."""
    q = np.take_along_axis(log_probs, reference.ids.astype(np.int64), axis=1)
    p = reference.log_probs.astype(np.float64)
    excess = np.exp(q - p) - 1.0 - (q - p)
    top = (np.exp(p) * excess)[:, : reference.top].sum(axis=1)
    return float(np.mean(top + reference.rest * excess[:, reference.top :].mean(axis=1)))


def full_mean_kl(reference_log_probs, log_probs):
    """Mean KL divergence in nats over the whole vocabulary."""
    return float(np.mean(np.sum(np.exp(reference_log_probs) * (reference_log_probs - log_probs), axis=1)))


def write(path, form):
    positions, width = form.ids.shape
    with open(path, "wb") as file:
        version = next(version for version, id_type in ID_TYPES.items() if id_type == form.ids.dtype)
        file.write(struct.pack("<4sIIII", MAGIC, version, positions, form.top, width - form.top))
        for at in range(positions):
            file.write(struct.pack("<f", form.rest[at]))
            file.write(form.ids[at].tobytes())
            file.write(form.log_probs[at].astype("<f4").tobytes())


def read(path):
    with open(path, "rb") as file:
        magic, version, positions, top, samples = struct.unpack("<4sIIII", file.read(20))
        if magic != MAGIC or version not in ID_TYPES:
            raise ValueError(f"{path} is not a distributions file of version 1 or 2")
        width = top + samples
        record = np.dtype([("rest", "<f4"), ("ids", ID_TYPES[version], width), ("log_probs", "<f4", width)])
        rows = np.frombuffer(file.read(), dtype=record, count=positions)
    return Compact(top, rows["rest"], rows["ids"], rows["log_probs"])
