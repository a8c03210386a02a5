"""Deterministic weights for tiny models, the same bits as tests/support/tiny_weights.cc makes (rule: README.md)."""

import numpy as np

FNV_OFFSET, FNV_PRIME = 0xCBF29CE484222325, 0x100000001B3
GOLDEN_GAMMA = 0x9E3779B97F4A7C15
MASK = (1 << 64) - 1


def fnv1a64(data: bytes) -> int:
    h = FNV_OFFSET
    for byte in data: h = ((h ^ byte) * FNV_PRIME) & MASK
    return h


def splitmix64(seed: int, count: int) -> np.ndarray:
    """The first `count` outputs of splitmix64 started at `seed`; output i depends on seed and i alone."""
    with np.errstate(over="ignore"):
        z = np.uint64(seed) + np.uint64(GOLDEN_GAMMA) * np.arange(1, count + 1, dtype=np.uint64)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def tiny_weights(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """float32 array; every value is an integer of at most 24 bits times a power of two, so nothing is rounded."""
    count = int(np.prod(shape))
    k = (splitmix64(fnv1a64(name.encode()) ^ seed, count) >> np.uint64(42)).astype(np.int64) - 2**21  # [-2^21, 2^21)
    if len(shape) == 1 and name.endswith(("weight", "scale", "scalar")):  # a norm: 1 +- 1/4
        values = (2**23 + k).astype(np.float64) * 2.0**-23
    elif len(shape) == 1:  # a bias: +- 1/8
        values = k.astype(np.float64) * 2.0**-24
    else:  # a matrix: +- 2^-e, the smallest such range that is not below sqrt(3 / shape[-1])
        e = 0
        while 3 * 4 ** (e + 1) <= shape[-1]: e += 1
        values = k.astype(np.float64) * 2.0 ** -(21 + e)
    out = values.astype(np.float32).reshape(shape)
    assert (out.astype(np.float64).ravel() == values).all()
    return out


def is_bytes(name: str) -> bool:
    """Codes and scales of mxfp4."""
    return name.endswith(("_blocks", "_scales"))


def tiny_bytes(name: str, shape: tuple[int, ...], seed: int) -> np.ndarray:
    """uint8 array: any codes, and exponents of 2^-6 to 2^-3."""
    z = splitmix64(fnv1a64(name.encode()) ^ seed, int(np.prod(shape)))
    values = z >> np.uint64(56) if name.endswith("_blocks") else np.uint64(121) + (z >> np.uint64(62))
    return values.astype(np.uint8).reshape(shape)


def round_to_bf16(x: np.ndarray) -> np.ndarray:
    """Round to nearest even, kept in float32. Finite input only."""
    bits = x.view(np.uint32)
    bits = (bits + 0x7FFF + ((bits >> 16) & 1)) & np.uint32(0xFFFF0000)
    return bits.view(np.float32)


def checksum(x: np.ndarray) -> str:
    """FNV-1a over the little-endian float32 bytes, or over the bytes."""
    return f"{fnv1a64((x if x.dtype == np.uint8 else x.astype('<f4')).tobytes()):016x}"
