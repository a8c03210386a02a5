#!/usr/bin/env python3
"""Goldens of our own storage formats (everything in quant/formats but GGUF's) from a second implementation in numpy,
with the narrow floats of the ml_dtypes package.

    pip install numpy ml_dtypes && python tests/quant/make_format_goldens.py tests/quant/formats.golden

Records, little-endian: name length (u32), name, rows (u32), cols (u32), row bytes (u32), the values to encode (f32), the
rows they encode to, and the values (f32) that these decode to.
"""
import struct
import sys

import ml_dtypes
import numpy as np

F = np.float32


def rint(x, lo, hi):
    return np.clip(np.rint(x), lo, hi)


def div(x, d):
    """x / d in f32, 0 where d is 0."""
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.where(d == 0, F(0), x.astype(F) / d.astype(F)).astype(F)


def f16(x):
    return np.clip(x, -65504, 65504).astype(np.float16)


def pack(q):
    """Levels (..., n) to bytes: of each 32 (or of 16, when there are no more), the first half low, the second high."""
    q = q.astype(np.uint8)
    half = min(q.shape[-1], 32) // 2
    q = q.reshape(*q.shape[:-1], -1, 2, half)
    b = q[..., 0, :] | q[..., 1, :] << 4
    return b.reshape(*b.shape[:-2], -1)


def unpack(b, half=16):
    b = b.reshape(*b.shape[:-1], -1, half)
    q = np.concatenate([b & 15, b >> 4], axis=-1)
    return q.reshape(*q.shape[:-2], -1).astype(np.int32)


def raw(x):
    x = np.ascontiguousarray(x)
    return x.view(np.uint8).reshape(*x.shape[:-1], -1) if x.ndim else x.reshape(1).view(np.uint8)


def signed_absmax(x):
    return np.take_along_axis(x, np.abs(x).argmax(-1)[..., None], -1)


# Each codec: encode(x of one row (cols,)) -> bytes; decode(bytes, cols) -> f32.
class I8Channel:
    head, group, size = 4, 1, 1

    def encode(x):
        d = (np.abs(x).max() / F(127)).astype(F)
        return np.concatenate([raw(d), rint(div(x, d), -127, 127).astype(np.int8).view(np.uint8)])

    def decode(b, n):
        return b[:4].view(F)[0] * b[4:].view(np.int8).astype(F)


def i8_group(g):
    class C:
        head, group, size = 0, g, 2 + g

        def encode(x):
            x = x.reshape(-1, g)
            d = f16(np.abs(x).max(-1, keepdims=True) / F(127))
            q = rint(div(x, d.astype(F)), -127, 127).astype(np.int8)
            return np.concatenate([raw(d), raw(q)], -1).ravel()

        def decode(b, n):
            b = b.reshape(-1, 2 + g)
            return (raw_to(b[:, :2], np.float16) * raw_to(b[:, 2:], np.int8).astype(F)).ravel()
    return C


def raw_to(b, t):
    x = np.ascontiguousarray(b).view(t)
    return x.astype(F) if t == np.float16 else x


def i4_group(g):
    class C:
        head, group, size = 0, g, 2 + g // 2

        def encode(x):
            x = x.reshape(-1, g)
            d = f16(signed_absmax(x) / F(-8))
            q = rint(div(x, d.astype(F)), -8, 7) + 8
            return np.concatenate([raw(d), pack(q)], -1).ravel()

        def decode(b, n):
            b = b.reshape(-1, C.size)
            return (raw_to(b[:, :2], np.float16) * (unpack(b[:, 2:]) - 8).astype(F)).ravel()
    return C


