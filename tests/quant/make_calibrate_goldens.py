#!/usr/bin/env python3
"""Writes calibrate_golden.json: weights, inputs, and what independent implementations of the quantizers (numpy, double
precision, the textbook formulation of each paper) make of them. Run: make_calibrate_goldens.py > calibrate_golden.json
"""
import json

import numpy as np

ROWS, COLS, SAMPLES, GROUP = 6, 64, 160, 32
rng = np.random.default_rng(7)


def rounded(a):
    return np.asarray(a, np.float32).astype(np.float64)


W = rng.standard_normal((ROWS, COLS)) * 0.02
W[:, 5] *= 8  # an outlier column
W[1, 40] = -0.4
W = rounded(W)
MIX = rng.standard_normal((COLS, COLS)) * 0.3 + np.eye(COLS)
X = rng.standard_normal((SAMPLES, COLS)) @ MIX
X[:, 3] *= 20
X[:, 17] = 0  # a channel nobody uses
X = np.round(X * 16) / 16  # short in the file
H = rounded(X.T @ X)


def quantize(x, scale, zero, low, high):
    if scale == 0:
        return np.clip(np.rint(np.full_like(x, zero)), low, high)
    return np.clip(np.rint(x / scale + zero), low, high)


def loss(x, scale, zero, low, high, norm=2.0, importance=None):
    e = np.abs(x - scale * (quantize(x, scale, zero, low, high) - zero)) ** norm
    return float((e if importance is None else e * importance).sum())


def groups(row):
    return [row[k:k + GROUP] for k in range(0, COLS, GROUP)]


def absmax_asym(x, low, high, part=1.0):
    scale = (x.max() - x.min()) * part / (high - low)
    first = (x.max() + x.min()) / 2 - (x.max() - x.min()) * part / 2
    return scale, low - first / scale


def best_mse(x, low, high, kind, norm=2.0, importance=None):
    end = x[np.argmax(np.abs(x))]
    found = None
    for step in range(81):
        part = 1 - 0.01 * step
        if kind == "asym":
            tries = [absmax_asym(x, low, high, part)]
        elif kind == "signed":
            tries = [(end * part / low, 0.0), (end * part / high, 0.0)]
        else:
            tries = [(abs(end) * part / high, 0.0)]
        for scale, zero in tries:
            value = loss(x, scale, zero, low, high, norm, importance)
            if found is None or value < found:
                found = value
    return found


def hqq_asym(x, low, high, iterations=20, p=0.7, beta=10.0, growth=1.01):
    scale, zero = absmax_asym(x, low, high)
    unit, best, least = abs(scale), zero, np.inf
    for _ in range(iterations):
        q = quantize(x, scale, zero, low, high)
        e = x - scale * (q - zero)
        error = np.abs(e).sum()
        if error >= least:
            break
        least, best = error, zero
        u = np.maximum(np.abs(e) / unit, 1e-6)
        shrunk = np.sign(e) * np.maximum(np.abs(e) / unit - u ** (p - 1) / beta, 0) * unit
        zero = float(np.mean(q - (x - shrunk) / scale))
        beta *= growth
    return float(np.abs(x - scale * (quantize(x, scale, best, low, high) - best)).sum())


def gptq(W, H, scale, low, high, order):
    """As in the paper's code: Cholesky of the inverse, upper."""
    H = H.copy()
    dead = np.diag(H) == 0
    damp = 0.01 * np.mean(np.diag(H))
    H[dead, dead] = 1
    H += damp * np.eye(COLS)
    perm = np.argsort(-np.diag(X.T @ X), kind="stable") if order else np.arange(COLS)
    inverse = np.linalg.inv(H[perm][:, perm])
    U = np.linalg.cholesky(inverse).T
    Q = np.zeros_like(W)
    work = W[:, perm].copy()
    for j in range(COLS):
        column = perm[j]
        s = scale[:, column // GROUP]
        q = np.clip(np.rint(work[:, j] / s), low, high)
        Q[:, column] = q
        e = (work[:, j] - q * s) / U[j, j]
        work[:, j + 1:] -= np.outer(e, U[j, j + 1:])
    return Q


out = {"rows": ROWS, "cols": COLS, "samples": SAMPLES, "group": GROUP}
out["weights"] = W.astype(np.float32).ravel().tolist()
out["inputs"] = X.astype(np.float32).ravel().tolist()
importance = rounded(np.mean(X * X, 0))
out["absmax_levels"], out["asym_levels"] = [], []
for row in W:
    for x in groups(row):
        out["absmax_levels"] += quantize(x, np.abs(x).max() / 7, 0, -8, 7).astype(int).tolist()
        out["asym_levels"] += quantize(x, *absmax_asym(x, 0, 15), 0, 15).astype(int).tolist()
per_group = [(x, importance[k * GROUP:(k + 1) * GROUP]) for row in W for k, x in enumerate(groups(row))]
out["mse_sym"] = [best_mse(x, -8, 7, "sym") for x, _ in per_group]
out["mse_signed"] = [best_mse(x, -8, 7, "signed") for x, _ in per_group]
out["mse_asym"] = [best_mse(x, 0, 15, "asym") for x, _ in per_group]
out["mse_norm24"] = [best_mse(x, -8, 7, "sym", 2.4) for x, _ in per_group]
out["mse_weighted"] = [best_mse(x, -8, 7, "signed", 2.0, i) for x, i in per_group]
out["hqq_asym"] = [hqq_asym(x, 0, 15) for x, _ in per_group]
scale = np.stack([[np.abs(x).max() / 7 for x in groups(row)] for row in W])
scale = rounded(scale)
for name, order in (("gptq", False), ("gptq_act_order", True)):
    Q = gptq(W, X.T @ X, scale, -8, 7, order)
    D = W - Q * np.repeat(scale, GROUP, 1)
    out[name + "_levels"] = Q.astype(int).ravel().tolist()
    out[name + "_error"] = float(np.trace(D @ (X.T @ X) @ D.T))
magnitude = np.mean(np.abs(X), 0)
magnitude[magnitude == 0] = magnitude[magnitude > 0].min()
awq = []
for k in range(20):
    s = magnitude ** (k / 20)
    s = s / np.sqrt(s.max() * s.min())
    S = W * s
    steps = np.stack([[np.abs(x).max() / 7 for x in groups(row)] for row in S])
    R = np.clip(np.rint(S / np.repeat(steps, GROUP, 1)), -8, 7) * np.repeat(steps, GROUP, 1) / s
    awq.append(float((((R - W) @ X.T) ** 2).sum()))
out["awq_losses"] = awq
xmax, wmax = np.abs(X).max(0), np.abs(W).max(0)
with np.errstate(divide="ignore", invalid="ignore"):
    smooth = xmax ** 0.5 / wmax ** 0.5
out["smoothquant"] = np.where((xmax > 0) & (wmax > 0), smooth, 1.0).tolist()


def short(v):
    if isinstance(v, float):
        return float(f"{v:.9g}")
    return [short(x) for x in v] if isinstance(v, list) else v


print(json.dumps({k: short(v) for k, v in out.items()}, separators=(",", ":")))
