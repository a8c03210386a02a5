#!/usr/bin/env python3
"""Gradients by PyTorch's autograd: gradients/ops.json and gradients/models.json.

    generate_gradients.py ops | models [NAME...]

ops     each case: our op's name and attributes, operands, the numbers that weight its result, and what torch.autograd makes of
        sum(weights * result) for each float operand, all in float64.
models  the tiny models of generate_models.py (their weights, tokens and loading): the mean loss over next tokens, and of each
        tensor's gradient its norm and its product with cos(0.9 k + 0.3). Products in float64; transformers itself keeps norms,
        rope tables and softmax in float32.
"""
import json
import math
import sys
import tempfile
from pathlib import Path

import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
OUT = HERE / "gradients"


def wave(shape, phase, scale=1.3, low=None):
    """Numbers of four digits, apart from each other; with `low` at least that."""
    x = torch.sin(torch.arange(math.prod(shape), dtype=torch.float64) * 1.7 + phase) * scale
    return (x if low is None else x.abs() + low).round(decimals=4).reshape(shape)


def case(op, function, shapes, attrs=None, ints=(), result=0, low=None, scale=1.3, constants=()):
    """`shapes`: of float operands, None left out; `ints`: (position, tensor) of operands that have no gradient, all others lie in
    front, between and behind them; `constants`: positions of those that are known when the graph is made. Results as torch has
    them."""
    operands = []
    at = dict(ints)
    floats = iter(shapes)
    for k in range(len(shapes) + len(at)):
        shape = None if k in at else next(floats)
        operands.append(at.get(k) if shape is None else wave(shape, 0.37 * k + 0.1, scale, low).requires_grad_())
    y = function(*operands)
    seed = wave(y.shape, 2.0, 0.9)
    (y * seed).sum().backward()
    def listed(k, t):
        if t is None: return None
        out = {"shape": list(t.shape)}
        if t.dtype == torch.float64:
            out["values"] = t.detach().flatten().tolist()
            # What depends on none of its numbers has a gradient of zeros.
            if t.requires_grad:
                gradient = torch.zeros_like(t) if t.grad is None else t.grad
                out["gradient"] = [float(f"{g:.9g}") for g in gradient.flatten().tolist()]
        else:
            out["integers"] = t.long().flatten().tolist()
            if t.dtype == torch.bool: out["bool"] = True
        if k in constants or (t.dim() == 0 and "integers" in out): out["constant"] = True
        return out
    return {"op": op, "attrs": attrs or {}, "result": result, "operands": [listed(k, t) for k, t in enumerate(operands)],
            "seed": seed.flatten().tolist()}


def hadamard(x):
    h = torch.ones(1, 1, dtype=torch.float64)
    for _ in range(2): h = torch.cat([torch.cat([h, h], 1), torch.cat([h, -h], 1)])
    return (x.unflatten(-1, (-1, 4)) @ (h.T / 2)).flatten(-2)


def recurrent(kind, order, **more):
    """ONNX's weights (1, gates x H, ...) have their gates in an order of their own: `order` has PyTorch's places there."""
    def run(x, w, r, b=None):
        H = r.shape[-1]
        turned = lambda t: t.unflatten(0, (len(order), H))[list(order)].flatten(0, 1)
        values = {"weight_ih_l0": turned(w[0]), "weight_hh_l0": turned(r[0])}
        if b is not None: values |= {"bias_ih_l0": turned(b[0].chunk(2)[0]), "bias_hh_l0": turned(b[0].chunk(2)[1])}
        layer = kind(x.shape[-1], H, bias=b is not None, dtype=torch.float64, **more)
        return torch.func.functional_call(layer, values, (x,))[0][:, None]
    return run


def causal_conv(x, w, bias, segments):
    parts = [F.conv1d(F.pad(part.T, (w.shape[1] - 1, 0)), w[:, None], bias, groups=len(w)).T
             for part in x.split(segments.unique_consecutive(return_counts=True)[1].tolist())]
    return torch.cat(parts)


