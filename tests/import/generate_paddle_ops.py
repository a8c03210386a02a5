#!/usr/bin/env python3
"""Small Paddle programs, one per op, with inputs and the results that PaddlePaddle computes from them on the CPU:
generate_paddle_ops.py OUTPUT.json (PIR json programs) or, with FLAGS_enable_pir_api=0 in the environment, OUTPUT.json
(ProgramDesc, base64). Needs `pip install paddlepaddle` (made with 3.3.1). Committed: golden/paddle_pir.json and
golden/paddle_legacy.json. An op that this Paddle cannot export is reported and left out.
"""
import base64
import json
import math
import os
import sys
import tempfile

import numpy as np
import paddle
import paddle.nn.functional as F

rng = np.random.RandomState(7)


def f(*shape, low=-2.0, high=2.0):
    return np.round(rng.uniform(low, high, shape), 3).astype("float32")


def i(*shape, low=0, high=5, dtype="int64"):
    return rng.randint(low, high, shape).astype(dtype)


def b(*shape):
    return rng.rand(*shape) > 0.5


X = f(2, 3, 4)
IMG = f(1, 4, 6, 6)
CASES = {}


def case(name, fn, *inputs, dynamic=True):
    CASES[name] = (fn, inputs, dynamic)


# ---- elementwise
for op in ("add", "subtract", "multiply", "divide", "maximum", "minimum"):
    case(op, lambda x, y, op=op: getattr(paddle, op)(x, y), X, f(3, 4, low=0.5))
case("elementwise_pow", lambda x, y: paddle.pow(x, y), f(2, 3, low=0.5), f(2, 3))
case("floor_divide", lambda x, y: paddle.floor_divide(x, y), i(2, 3, low=-9, high=9), np.array([2, -3, 4]))
case("floor_divide_float", lambda x, y: paddle.floor_divide(x, y), f(2, 3), f(3, low=0.5))
case("remainder", lambda x, y: paddle.remainder(x, y), i(2, 3, low=-9, high=9), np.array([2, -3, 4]))
case("remainder_float", lambda x, y: paddle.remainder(x, y), f(2, 3), np.array([0.7, -0.3, 1.5], "float32"))
for op in ("equal", "not_equal", "less_than", "less_equal", "greater_than", "greater_equal"):
    case(op, lambda x, y, op=op: getattr(paddle, op)(x, y), i(2, 3, high=3), i(3, high=3))
for op in ("logical_and", "logical_or"):
    case(op, lambda x, y, op=op: getattr(paddle, op)(x, y), b(2, 3), b(3))
case("logical_not", lambda x: paddle.logical_not(x), b(2, 3))
for op in ("bitwise_and", "bitwise_or"):
    case(op, lambda x, y, op=op: getattr(paddle, op)(x, y), i(2, 3, high=99), i(2, 3, high=99))
case("bitwise_not", lambda x: paddle.bitwise_not(x), b(2, 3))
for op in ("abs", "floor", "ceil", "exp", "sin", "cos", "square", "sign", "isnan", "erf"):
    case(op, lambda x, op=op: getattr(paddle, op)(x), X)
for op in ("sqrt", "rsqrt", "log", "reciprocal"):
    case(op, lambda x, op=op: getattr(paddle, op)(x), f(2, 3, low=0.2))
for op in ("relu", "relu6", "sigmoid", "tanh", "silu", "swish", "gelu", "hardswish", "hardsigmoid", "leaky_relu", "elu",
           "softplus", "mish", "softsign"):
    case(op, lambda x, op=op: getattr(F, op)(x), f(2, 3, 4, low=-8, high=8))
case("gelu_tanh", lambda x: F.gelu(x, approximate=True), X)
case("prelu", lambda x: F.prelu(x, paddle.assign(np.array([0.1, 0.2, 0.3, 0.4], "float32"))), IMG)
case("swiglu", lambda x: paddle.incubate.nn.functional.swiglu(x), X)
case("scale", lambda x: paddle.scale(x, 2.5, 0.5), X)
case("scale_before", lambda x: paddle.scale(x, 2.5, 0.5, bias_after_scale=False), X)
case("pow", lambda x: paddle.pow(x, 3.0), X)
case("clip", lambda x: paddle.clip(x, -0.5, 0.7), X)
case("cast", lambda x: paddle.cast(x, "int32"), X)
case("add_n", lambda x, y: paddle.add_n([x, y, x]), f(2, 3), f(2, 3))
case("where", lambda c, x, y: paddle.where(c, x, y), b(2, 3), f(2, 3), f(2, 3))
case("masked_fill", lambda x, m: paddle.masked_fill(x, m, -1.5), X, b(2, 3, 4))
# ---- reductions
for op in ("sum", "mean", "max", "min", "prod"):
    case(op, lambda x, op=op: getattr(paddle, op)(x, axis=1), X)
    case(op + "_keep", lambda x, op=op: getattr(paddle, op)(x, axis=[0, 2], keepdim=True), X)
    case(op + "_all", lambda x, op=op: getattr(paddle, op)(x), X)
