"""Weights of every GGUF type the engine claims, as f32.

Each function takes the raw blocks as uint8 [blocks, bytes_per_block] and returns f32 [blocks, weights_per_block],
in the order and with the roundings of the format's definition (`d * q + m` in f32).
"""

import numpy as np


def _f16(blocks, at):
    """The half-precision number at byte `at` of each block, as an f32 column."""
    return blocks[:, at : at + 2].copy().view("<f2").astype(np.float32)


def f32(blocks):
    return blocks.copy().view("<f4")


def f16(blocks):
    return blocks.copy().view("<f2").astype(np.float32)


def bf16(blocks):
    return (blocks.copy().view("<u2").astype(np.uint32) << 16).view(np.float32)


def q8_0(blocks):
    return _f16(blocks, 0) * blocks[:, 2:].copy().view(np.int8).astype(np.float32)


def _nibbles(packed):
    """Low nibbles of all bytes, then the high ones."""
    return np.concatenate([packed & 15, packed >> 4], axis=1)


def q4_0(blocks):
    return _f16(blocks, 0) * (_nibbles(blocks[:, 2:]).astype(np.float32) - np.float32(8))


def q4_1(blocks):
    return _f16(blocks, 0) * _nibbles(blocks[:, 4:]).astype(np.float32) + _f16(blocks, 2)


def _fifth_bits(blocks, at):
    bits = blocks[:, at : at + 4].copy().view("<u4")
    return ((bits >> np.arange(32, dtype=np.uint32)) & 1).astype(np.uint8) << 4


def q5_0(blocks):
    quants = _nibbles(blocks[:, 6:]) | _fifth_bits(blocks, 2)
    return _f16(blocks, 0) * (quants.astype(np.float32) - np.float32(16))


def q5_1(blocks):
    quants = _nibbles(blocks[:, 8:]) | _fifth_bits(blocks, 4)
    return _f16(blocks, 0) * quants.astype(np.float32) + _f16(blocks, 2)


def _k_scales_and_minima(packed):
    """Eight 6-bit scales and eight 6-bit minima out of twelve bytes."""
    low, middle, high = packed[:, 0:4], packed[:, 4:8], packed[:, 8:12]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=1)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=1)
    return scales.astype(np.float32), minima.astype(np.float32)


def q4_k(blocks):
    count = len(blocks)
    scales, minima = _k_scales_and_minima(blocks[:, 4:16])
    pairs = blocks[:, 16:].reshape(count, 4, 1, 32)
    quants = np.concatenate([pairs & 15, pairs >> 4], axis=2).reshape(count, 8, 32).astype(np.float32)
    scale = (_f16(blocks, 0) * scales)[:, :, None]
    minimum = (_f16(blocks, 2) * minima)[:, :, None]
    return (scale * quants - minimum).reshape(count, 256)


def q6_k(blocks):
    count = len(blocks)
    low = blocks[:, :128].reshape(count, 2, 1, 64)
    low = np.concatenate([low & 15, low >> 4], axis=2).reshape(count, 2, 4, 32)
    high = blocks[:, 128:192].reshape(count, 2, 1, 32)
    high = (high >> np.array([0, 2, 4, 6], dtype=np.uint8)[:, None]) & 3
    quants = (low | (high << 4)).astype(np.float32) - np.float32(32)
    scales = blocks[:, 192:208].copy().view(np.int8).astype(np.float32)
    scaled = (_f16(blocks, 208) * scales)[:, :, None] * quants.reshape(count, 16, 16)
    return scaled.reshape(count, 256)


# GGUF type id: (name, weights a block, bytes a block, function).
TYPES = {
    0: ("F32", 1, 4, f32),
    1: ("F16", 1, 2, f16),
    2: ("Q4_0", 32, 18, q4_0),
    3: ("Q4_1", 32, 20, q4_1),
    6: ("Q5_0", 32, 22, q5_0),
    7: ("Q5_1", 32, 24, q5_1),
    8: ("Q8_0", 32, 34, q8_0),
    12: ("Q4_K", 256, 144, q4_k),
    14: ("Q6_K", 256, 210, q6_k),
    30: ("BF16", 1, 2, bf16),
}


def dequantise(gguf, name):
    """The tensor `name` of a GgufFile as an f32 array of its shape."""
    info = gguf.tensors[name]
    if info.type_id not in TYPES:
        raise ValueError(f"tensor {name} has type {info.type_id}, which this reference does not read")
    _, weights, size, convert = TYPES[info.type_id]
    block_count = int(np.prod(info.shape)) // weights
    raw = np.frombuffer(gguf.bytes_from(info, block_count * size), dtype=np.uint8)
    return np.ascontiguousarray(convert(raw.reshape(block_count, size)).reshape(info.shape))
