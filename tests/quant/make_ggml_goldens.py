#!/usr/bin/env python3
"""Goldens of the GGUF block formats from an independent implementation: the `gguf` package's numpy quantizers.

    pip install gguf numpy && python tests/quant/make_ggml_goldens.py tests/quant/ggml_blocks.golden

Records, little-endian: kind (u32, 0 decode, 1 encode), name length (u32), name, block count (u32), block bytes (u32),
block elements (u32), the blocks, then the elements as f32. A decode record says what the blocks decode to; an encode
record, which blocks the elements encode to.
"""
import struct
import sys

import numpy as np
from gguf import GGML_QUANT_SIZES, GGMLQuantizationType as Q
from gguf.quants import dequantize, quantize

# Where each f16 field of a block lies: random bytes there would often be NaN or infinity.
F16_FIELDS = {"Q8_0": [0], "Q4_0": [0], "Q4_1": [0, 2], "Q5_0": [0], "Q5_1": [0, 2], "Q4_K": [0, 2], "Q5_K": [0, 2],
              "Q6_K": [208], "Q2_K": [80, 82], "Q3_K": [108], "IQ4_NL": [0], "IQ4_XS": [0], "MXFP4": [],
              "IQ2_XXS": [0], "IQ2_XS": [0], "IQ2_S": [0], "IQ3_XXS": [0], "IQ3_S": [0]}
ENCODED = ["Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1"]


def record(out, kind, name, blocks, elements):
    count, size = blocks.shape
    label = name.lower().encode()
    out.write(struct.pack("<II", kind, len(label)) + label)
    out.write(struct.pack("<III", count, size, elements.size // count))
    out.write(blocks.astype(np.uint8).tobytes() + elements.astype("<f4").tobytes())


def main(path):
    rng = np.random.default_rng(20240607)
    with open(path, "wb") as out:
        for name, fields in F16_FIELDS.items():
            elems, size = GGML_QUANT_SIZES[Q[name]]
            blocks = rng.integers(0, 256, (3 if elems == 256 else 8, size), dtype=np.uint8)
            for at in fields:
                scale = (rng.standard_normal(len(blocks)) * 0.02).astype("<f2")
                blocks[:, at:at + 2] = scale.view(np.uint8).reshape(-1, 2)
            if name == "MXFP4":  # exponents near those of weights; 255 is NaN in one reading and a number in the other
                blocks[:, 0] = rng.integers(90, 140, len(blocks))
            record(out, 0, name, blocks, dequantize(blocks, Q[name]))
        for name in ENCODED:
            elems, size = GGML_QUANT_SIZES[Q[name]]
            x = rng.standard_normal((12, elems)).astype(np.float32)
            x[1] *= 1e-4
            x[2] *= 1e3
            x[3] = 0                                   # no scale
            x[4] = 0.5                                 # no range
            x[5, :] = np.linspace(-1, 1, elems)        # the two extremes tie in magnitude
            x[6, :] = rng.integers(-127, 128, elems)   # integers: halves after scaling
            x[6, 0] = 127
            x[7, :] = -abs(x[7])
            x[8, :] = 0
            x[8, 7] = 1e-7                             # the scale underflows to an f16 subnormal
            x[9, :] = (rng.integers(-8, 8, elems) + 0.5) / 8
            record(out, 1, name, quantize(x, Q[name]).reshape(len(x), size), x)


if __name__ == "__main__":
    main(sys.argv[1])