for op in ("all", "any"):
    case(op, lambda x, op=op: getattr(paddle, op)(x, axis=-1), b(3, 4))
case("logsumexp", lambda x: paddle.logsumexp(x, axis=1), X)
case("p_norm", lambda x: paddle.norm(x, p=2, axis=-1), X)
case("p_norm_3", lambda x: paddle.norm(x, p=3, axis=1, keepdim=True), X)
case("argmax", lambda x: paddle.argmax(x, axis=1), X)
case("argmin", lambda x: paddle.argmin(x, axis=-1, keepdim=True), X)
case("cumsum", lambda x: paddle.cumsum(x, axis=1), X)
case("cumsum_flat", lambda x: paddle.cumsum(x), X)
case("softmax", lambda x: F.softmax(x, axis=1), X)
case("log_softmax", lambda x: F.log_softmax(x), X)
case("topk", lambda x: paddle.topk(x, 2, axis=1), X)
case("argsort", lambda x: paddle.argsort(x, axis=-1, descending=True), X)
# ---- products
case("matmul", lambda x, y: paddle.matmul(x, y), X, f(2, 4, 5))
case("matmul_transposed", lambda x, y: paddle.matmul(x, y, transpose_x=True, transpose_y=True), f(4, 3), f(5, 4))
case("bmm", lambda x, y: paddle.bmm(x, y), X, f(2, 4, 5))
case("einsum", lambda x, y: paddle.einsum("bij,bjk->bik", x, y), X, f(2, 4, 5))
case("fft_r2c", lambda x: paddle.real(paddle.fft.fft2(x)), X)
case("fft_r2c_ortho", lambda x: paddle.abs(paddle.fft.rfft(x, norm="ortho")), X)
# ---- shapes and constants
case("reshape", lambda x: paddle.reshape(x, [0, -1, 2]), X)
case("reshape_computed", lambda x: paddle.reshape(x, [paddle.shape(x)[0], -1]), X)
case("transpose", lambda x: paddle.transpose(x, [2, 0, 1]), X)
case("unsqueeze", lambda x: paddle.unsqueeze(x, [0, -1]), X)
case("squeeze", lambda x: paddle.squeeze(x, [1]), f(2, 1, 3))
case("flatten", lambda x: paddle.flatten(x, 1, 2), X)
case("flatten_middle", lambda x: paddle.flatten(x, 1, 2), f(2, 3, 2, 2))
case("shape", lambda x: paddle.shape(x) + 1, X)
case("numel", lambda x: paddle.numel(x) + 1, X)
case("expand", lambda x: paddle.expand(x, [2, -1, 4]), f(1, 3, 4))
case("expand_as", lambda x, y: paddle.expand_as(x, y), f(1, 3), f(2, 3))
case("tile", lambda x: paddle.tile(x, [2, 1, 3]), f(2, 3))
case("broadcast_tensors", lambda x, y: paddle.broadcast_tensors([x, y])[0], f(1, 3), f(2, 1))
case("meshgrid", lambda x, y: paddle.meshgrid(x, y), f(2), f(3))
case("concat", lambda x, y: paddle.concat([x, y], axis=1), f(2, 3), f(2, 2))
case("stack", lambda x, y: paddle.stack([x, y], axis=-1), f(2, 3), f(2, 3))
case("split", lambda x: paddle.split(x, [1, -1], axis=2), X)
case("split_with_num", lambda x: paddle.split(x, 2, axis=-1), X)
case("unbind", lambda x: paddle.unbind(x, axis=1), X, dynamic=False)
case("slice", lambda x: x[:, 1:3, -1], X)
case("slice_all", lambda x: paddle.shape(x)[1] + 0, X)
case("strided_slice", lambda x: x[:, ::-1, 0:4:2], X)
case("flip", lambda x: paddle.flip(x, axis=[1]), X)
case("roll", lambda x: paddle.roll(x, shifts=[1, -1], axis=[1, 2]), X)
case("triu", lambda x: paddle.triu(x, 1), X)
case("tril", lambda x: paddle.tril(x, -1), X)
case("diag", lambda x: paddle.diag(x), f(3))
case("pad", lambda x: F.pad(x, [1, 0, 0, 2], value=0.5), f(2, 3))
case("pad3d", lambda x: F.pad(x, [1, 2, 0, 1], mode="reflect", data_format="NCHW"), IMG)
case("full", lambda x: x + paddle.full([2, 1, 1], 0.25), X)
case("full_inf", lambda x: x + paddle.full([3, 4], -math.inf), X)
case("full_like", lambda x: paddle.full_like(x, 3) + x, X)
case("full_with_tensor", lambda x: paddle.full(paddle.shape(x), 2.0) + x, X)
case("arange", lambda x: paddle.arange(0, 7, 2) + x, i(1))
case("linspace", lambda x: paddle.linspace(0, 1, 5) + x, f(1))
case("one_hot", lambda x: F.one_hot(x, 5), i(2, 3))
case("assign_value", lambda x: x + paddle.assign(np.array([1.5, -2, 3], "float32")), f(2, 3))
# ---- indexing
case("embedding", lambda x: F.embedding(x, paddle.assign(np.arange(12, dtype="float32").reshape(6, 2))), i(2, 3))
case("gather", lambda x, k: paddle.gather(x, k, axis=1), X, np.array([2, 0]))
case("gather_nd", lambda x, k: paddle.gather_nd(x, k), X, np.array([[0, 1], [1, 2]]))
case("index_select", lambda x, k: paddle.index_select(x, k, axis=2), X, np.array([3, 1]))
case("index_sample", lambda x, k: paddle.index_sample(x, k), f(2, 4), i(2, 3, high=4))
case("take_along_axis", lambda x, k: paddle.take_along_axis(x, k, 1, broadcast=False), f(2, 4), i(2, 3, high=4))
case("scatter", lambda x, k, u: paddle.scatter(x, k, u), f(4, 2), np.array([2, 0]), f(2, 2))
case("scatter_add", lambda x, k, u: paddle.scatter(x, k, u, overwrite=False), f(4, 2), np.array([2, 0]), f(2, 2))
case("scatter_nd_add", lambda x, k, u: paddle.scatter_nd_add(x, k, u), f(4, 2), np.array([[2], [2]]), f(2, 2))
case("put_along_axis", lambda x, k, u: paddle.put_along_axis(x, k, u, 1), f(2, 4), i(2, 1, high=4), f(2, 1))
case("nonzero", lambda x: paddle.nonzero(x), b(2, 3))
case("masked_select", lambda x, m: paddle.masked_select(x, m), f(2, 3), b(2, 3))
case("index_put", lambda x, k, u: paddle.index_put(x, (k,), u), f(4, 2), np.array([2, 0]), f(2, 2))
case("repeat_interleave", lambda x: paddle.repeat_interleave(x, 2, axis=1), X)


