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


def wave(shape, phase, scale=1.3, offset=0.0):
    n = math.prod(shape)
    return (torch.sin(torch.arange(n, dtype=torch.float64) * 1.7 + phase) * scale + offset).reshape(shape)


def case(op, function, shapes, attrs=None, ints=(), result=0, low=None):
    """`shapes`: of float operands, None left out; `ints`: (position, tensor) of integer operands. Results as torch has them."""
    operands, leaves = [], []
    at = dict(ints)
    total = len(shapes) + len(at)
    floats = iter(shapes)
    for k in range(total):
        if k in at:
            operands.append(at[k])
            continue
        shape = next(floats)
        if shape is None:
            operands.append(None)
            continue
        x = wave(shape, 0.37 * k + 0.1)
        if low is not None: x = x.abs() + low
        leaves.append(x.requires_grad_())
        operands.append(x)
    y = function(*operands)
    seed = wave(y.shape, 2.0, 0.9)
    (y * seed).sum().backward()
    def listed(t):
        if t is None: return None
        if t.dtype == torch.float64:
            return {"shape": list(t.shape), "values": t.detach().flatten().tolist(), "gradient": t.grad.flatten().tolist()}
        return {"shape": list(t.shape), "integers": t.flatten().tolist()}
    return {"op": op, "attrs": attrs or {}, "result": result, "operands": [listed(t) for t in operands],
            "seed": seed.flatten().tolist()}


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
        frequencies = [1.0, 0.25]
        turned = rope(interleaved, frequencies)
        c = case("rope", lambda x, p, turned=turned: turned(x, p), [(3, 2, 4)], {"interleaved": interleaved}, [(1, I(0, 3, 9))])
        c["operands"].append({"shape": [2], "values": frequencies})
        cases.append(c)
    return cases


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
        (OUT / "ops.json").write_text("[\n" + ",\n".join(json.dumps(c) for c in ops()) + "\n]\n")
    else:
        models(sys.argv[2:])


if __name__ == "__main__":
    main()