def route(score, k, normalize, scale):
    def weights(logits, bias=None):
        s = {"softmax": lambda x: x.softmax(-1), "sigmoid": torch.sigmoid,
             "sqrt_softplus": lambda x: F.softplus(x).sqrt()}[score](logits)
        chosen = s.gather(1, (s if bias is None else s + bias).topk(k, -1).indices)
        return scale * (chosen / chosen.sum(-1, keepdim=True) if normalize else chosen)
    return weights


def grouped_linear(x, rows, start, bias, *weights):
    given = x[rows]
    return torch.cat([given[start[e]:start[e + 1]] @ w.T + bias[e] for e, w in enumerate(weights)])


def packed_attention(scale, causal, window, cap):
    def attend(q, k, v, positions, segments):
        T, H, D = q.shape
        K = k.shape[1]
        k, v = k.repeat_interleave(H // K, 1), v.repeat_interleave(H // K, 1)
        s = torch.einsum("thd,shd->hts", q, k) * scale
        if cap: s = cap * torch.tanh(s / cap)
        back = positions[:, None] - positions[None]
        seen = segments[:, None] == segments[None]
        if causal: seen = seen & (back >= 0)
        if window: seen = seen & (back < window)
        return torch.einsum("hts,shd->thd", s.masked_fill(~seen, -math.inf).softmax(-1), v)
    return attend


def rope(interleaved, inv_freq):
    def turn(x, positions):
        angle = positions[:, None].double() * torch.tensor(inv_freq, dtype=torch.float64)
        c, s = angle.cos()[:, None], angle.sin()[:, None]
        u, v = (x[..., 0::2], x[..., 1::2]) if interleaved else x.chunk(2, -1)
        p, q = u * c - v * s, v * c + u * s
        return torch.stack([p, q], -1).flatten(-2) if interleaved else torch.cat([p, q], -1)
    return turn


def ops():
    I = lambda *v: torch.tensor(v, dtype=torch.int64)
    cases = [
        case("gelu", F.gelu, [(3, 5)]),
        case("gelu", lambda x: F.gelu(x, approximate="tanh"), [(3, 5)], {"approximate": "tanh"}),
        case("silu", F.silu, [(3, 5)]), case("relu", F.relu, [(3, 5)]), case("elu", F.elu, [(3, 5)]),
        case("selu", F.selu, [(3, 5)]), case("mish", F.mish, [(3, 5)]), case("softplus", F.softplus, [(3, 5)]),
        case("softsign", F.softsign, [(3, 5)]), case("leaky_relu", F.leaky_relu, [(3, 5)]),
        case("hard_swish", F.hardswish, [(3, 5)]),
        case("erf", torch.erf, [(7,)]), case("tanh", torch.tanh, [(7,)]), case("tan", torch.tan, [(7,)]),
        case("atan", torch.atan, [(7,)]), case("asinh", torch.asinh, [(7,)]), case("log", torch.log, [(7,)], low=0.3),
        case("rsqrt", torch.rsqrt, [(7,)], low=0.3), case("pow", torch.pow, [(3, 4), (4,)], low=0.3),
        case("div", torch.div, [(3, 4), (3, 1)], low=0.5), case("mul", torch.mul, [(2, 1, 4), (3, 1)]),
        case("max", torch.maximum, [(3, 4), (4,)]),
        case("matmul", torch.matmul, [(2, 3, 4), (2, 4, 5)]),
        case("linear", lambda x, _, w, b: F.linear(x, w, b), [(3, 4), None, (5, 4), (5,)]),
        case("softmax", lambda x: x.softmax(-1), [(3, 5)]), case("log_softmax", lambda x: x.log_softmax(-1), [(3, 5)]),
        case("reduce_mean", lambda x: x.mean((0, 2)), [(3, 4, 2)], {"axes": [0, 2], "keepdims": 0}),
        case("reduce_max", lambda x: x.amax(1), [(3, 4, 2)], {"axes": [1], "keepdims": 0}),
        case("reduce_log_sum_exp", lambda x: x.logsumexp(1), [(3, 4)], {"axes": [1], "keepdims": 0}),
        case("cum_sum", lambda x, a: x.cumsum(1), [(3, 4)], {}, [(1, torch.tensor(1))]),
        case("layer_norm", lambda x, w, b: F.layer_norm(x, (5,), w, b, 1e-5), [(3, 5), (5,), (5,)], {"epsilon": 1e-5}),
        case("rms_norm", lambda x, w: F.rms_norm(x, (5,), w, 1e-5), [(3, 5), (5,)], {"epsilon": 1e-5}),
        case("group_norm", lambda x, w, b: F.group_norm(x, 2, w, b, 1e-5), [(2, 4, 3), (4,), (4,)],
             {"num_groups": 2, "epsilon": 1e-5}),
        case("instance_norm", lambda x, w, b: F.instance_norm(x, None, None, w, b, True, 0.1, 1e-5), [(2, 3, 5), (3,), (3,)],
             {"epsilon": 1e-5}),
        case("batch_norm", lambda x, w, b, m, v: F.batch_norm(x, None, None, w, b, True, 0.1, 1e-5) + 0 * m.sum() + 0 * v.sum(),
             [(4, 3, 2), (3,), (3,), (3,), (3,)], {"training_mode": 1, "epsilon": 1e-5}, low=0.1),
        case("embedding", lambda w, i: F.embedding(i, w), [(6, 3)], {}, [(1, I(2, 0, 2, 5))]),
        case("gather_elements", lambda x, i: x.gather(1, i), [(3, 5)], {"axis": 1}, [(1, I(0, 4, 4, 1, 2, 2).reshape(3, 2))]),
        case("scatter_elements", lambda x, i, u: x.scatter_add(1, i, u), [(3, 5), (3, 2)], {"axis": 1, "reduction": "add"},
             [(1, I(0, 4, 4, 1, 2, 2).reshape(3, 2))]),
        case("softmax_cross_entropy_loss", lambda x, t: F.cross_entropy(x, t), [(5, 7)], {}, [(1, I(0, 6, 3, 3, 1))]),
        case("softmax_cross_entropy_loss", lambda x, t: F.cross_entropy(x, t, ignore_index=3, reduction="sum"), [(5, 7)],
             {"ignore_index": 3, "reduction": "sum"}, [(1, I(0, 6, 3, 3, 1))]),
        case("swiglu", lambda g, u: F.silu(g) * u, [(3, 5), (3, 5)]),
    ]
    positions, segments = I(0, 1, 2, 0, 1, 2), I(0, 0, 0, 4, 4, 4)
    for causal, window, cap in ((1, 0, 0.0), (0, 0, 0.0), (1, 2, 2.5)):
        cases.append(case("attention", packed_attention(0.5, causal, window, cap), [(6, 4, 3), (6, 2, 3), (6, 2, 3)],
                          {"scale": 0.5, "causal": causal, "window": window, "softcap": cap}, [(3, positions), (4, segments)]))
    for interleaved in (0, 1):
        turned = rope(interleaved, [1.0, 0.25])
        cases.append(case("rope", lambda x, p, f, turned=turned: turned(x, p), [(3, 2, 4)], {"interleaved": interleaved},
                          [(1, I(0, 3, 9)), (2, torch.tensor([1.0, 0.25], dtype=torch.float64))]))
    return cases + elementwise() + moves() + windows() + layers()


def elementwise():
    one = lambda op, function=None, **more: case(op, function or getattr(torch, op), [(7,)], **more)
    cases = [
        *(one(op) for op in ("abs", "neg", "exp", "sin", "cos", "sinh", "cosh", "square", "sigmoid")),
        *(one(op, scale=0.7) for op in ("acos", "asin", "atanh")), one("acosh", low=1.4), one("sqrt", low=0.3),
        one("reciprocal", low=0.3), one("celu", F.celu), one("hard_sigmoid", lambda x: (0.2 * x + 0.5).clamp(0, 1)),
        one("shrink", F.hardshrink), one("thresholded_relu", lambda x: F.threshold(x, 1.0, 0.0)),
        one("identity", torch.clone), one("contiguous", torch.clone), one("dropout", torch.clone),
        one("cast", torch.clone, attrs={"to": "f32"}),
        case("celu", lambda x: F.celu(x, 0.7), [(3, 5)], {"alpha": 0.7}),
        case("elu", lambda x: F.elu(x, 0.7), [(3, 5)], {"alpha": 0.7}),
        case("add", torch.add, [(3, 4), (4,)]), case("sub", torch.sub, [(3, 1), (2, 1, 4)]),
        case("min", torch.minimum, [(3, 4), (4,)]), case("clip", torch.clamp, [(3, 5), (), ()]),
        case("prelu", lambda x, w: torch.where(x > 0, x, x * w), [(3, 5), (5,)]),
        case("where", torch.where, [(2, 3), (3,)], {}, [(0, torch.tensor([[True, False, True], [False, False, True]]))]),
    ]
    for op, function in {"reduce_sum": torch.sum, "reduce_min": torch.amin, "reduce_sum_square": lambda x, d: (x * x).sum(d),
                         "reduce_l1": lambda x, d: x.abs().sum(d), "reduce_l2": lambda x, d: (x * x).sum(d).sqrt(),
                         "reduce_prod": lambda x, d: x.prod(d[0]), "reduce_log_sum": lambda x, d: x.sum(d).log()}.items():
        axes = [1] if op == "reduce_prod" else [0, 2]
        cases.append(case(op, lambda x, f=function, d=axes: f(x, d), [(3, 4, 2)], {"axes": axes, "keepdims": 0},
                          low=0.3 if op == "reduce_log_sum" else None))
    return cases


def moves():
    I = lambda *v: torch.tensor(v, dtype=torch.int64)
    apart = lambda x: x.unflatten(3, (3, 2)).unflatten(2, (2, 2)).permute(0, 3, 5, 1, 2, 4).flatten(1, 3)
    together = lambda x: x.unflatten(1, (2, 2, 2)).permute(0, 3, 4, 1, 5, 2).flatten(4, 5).flatten(2, 3)
    return [
        case("reshape", lambda x: x.reshape(5, 3), [(3, 5)], {"shape": [5, -1]}),
        case("flatten", lambda x: x.reshape(2, 6), [(2, 3, 2)]), case("squeeze", lambda x: x[:, 0], [(3, 1, 5)], {"axes": [1]}),
        case("unsqueeze", lambda x: x[:, None], [(3, 5)], {"axes": [1]}),
        case("transpose", lambda x: x.permute(2, 0, 1), [(2, 3, 4)], {"perm": [2, 0, 1]}),
        case("slice", lambda x: x[1:7:3].flip(1)[:, ::2], [(8, 7)],
             {"axes": [0, 1], "starts": [1, 6], "ends": [7, -100], "steps": [3, -2]}),
        case("concat", lambda *x: torch.cat(x, 1), [(3, 2), (3, 1), (3, 4)], {"axis": 1}),
        case("expand", lambda x: x.expand(2, 3, 4), [(3, 1)], {"shape": [2, 3, 4]}),
        case("tile", lambda x: x.repeat(2, 1, 3), [(3, 2)], {"repeats": [2, 1, 3]}),
        case("pad", lambda x: F.pad(x, (0, 3, 1, 2)), [(3, 5)], {"pads": [1, 0, 2, 3]}),
        case("trilu", torch.triu, [(3, 5)]),
        case("trilu", lambda x, _: x.tril(1), [(2, 4, 3)], {"upper": 0}, [(1, torch.tensor(1))]),
        case("depth_to_space", lambda x: F.pixel_shuffle(x, 2), [(1, 8, 2, 3)], {"blocksize": 2, "mode": "CRD"}),
        case("depth_to_space", together, [(1, 8, 2, 3)], {"blocksize": 2, "mode": "DCR"}),
        case("space_to_depth", apart, [(1, 2, 4, 6)], {"blocksize": 2, "mode": "DCR"}),
        case("gather", lambda x, i: x[:, i], [(3, 5)], {"axis": 1}, [(1, I(4, 0, 4, 1).reshape(2, 2))]),
        case("gather_nd", lambda x, i: x[i[:, 0], i[:, 1]], [(4, 5, 2)], {}, [(1, I(0, 3, 2, 4, 0, 3).reshape(3, 2))]),
        case("scatter_nd", lambda x, i, u: x.index_put((i[:, 0],), u), [(4, 3), (2, 3)], {}, [(1, I(2, 0).reshape(2, 1))]),
        case("scatter_nd", lambda x, i, u: x.index_add(0, i[:, 0], u), [(4, 3), (3, 3)], {"reduction": "add"},
             [(1, I(2, 0, 2).reshape(3, 1))]),
        case("scatter_elements", lambda x, i, u: x.scatter(1, i, u), [(3, 5), (3, 2)], {"axis": 1},
             [(1, I(0, 4, 3, 1, 2, 0).reshape(3, 2))]),
        case("hadamard", hadamard, [(3, 8)], {"block": 4}),
    ]


def windows():
    return [
        case("conv", F.conv1d, [(2, 3, 6), (4, 3, 3), (4,)]),
        case("conv", lambda x, w: F.conv2d(F.pad(x, (0, 2, 1, 0)), w, None, (2, 3), 0, (1, 2)), [(2, 3, 6, 7), (2, 3, 3, 2)],
             {"strides": [2, 3], "pads": [1, 0, 0, 2], "dilations": [1, 2]}),
        case("conv", lambda x, w, b: F.conv2d(x, w, b, 1, 1, 1, 2), [(1, 4, 4, 3), (6, 2, 3, 3), (6,)],
             {"group": 2, "pads": [1, 1, 1, 1]}),
        case("conv_transpose", lambda x, w, b: F.conv_transpose1d(x, w, b, 2, 1, 1), [(2, 3, 4), (3, 2, 3), (2,)],
             {"strides": [2], "pads": [1, 1], "output_padding": [1]}),
        case("conv_transpose", lambda x, w: F.conv_transpose2d(x, w, None, 1, 0, 0, 2, (2, 1)), [(1, 4, 3, 3), (4, 2, 2, 3)],
             {"group": 2, "dilations": [2, 1]}),
        case("max_pool", lambda x: F.max_pool2d(x, (2, 3), (2, 1)), [(1, 2, 5, 6)], {"kernel_shape": [2, 3], "strides": [2, 1]}),
        case("max_pool", lambda x: F.max_pool1d(x, 3, 2, 1), [(2, 3, 6)], {"kernel_shape": [3], "strides": [2], "pads": [1, 1]}),
        case("average_pool", lambda x: F.avg_pool2d(x, (2, 3), (2, 1)), [(1, 2, 5, 6)],
             {"kernel_shape": [2, 3], "strides": [2, 1]}),
        *(case("average_pool", lambda x, all=count: F.avg_pool1d(x, 3, 2, 1, count_include_pad=bool(all)), [(2, 3, 6)],
               {"kernel_shape": [3], "strides": [2], "pads": [1, 1], "count_include_pad": count}) for count in (0, 1)),
        case("lp_pool", lambda x: F.lp_pool2d(x, 2, (2, 3), (2, 1)), [(1, 2, 5, 6)], {"kernel_shape": [2, 3], "strides": [2, 1]}),
        case("global_average_pool", lambda x: x.mean((2, 3), True), [(2, 3, 2, 3)]),
        case("global_max_pool", lambda x: x.amax(2, True), [(2, 3, 4)]),
        case("global_lp_pool", lambda x: x.norm(3, 2, True), [(2, 3, 4)], {"p": 3}),
        case("resize", lambda x, _r, _s, n: F.interpolate(x, n.tolist(), mode="bilinear"), [(1, 2, 3, 4), None, None],
             {"mode": "linear", "axes": [2, 3]}, [(3, torch.tensor([5, 3]))], constants=(3,)),
        case("resize", lambda x, _r, _s, n: F.interpolate(x, n.tolist(), mode="bicubic", align_corners=True),
             [(1, 1, 3, 4), None, None], {"mode": "cubic", "axes": [2, 3], "coordinate_transformation_mode": "align_corners"},
             [(3, torch.tensor([4, 7]))], constants=(3,)),
        case("resize", lambda x, _r, _s, n: F.interpolate(x, n.tolist(), mode="nearest-exact"), [(1, 2, 3), None, None],
             {"mode": "nearest", "axes": [2]}, [(3, torch.tensor([7]))], constants=(3,)),
        case("lrn", lambda x: F.local_response_norm(x, 3, 0.5, 0.75, 1.5), [(2, 5, 3)], {"size": 3, "alpha": 0.5, "bias": 1.5}),
        case("causal_conv", causal_conv, [(5, 3), (3, 2), (3,)], {}, [(3, torch.tensor([0, 0, 0, 1, 1]))]),
        case("causal_conv_with_state", lambda x, w, b, past: F.conv1d(torch.cat([past, x], 2), w, b, groups=3),
             [(2, 3, 4), (3, 1, 3), (3,), (2, 3, 2)]),
    ]


def layers():
    I = lambda *v: torch.tensor(v, dtype=torch.int64)
    return [
        case("einsum", lambda *x: torch.einsum("bij,bjk->bik", *x), [(2, 3, 4), (2, 4, 5)], {"equation": "bij,bjk->bik"}),
        case("einsum", lambda *x: torch.einsum("ij,j->", *x), [(3, 4), (4,)], {"equation": "ij,j->"}),
        case("linear", lambda x, r, w, b: x @ w + b + r, [(3, 4), (3, 5), (4, 5), (5,)], {"input_major": 1}),
        case("gated_linear", lambda g, u, r, w, b: F.linear(F.silu(g) * u, w, b) + r, [(3, 5), (3, 5), (3, 4), (4, 5), (4,)]),
        *(case("add_rms_norm", f, [(3, 5), (3, 5), (5,)], {"epsilon": 1e-3}, result=k) for k, f in enumerate(
            (lambda x, r, w: F.rms_norm(x + r, (5,), w, 1e-3), lambda x, r, w: x + r))),
        case("lp_normalization", lambda x: F.normalize(x, 2, -1), [(3, 5)]),
        case("mean_variance_normalization", lambda x: (x - x.mean((0, 2), True)) / x.std((0, 2), correction=0, keepdim=True),
             [(2, 3, 5)], {"axes": [0, 2]}),
        case("nll_loss", lambda x, t: F.nll_loss(x, t), [(5, 7)], {}, [(1, I(0, 6, 3, 3, 1))]),
        case("nll_loss", lambda x, t, w: F.nll_loss(x, t, w, ignore_index=3), [(5, 7)], {"ignore_index": 3},
             [(1, I(0, 6, 3, 3, 1)), (2, wave((7,), 0.4, low=0.3))]),
        case("softmax_cross_entropy_loss", lambda x, t, w: F.cross_entropy(x, t, w), [(2, 3, 4)], {},
             [(1, I(0, 2, 1, 1, 2, 0, 0, 2).reshape(2, 4)), (2, wave((3,), 0.4, low=0.3))]),
        case("head_attention", F.scaled_dot_product_attention, [(1, 2, 3, 4), (1, 2, 5, 4), (1, 2, 5, 3)]),
        case("head_attention",
             lambda q, k, v: F.scaled_dot_product_attention(q, k, v, is_causal=True, enable_gqa=True, scale=0.7),
             [(1, 4, 3, 4), (1, 2, 3, 4), (1, 2, 3, 3)], {"is_causal": 1, "scale": 0.7}),
        # PyTorch's gates: of a GRU r, z, n; of an LSTM i, f, g, o. ONNX's: z, r, h; i, o, f, c.
        *(case(op, recurrent(kind, order),
               [(3, 2, 4), (1, 2 * len(order), 4), (1, 2 * len(order), 2)] + [(1, 4 * len(order))] * bias,
               {"hidden_size": 2} | ({"linear_before_reset": 1} if op == "gru" else {}))
          for op, kind, order in (("rnn", torch.nn.RNN, (0,)), ("gru", torch.nn.GRU, (1, 0, 2)),
                                  ("lstm", torch.nn.LSTM, (0, 2, 3, 1)))
          for bias in (0, 1)),
        *(case("moe_route", route(score, 2, normalize, 1.3), [(4, 5)],
               {"top_k": 2, "score": score, "normalize": normalize, "scale": 1.3}, result=2)
          for score in ("softmax", "sigmoid", "sqrt_softplus") for normalize in (0, 1)),
        case("moe_route", route("sigmoid", 2, 1, 1.0), [(4, 5)], {"top_k": 2, "score": "sigmoid"},
             [(1, wave((5,), 0.9, 0.4))], result=2),
        case("moe_combine", lambda y, slot, w: (y[slot] * w[..., None]).sum(1), [(6, 3), (3, 2)], {},
             [(1, I(0, 3, 1, 4, 5, 2).reshape(3, 2))]),
        case("grouped_linear", grouped_linear, [(2, 4), (3, 3), (3, 4), (3, 4), (3, 4)], {"experts": 3},
             [(1, I(0, 1, 0, 1)), (2, I(0, 1, 1, 4))]),
    ]


def models(names):
    sys.path.insert(0, str(HERE))
    import generate_models as tiny
    from safetensors.torch import load_file
    path = OUT / "models.json"
    found = json.loads(path.read_text()) if path.exists() else {}
    for name in names or tiny.MODELS:
        manifest = json.loads((tiny.GOLDEN / f"{name}.json").read_text())
        with tempfile.TemporaryDirectory() as temp:
            folder = Path(temp)
            (folder / "config.json").write_text((tiny.CONFIGS / f"tiny-{name}.json").read_text())
            model = tiny.load(folder, {t["name"]: tiny.tiny_weights(t["name"], tuple(t["shape"]), manifest["weight_seed"])
                                       for t in manifest["tensors"]})
        tokens = torch.tensor([manifest["tokens"]])
        logits = model(tokens[:, :-1]).logits[0]
        loss = F.cross_entropy(logits, tokens[0, 1:])
        loss.backward()
        # A checkpoint's tensors are parts of parameters, and so are their gradients, in its own names.
        with torch.no_grad():
            for p in model.parameters(): p.copy_(torch.zeros_like(p) if p.grad is None else p.grad)
        with tempfile.TemporaryDirectory() as saved:
            model.save_pretrained(saved)
            gradients = load_file(f"{saved}/model.safetensors")
        found[name] = {"loss": loss.item(), "gradients": {}}
        for t in manifest["tensors"]:
            g = gradients[t["name"]].double().flatten()
            if "e_score_correction_bias" in t["name"]: continue  # a buffer
            along = torch.cos(0.9 * torch.arange(len(g), dtype=torch.float64) + 0.3)
            found[name]["gradients"][t["name"]] = [float(f"{g.norm().item():.9g}"), float(f"{(g @ along).item():.9g}")]
        print(name, loss.item())
        path.write_text("{\n" + ",\n".join(
            f' {json.dumps(n)}: {{"loss": {m["loss"]}, "gradients": {{\n' + ",\n".join(
                f"  {json.dumps(t)}: {json.dumps(v)}" for t, v in m["gradients"].items()) + "\n }}" for n, m in sorted(found.items()))
            + "\n}\n")


def main():
    OUT.mkdir(exist_ok=True)
    if sys.argv[1] == "ops":
        (OUT / "ops.json").write_text("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in ops()) + "\n]\n")
    else:
        models(sys.argv[2:])


if __name__ == "__main__":
    main()