def set_value(x):
    return paddle.static.setitem(x, (slice(None), slice(1, 3)), 0.5)


def set_value_tensor(x, v):
    return paddle.static.setitem(x, (slice(None), slice(None), 1), v)


case("set_value", set_value, X)
case("set_value_with_tensor", set_value_tensor, X, f(2, 3))
# ---- layers
CONSTANTS = {"W": f(4, 4, 3, 3), "DW": f(4, 1, 3, 3), "A": f(4), "B": f(4), "C": f(4), "POS": f(4, low=0.5)}


def const(name):
    return paddle.assign(CONSTANTS[name])


case("conv2d", lambda x: F.conv2d(x, const("W"), stride=2, padding=[1, 0]), IMG)
case("conv2d_same", lambda x: F.conv2d(x, const("W"), stride=2, padding="SAME"), IMG)
case("conv2d_four_pads", lambda x: F.conv2d(x, const("W"), padding=[1, 0, 2, 1], dilation=2), IMG)
case("conv2d_nhwc", lambda x: F.conv2d(x, const("W"), padding=1, data_format="NHWC"), f(1, 5, 5, 4))
case("depthwise_conv2d", lambda x: F.conv2d(x, const("DW"), padding=1, groups=4), IMG)
case("conv2d_transpose", lambda x: F.conv2d_transpose(x, const("W"), stride=2, padding=1, output_padding=1), IMG)
case("pool2d_max", lambda x: F.max_pool2d(x, 3, 2, 1), IMG)
case("pool2d_avg", lambda x: F.avg_pool2d(x, 3, 2, 1, exclusive=True), IMG)
case("pool2d_avg_inclusive", lambda x: F.avg_pool2d(x, 2, 2, 1, exclusive=False), IMG)
case("pool2d_global", lambda x: F.adaptive_avg_pool2d(x, 1), IMG)
FLAT = np.linspace(-1, 2, 10, dtype="float32").reshape(1, 2, 1, 5)  # lower than the window
case("pool2d_cut_max", lambda x: F.max_pool2d(x, 2, 2), FLAT)
case("pool2d_cut_avg", lambda x: F.avg_pool2d(x, 2, 2, exclusive=True), FLAT)
case("pool2d_cut_avg_inclusive", lambda x: F.avg_pool2d(x, 3, 3, 1, exclusive=False), FLAT[:, :, :, :1])
case("pool2d_adaptive", lambda x: F.adaptive_avg_pool2d(x, [2, 3]), IMG, dynamic=False)
case("batch_norm", lambda x: F.batch_norm(x, const("A"), const("POS"), const("B"), const("C"), training=False), IMG)
case("layer_norm", lambda x: F.layer_norm(x, 4, const("A"), const("B")), X)
case("layer_norm_plain", lambda x: F.layer_norm(x, [3, 4]), X)
case("group_norm", lambda x: F.group_norm(x, 2, weight=const("A"), bias=const("B")), IMG)
case("instance_norm", lambda x: F.instance_norm(x, weight=const("A"), bias=const("B")), IMG)
case("nearest_interp", lambda x: F.interpolate(x, scale_factor=2, mode="nearest"), IMG)
case("nearest_interp_size", lambda x: F.interpolate(x, size=[9, 5], mode="nearest"), IMG)
case("bilinear_interp", lambda x: F.interpolate(x, size=[9, 4], mode="bilinear"), IMG)
case("bilinear_interp_corners", lambda x: F.interpolate(x, size=[9, 4], mode="bilinear", align_corners=True), IMG)
case("bilinear_interp_mode1", lambda x: F.interpolate(x, scale_factor=1.5, mode="bilinear", align_mode=1), IMG)
case("bilinear_interp_computed", lambda x: F.interpolate(x, size=paddle.shape(x)[2:] * 2, mode="bilinear"), IMG)
case("bicubic_interp", lambda x: F.interpolate(x, size=[9, 4], mode="bicubic"), IMG)
case("grid_sample", lambda x, g: F.grid_sample(x, g), IMG, f(1, 3, 3, 2, low=-1, high=1))
case("pixel_shuffle", lambda x: F.pixel_shuffle(x, 2), IMG)
case("dropout", lambda x: F.dropout(x, 0.3, training=False, mode="downscale_in_infer"), X)


