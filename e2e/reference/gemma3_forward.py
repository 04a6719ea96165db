"""The Gemma 3 forward pass on dequantised weights, in NumPy; written from the architecture's description, sharing with the Llama
reference only what reads files.

Differences from Llama: embeddings are multiplied by sqrt(width); norms of heads, and of what attention and the feed-forward part
yield; GELU by its hyperbolic tangent; every sixth layer sees everything and turns by another base, the others see a window.
"""

import numpy as np

from dequantise import dequantise

PERIOD, LOCAL_BASE = 6, 10_000.0


class Gemma3Model:
    """Weights and shape of one file. A matrix has shape [outputs, inputs]; everything is f32 but norms and angles."""

    def __init__(self, gguf):
        meta = gguf.metadata
        if meta["general.architecture"] != "gemma3":
            raise ValueError("not a Gemma 3 file")
        self.heads, self.kv_heads = meta["gemma3.attention.head_count"], meta["gemma3.attention.head_count_kv"]
        self.dim = meta["gemma3.attention.key_length"]
        self.epsilon = meta["gemma3.attention.layer_norm_rms_epsilon"]
        self.window = meta["gemma3.attention.sliding_window"]
        self.base = meta["gemma3.rope.freq_base"]
        self.weights = {name: dequantise(gguf, name).astype(np.float32) for name in gguf.tensors}
        self.layers = meta["gemma3.block_count"]

    def logits(self, tokens):
        """f32 logits [tokens, vocabulary] of one sequence from its beginning."""
        table = self.weights["token_embd.weight"]
        x = table[tokens] * np.float32(np.sqrt(table.shape[1]))
        for layer in range(self.layers):
            part = lambda name: self.weights[f"blk.{layer}.{name}.weight"]
            attended = self._attention(layer, part, self._norm(x, part("attn_norm")))
            x = x + self._norm(attended, part("post_attention_norm"))
            h = self._norm(x, part("ffn_norm"))
            hidden = gelu(h @ part("ffn_gate").T) * (h @ part("ffn_up").T)
            x = x + self._norm(hidden @ part("ffn_down").T, part("post_ffw_norm"))
        return self._norm(x, self.weights["output_norm.weight"]) @ table.T

    def _norm(self, x, weight):
        wide = x.astype(np.float64)
        return (wide / np.sqrt((wide**2).mean(axis=-1, keepdims=True) + self.epsilon) * weight).astype(np.float32)

    def _attention(self, layer, part, h):
        count, is_global = len(h), (layer + 1) % PERIOD == 0
        heads = lambda name, n: (h @ part(name).T).reshape(count, n, self.dim)
        base = self.base if is_global else LOCAL_BASE
        q = turned(self._norm(heads("attn_q", self.heads), part("attn_q_norm")), base)
        k = turned(self._norm(heads("attn_k", self.kv_heads), part("attn_k_norm")), base)
        v = heads("attn_v", self.kv_heads)
        distance = np.arange(count)[:, None] - np.arange(count)[None, :]
        unseen = (distance < 0) | (not is_global) * (distance >= self.window)
        out = np.empty((count, self.heads, self.dim), np.float32)
        for head in range(self.heads):
            source = head * self.kv_heads // self.heads
            scores = (q[:, head] @ k[:, source].T).astype(np.float64) / np.sqrt(self.dim)
            scores[unseen] = -np.inf
            scores = np.exp(scores - scores.max(axis=1, keepdims=True))
            out[:, head] = (scores / scores.sum(axis=1, keepdims=True)).astype(np.float32) @ v[:, source]
        return out.reshape(count, -1) @ part("attn_output").T


def gelu(x):
    wide = x.astype(np.float64)
    return (0.5 * wide * (1 + np.tanh(np.sqrt(2 / np.pi) * (wide + 0.044715 * wide**3)))).astype(np.float32)


def turned(x, base):
    """x [tokens, heads, dim] with value i turned together with value dim / 2 + i."""
    half = x.shape[-1] // 2
    angles = np.arange(len(x))[:, None] * base ** (-np.arange(half) / half)
    cos, sin = np.cos(angles)[:, None, :], np.sin(angles)[:, None, :]
    first, second = x[..., :half].astype(np.float64), x[..., half:].astype(np.float64)
    return np.concatenate([first * cos - second * sin, second * cos + first * sin], axis=-1).astype(np.float32)
