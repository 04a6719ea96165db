"""The Llama forward pass on dequantised weights, in NumPy.

Matrix products run in `dtype` (f32: the truth the engine is held to; f64: to show how little the f32 roundings
matter); norms, rotary angles, softmax and log-probabilities always run in f64.
"""

import numpy as np

from dequantise import dequantise

LAYER_TENSORS = ("attn_norm", "attn_q", "attn_k", "attn_v", "attn_output", "ffn_norm", "ffn_gate", "ffn_up", "ffn_down")
CHUNK_TOKENS = 256


class LlamaModel:
    """Weights and shape of one Llama file. A matrix has shape [outputs, inputs]."""

    def __init__(self, gguf, dtype=np.float32):
        meta = gguf.metadata
        if meta["general.architecture"] != "llama":
            raise ValueError(f"architecture {meta['general.architecture']} is not llama")
        self.dtype = dtype
        self.heads = meta["llama.attention.head_count"]
        self.kv_heads = meta["llama.attention.head_count_kv"]
        self.epsilon = float(np.float32(meta["llama.attention.layer_norm_rms_epsilon"]))
        self.rope_base = float(meta["llama.rope.freq_base"])
        self.head_size = meta["llama.embedding_length"] // self.heads
        self.rope_size = meta.get("llama.rope.dimension_count", self.head_size)

        def load(name):
            return dequantise(gguf, name).astype(dtype)

        self.embedding = load("token_embd.weight")
        self.head = load("output.weight") if "output.weight" in gguf.tensors else self.embedding
        self.output_norm = load("output_norm.weight")
        self.layers = [
            {part: load(f"blk.{layer}.{part}.weight") for part in LAYER_TENSORS}
            for layer in range(meta["llama.block_count"])
        ]

    def sequence(self):
        """An empty sequence, ready for `extend`."""
        return Sequence(self)

    def norm(self, x, weight):
        wide = x.astype(np.float64)
        scale = 1.0 / np.sqrt(np.mean(wide * wide, axis=-1, keepdims=True) + self.epsilon)
        return (wide * scale).astype(self.dtype) * weight

    def rotate(self, x, start):
        """Rotates adjacent pairs (2i, 2i+1) of x [tokens, heads, head_size], whose first token is at `start`."""
        half = self.rope_size // 2
        frequencies = self.rope_base ** (-2.0 * np.arange(half) / self.rope_size)
        angles = (start + np.arange(len(x)))[:, None] * frequencies
        cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
        even, odd = x[..., 0 : self.rope_size : 2].astype(np.float64), x[..., 1 : self.rope_size : 2].astype(np.float64)
        out = x.copy()
        out[..., 0 : self.rope_size : 2] = even * cos - odd * sin
        out[..., 1 : self.rope_size : 2] = even * sin + odd * cos
        return out


class Sequence:
    """One sequence's keys and values, per layer [kv_heads, tokens, head_size]."""

    def __init__(self, model):
        self.model = model
        empty = np.zeros((model.kv_heads, 0, model.head_size), model.dtype)
        self.keys = [empty for _ in model.layers]
        self.values = [empty for _ in model.layers]
        self.length = 0

    def extend(self, tokens, logits_for="all"):
        """Appends `tokens`; returns logits in `dtype`, [len(tokens), vocab] or, for "last", [1, vocab]."""
        tokens = list(tokens)
        states = [self._chunk(tokens[at : at + CHUNK_TOKENS]) for at in range(0, len(tokens), CHUNK_TOKENS)]
        hidden = np.concatenate(states)
        if logits_for == "last":
            hidden = hidden[-1:]
        return hidden @ self.model.head.T

    def _chunk(self, tokens):
        model = self.model
        x = model.embedding[tokens]
        for index, weights in enumerate(model.layers):
            x = x + self._attention(index, weights, model.norm(x, weights["attn_norm"]))
            h = model.norm(x, weights["ffn_norm"])
            gate = (h @ weights["ffn_gate"].T).astype(np.float64)
            gate = (gate / (1.0 + np.exp(-gate))).astype(model.dtype)
            x = x + (gate * (h @ weights["ffn_up"].T)) @ weights["ffn_down"].T
        self.length += len(tokens)
        return model.norm(x, model.output_norm)

    def _attention(self, index, weights, h):
        model, count = self.model, len(h)
        q = (h @ weights["attn_q"].T).reshape(count, model.heads, model.head_size)
        k = (h @ weights["attn_k"].T).reshape(count, model.kv_heads, model.head_size)
        v = (h @ weights["attn_v"].T).reshape(count, model.kv_heads, model.head_size)
        q, k = model.rotate(q, self.length), model.rotate(k, self.length)
        self.keys[index] = keys = np.concatenate([self.keys[index], k.transpose(1, 0, 2)], axis=1)
        self.values[index] = values = np.concatenate([self.values[index], v.transpose(1, 0, 2)], axis=1)
        group = model.heads // model.kv_heads
        hidden_from = np.arange(keys.shape[1])[None, :] > (self.length + np.arange(count))[:, None]
        out = np.empty((count, model.heads, model.head_size), model.dtype)
        for head in range(model.heads):
            scores = (q[:, head] @ keys[head // group].T).astype(np.float64) / np.sqrt(model.head_size)
            scores[hidden_from] = -np.inf
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            scores /= scores.sum(axis=1, keepdims=True)
            out[:, head] = scores.astype(model.dtype) @ values[head // group]
        return out.reshape(count, -1) @ weights["attn_output"].T


def log_softmax(logits):
    """Natural log-probabilities in f64 of logits [..., vocab]."""
    wide = logits.astype(np.float64)
    wide = wide - wide.max(axis=-1, keepdims=True)
    return wide - np.log(np.exp(wide).sum(axis=-1, keepdims=True))