def recurrent(kind, **args):
    return lambda x: kind(4, 5, **args)(x)[0]


case("rnn_lstm", recurrent(paddle.nn.LSTM, num_layers=2, direction="bidirect"), X)
case("rnn_gru", recurrent(paddle.nn.GRU), X)
case("rnn_tanh", recurrent(paddle.nn.SimpleRNN), X)
# ---- control flow


def loop(x, n):
    k = paddle.zeros([1], "int64")
    return paddle.static.nn.while_loop(lambda k, x: k < n, lambda k, x: [k + 1, x * 1.5 + 1], [k, x])[1]


def branch(x):
    return paddle.static.nn.cond(paddle.mean(x) > paddle.zeros([], "float32"), lambda: x * 2, lambda: x - 1)


case("while", loop, f(2, 3), np.array([3]))
case("while_none", loop, f(2, 3), np.array([0]))
case("if_true", branch, np.abs(X))
case("if_false", branch, -np.abs(X))


def slim(node):
    """Without what training needs: every byte of the goldens is committed."""
    if isinstance(node, dict):
        return {k: slim(v) for k, v in node.items() if k not in ("OA", "QA", "DA")}
    return [slim(v) for v in node] if isinstance(node, list) else node


def numbers(a):
    flat = a.reshape(-1)
    if a.dtype.kind == "f":
        return [float(f"{v:.7g}") if math.isfinite(v) else str(v) for v in flat]
    return [int(v) for v in flat]


