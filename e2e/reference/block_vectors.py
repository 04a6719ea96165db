"""Writes what blocks of every quantised format mean by the `gguf` package, for the tests of the kernels.

    pip install gguf==0.19.0
    python block_vectors.py > ../../kernels/src/format/vectors.txt

A line is a format's name, a block's bytes and the weights' 32-bit floats, both in hexadecimal.
"""

import numpy
from gguf.constants import GGML_QUANT_SIZES, GGMLQuantizationType
from gguf.quants import dequantize

# Byte offsets of half-precision scales and minimums in a block.
HALVES = {
    "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q8_0": [0],
    "Q2_K": [80, 82], "Q3_K": [108], "Q4_K": [0, 2], "Q5_K": [0, 2], "Q6_K": [208], "IQ4_NL": [0],
}


def main() -> None:
    random = numpy.random.default_rng(6)
    for name, halves in HALVES.items():
        kind = GGMLQuantizationType[name]
        block = random.integers(0, 256, GGML_QUANT_SIZES[kind][1], dtype=numpy.uint8)
        for at in halves:
            scale = numpy.float16(random.uniform(-0.5, 0.5))
            block[at : at + 2] = numpy.frombuffer(scale.tobytes(), dtype=numpy.uint8)
        weights = dequantize(block.reshape(1, -1), kind).astype("<f4")
        print(name, block.tobytes().hex(), weights.tobytes().hex())


if __name__ == "__main__":
    main()