def u4_group(g):
    class C:
        head, group, size = 0, g, 4 + g // 2

        def encode(x):
            x = x.reshape(-1, g)
            lo, hi = x.min(-1, keepdims=True), x.max(-1, keepdims=True)
            d = f16(np.maximum((hi - lo) / F(15), np.abs(x).max(-1, keepdims=True) / F(2048)))
            z = f16(div(-lo, d.astype(F)))
            q = np.where(d == 0, 0, rint(div(x, d.astype(F)) + z.astype(F), 0, 15))
            return np.concatenate([raw(d), raw(z), pack(q)], -1).ravel()

        def decode(b, n):
            b = b.reshape(-1, C.size)
            d, z = raw_to(b[:, :2], np.float16), raw_to(b[:, 2:4], np.float16)
            return (d * (unpack(b[:, 4:]).astype(F) - z)).ravel()
    return C


class I4S8:
    head, group, size = 4, 32, 17

    def encode(x):
        scale = (np.abs(x).max() / F(7.5 * 255)).astype(F)
        x = x.reshape(-1, 32)
        step = np.abs(x).max(-1, keepdims=True) / F(7.5)
        s = np.where(step > 0, rint(div(step, scale), 1, 255), 0).astype(np.uint8)
        if scale == 0:
            s[:] = 0
        q = rint(div(x, scale * s.astype(F)), -8, 7) + 8
        return np.concatenate([raw(scale), np.concatenate([s, pack(q)], -1).ravel()])

    def decode(b, n):
        g = b[4:].reshape(-1, 17)
        return (b[:4].view(F)[0] * (g[:, :1].astype(np.int32) * (unpack(g[:, 1:]) - 8)).astype(F)).ravel()


def w4a8(g):
    class C:
        head, group, size = 4, g, 2 + g // 2

        def encode(x):
            scale = (np.abs(x).max() / F(119)).astype(F)
            w8 = rint(div(x, scale), -119, 119).reshape(-1, g)
            lo, hi = np.minimum(w8.min(-1, keepdims=True), 0), np.maximum(w8.max(-1, keepdims=True), 0)
            s = rint((hi - lo).astype(F) / F(15), 1, 16)
            z = rint((-lo).astype(F) / s.astype(F), 0, 15)
            q = np.clip(np.rint(w8.astype(F) / s.astype(F)) + z, 0, 15)
            blocks = np.concatenate([s.astype(np.uint8), z.astype(np.uint8), pack(q)], -1)
            w = (q - z) * s
            assert w.min() >= -128 and w.max() <= 127
            return np.concatenate([raw(scale), blocks.ravel()])

        def decode(b, n):
            k = b[4:].reshape(-1, C.size)
            w8 = (unpack(k[:, 2:]) - k[:, 1:2].astype(np.int32)) * k[:, :1].astype(np.int32)
            return (b[:4].view(F)[0] * w8.astype(F)).ravel()
    return C


def saturate(x, t):
    top = float(ml_dtypes.finfo(t).max)
    return np.clip(x, -top, top).astype(t)


def f8_channel(t):
    class C:
        head, group, size = 4, 1, 1

        def encode(x):
            scale = (np.abs(x).max() / F(ml_dtypes.finfo(t).max)).astype(F)
            return np.concatenate([raw(scale), raw(saturate(div(x, scale), t))])

        def decode(b, n):
            return b[4:].view(t).astype(F) * b[:4].view(F)[0]
    return C


def f8_g128(t):
    class C:
        head, group, size = 0, 128, 132

        def encode(x):
            x = x.reshape(-1, 128)
            d = (np.abs(x).max(-1, keepdims=True) / F(ml_dtypes.finfo(t).max)).astype(F)
            return np.concatenate([raw(d), raw(saturate(div(x, d), t))], -1).ravel()

        def decode(b, n):
            b = b.reshape(-1, 132)
            return (np.ascontiguousarray(b[:, 4:]).view(t).astype(F) * np.ascontiguousarray(b[:, :4]).view(F)).ravel()
    return C


def e2m1_bits(x):
    return raw(np.clip(x, -6, 6).astype(ml_dtypes.float4_e2m1fn))


def e2m1_value(q):
    return q.astype(np.uint8).view(ml_dtypes.float4_e2m1fn).astype(F)