def tensor(a):
    return {"dtype": str(a.dtype), "shape": list(a.shape), "data": numbers(a)}


def make(name, fn, inputs, dynamic, pir, folder):
    main, startup = paddle.static.Program(), paddle.static.Program()
    with paddle.static.program_guard(main, startup):
        feeds = [paddle.static.data(f"x{k}", [-1] + list(v.shape[1:]) if dynamic and v.ndim > 1 else list(v.shape), str(v.dtype))
                 for k, v in enumerate(inputs)]
        fetches = fn(*feeds)
        fetches = list(fetches) if isinstance(fetches, (list, tuple)) else [fetches]
    exe = paddle.static.Executor(paddle.CPUPlace())
    scope = paddle.static.Scope()
    with paddle.static.scope_guard(scope):
        exe.run(startup)
        # Not as numpy: some results say where each image begins, which Paddle would refuse to forget.
        expected = exe.run(main, feed={f"x{k}": v for k, v in enumerate(inputs)}, fetch_list=fetches, return_numpy=False)
        path = os.path.join(folder, name)
        paddle.static.save_inference_model(path, feeds, fetches, exe, program=main)
    out = {"name": name, "inputs": [dict(tensor(v), name=f"x{k}") for k, v in enumerate(inputs)],
           "outputs": [tensor(np.asarray(v)) for v in expected]}
    if pir:
        with open(path + ".json") as src:
            out["program"] = slim(json.load(src))
    else:
        with open(path + ".pdmodel", "rb") as src:
            from paddle.base.proto import framework_pb2
            desc = framework_pb2.ProgramDesc.FromString(src.read())
        for block in desc.blocks:
            for op in block.ops:
                kept = [a for a in op.attrs if a.name not in ("op_callstack", "op_namescope", "op_role", "op_role_var", "op_device", "with_quant_attr")]
                del op.attrs[:]
                op.attrs.extend(kept)
        desc.ClearField("op_version_map")
        out["program"] = base64.b64encode(desc.SerializeToString()).decode()
    if os.path.exists(path + ".pdiparams"):
        with open(path + ".pdiparams", "rb") as src:
            out["parameters"] = base64.b64encode(src.read()).decode()
    return out


def patch_legacy():
    """Functions that this Paddle implements for PIR alone append their ProgramDesc op here."""
    from paddle.base.layer_helper import LayerHelper

    def appended(op, slots, boolean):
        def call(*values, **attrs):
            helper = LayerHelper(op)
            out = helper.create_variable_for_type_inference("bool" if boolean else values[0].dtype)
            helper.append_op(type=op, inputs={s: [v] for s, v in zip(slots, values)}, outputs={"Out": [out]}, attrs=attrs)
            return out
        return call

    for name in ("abs", "floor", "ceil", "exp", "sin", "cos", "sign", "sqrt", "rsqrt", "log"):
        setattr(paddle, name, appended(name, ["X"], False))
    for name in ("sigmoid", "tanh", "gelu"):
        setattr(F, name, appended(name, ["X"], False))
    for name, op in (("multiply", "elementwise_mul"), ("maximum", "elementwise_max"), ("minimum", "elementwise_min"),
                     ("matmul", "matmul_v2"), ("bmm", "bmm")):
        setattr(paddle, name, appended(op, ["X", "Y"], False))
    for name in ("greater_than", "logical_and", "logical_or"):
        setattr(paddle, name, appended(name, ["X", "Y"], True))
    paddle.logical_not = appended("logical_not", ["X"], True)
    paddle.isnan = appended("isnan_v2", ["X"], True)


def main():
    paddle.enable_static()
    if os.environ.get("FLAGS_enable_pir_api", "1") == "0":
        patch_legacy()
    pir = os.environ.get("FLAGS_enable_pir_api", "1") != "0"
    done, failed = [], []
    with tempfile.TemporaryDirectory() as folder:
        for name, (fn, inputs, dynamic) in CASES.items():
            try:
                done.append(make(name, fn, inputs, dynamic, pir, folder))
            except Exception as e:  # noqa: BLE001: reported below
                failed.append(f"{name}: {type(e).__name__}: {str(e).strip().splitlines()[-1][:120]}")
    with open(sys.argv[1], "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in done) + "\n]\n")
    print(f"{len(done)} cases, {len(failed)} could not be made:", *failed, sep="\n  ")


if __name__ == "__main__":
    main()