class Mxfp4:
    head, group, size = 0, 32, 17

    def encode(x):
        x = x.reshape(-1, 32)
        top = np.abs(x).max(-1, keepdims=True)
        with np.errstate(divide="ignore"):
            e = np.where(top > 0, np.clip(np.floor(np.log2(top.astype(np.float64))) - 2 + 127, 0, 254), 0)
        e = e.astype(np.uint8)
        q = e2m1_bits((x.astype(np.float64) / 2.0 ** (e.astype(np.float64) - 127)).astype(F))
        return np.concatenate([e, pack(q)], -1).ravel()

    def decode(b, n):
        b = b.reshape(-1, 17)
        d = np.ascontiguousarray(b[:, :1]).view(ml_dtypes.float8_e8m0fnu).astype(F)
        return (e2m1_value(unpack(b[:, 1:])) * d).ravel()


class Nvfp4:
    head, group, size = 4, 16, 9

    def encode(x):
        scale = (np.abs(x).max() / F(448 * 6)).astype(F)
        x = x.reshape(-1, 16)
        s = saturate(div(np.abs(x).max(-1, keepdims=True) / F(6), scale), ml_dtypes.float8_e4m3fn)
        q = e2m1_bits(div(x, s.astype(F) * scale))
        q = np.where(s.astype(F) * scale > 0, q, 0)
        return np.concatenate([raw(scale), np.concatenate([raw(s), pack(q)], -1).ravel()])

    def decode(b, n):
        g = b[4:].reshape(-1, 9)
        d = np.ascontiguousarray(g[:, :1]).view(ml_dtypes.float8_e4m3fn).astype(F) * b[:4].view(F)[0]
        return (e2m1_value(unpack(g[:, 1:], 8)) * d).ravel()


CODECS = {
    "i8_channel": I8Channel, "i8_g64": i8_group(64), "i8_g128": i8_group(128),
    "i4_g64": i4_group(64), "i4_g128": i4_group(128),
    "u4_g32": u4_group(32), "u4_g64": u4_group(64), "u4_g128": u4_group(128),
    "i4_s8_g32": I4S8, "w4a8_g32": w4a8(32), "w4a8_g64": w4a8(64), "w4a8_g128": w4a8(128),
    "e4m3_channel": f8_channel(ml_dtypes.float8_e4m3fn), "e5m2_channel": f8_channel(ml_dtypes.float8_e5m2),
    "e4m3_g128": f8_g128(ml_dtypes.float8_e4m3fn), "e5m2_g128": f8_g128(ml_dtypes.float8_e5m2),
    "mxfp4": Mxfp4, "nvfp4": Nvfp4,
}


def rows_for(g, rng):
    n = max(2 * g, 32)
    x = (rng.standard_normal((9, n)) * 0.05).astype(F)
    x[1] *= F(1e3)
    x[2] = 0                                        # no scale
    x[3] = F(0.5)                                   # no range
    x[4, : n // 2] = np.abs(x[4, : n // 2]) + F(1)  # a group far from zero
    x[5] = rng.integers(-127, 128, n)               # whole numbers: ties after scaling
    x[5, 0] = 127
    x[6] = -np.abs(x[6])
    x[7, : n // 2] = 0                              # one empty group beside a full one
    x[8] *= np.logspace(-3, 0, n).astype(F)         # groups of very different size
    return x


def main(path):
    rng = np.random.default_rng(20251114)
    with open(path, "wb") as out:
        for name, codec in CODECS.items():
            x = rows_for(codec.group, rng)
            rows, cols = x.shape
            row_bytes = codec.head + cols // codec.group * codec.size
            b = np.stack([codec.encode(r) for r in x])
            assert b.shape == (rows, row_bytes), (name, b.shape, row_bytes)
            y = np.stack([codec.decode(r.copy(), cols) for r in b]).astype(F)
            out.write(struct.pack("<I", len(name)) + name.encode() + struct.pack("<III", rows, cols, row_bytes))
            out.write(x.astype("<f4").tobytes() + b.astype(np.uint8).tobytes() + y.astype("<f4").tobytes())


if __name__ == "__main__":
    main(sys.argv[1])
