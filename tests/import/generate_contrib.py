#!/usr/bin/env python3
"""Models of one op of com.microsoft each, inputs, and what onnxruntime computes: generate_contrib.py OUTPUT.json. Needs
`pip install onnx onnxruntime` (made with onnxruntime 1.32). Committed: golden/onnx_contrib.json."""
import base64
import json
import math
import sys

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper

rng = np.random.RandomState(3)
CASES = {}


def f(*shape, low=-2.0, high=2.0):
    return np.round(rng.uniform(low, high, shape), 3).astype("float32")


def u(*shape, dtype="uint8"):
    info = np.iinfo(dtype)
    return rng.randint(info.min, info.max + 1, shape).astype(dtype)


def s(value):
    return np.array(value, "float32")


def z(value, dtype="uint8"):
    return np.array(value, dtype)


def case(name, op, inputs, outputs=1, domain="com.microsoft", constants=(), **attrs):
    """`inputs`: arrays, None for one left out; those whose places are in `constants` are initializers."""
    CASES[name] = (op, inputs, outputs, domain, constants, attrs)


X, W = f(1, 4, 5, 5), f(2, 4, 3, 3)
case("fused_conv_relu", "FusedConv", [X, W, f(2)], activation="Relu", pads=[1, 1, 1, 1])
case("fused_conv_leaky", "FusedConv", [X, W], activation="LeakyRelu", activation_params=[0.3])
case("fused_conv_clip", "FusedConv", [X, W, f(2)], activation="Clip", activation_params=[-1.0, 1.5])
case("fused_conv_sum", "FusedConv", [X, W, f(2), f(1, 2, 3, 3)], activation="Relu")
case("fused_conv_hard_sigmoid", "FusedConv", [X, W], activation="HardSigmoid", activation_params=[0.1, 0.4])
case("fused_matmul", "FusedMatMul", [f(2, 3, 4), f(4, 5)], alpha=0.25)
case("fused_matmul_transposed", "FusedMatMul", [f(2, 4, 3), f(2, 5, 4)], transA=1, transB=1)
case("bias_gelu", "BiasGelu", [f(2, 3, 4), f(4)])
case("fast_gelu", "FastGelu", [f(2, 3, 4)])
case("fast_gelu_bias", "FastGelu", [f(2, 3, 4), f(4)])
case("gelu", "Gelu", [f(2, 3)])
case("quick_gelu", "QuickGelu", [f(2, 3)])
case("skip_layer_norm", "SkipLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4), f(4), f(4)], epsilon=1e-5)
case("skip_layer_norm_sum", "SkipLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4)], outputs=[0, 3], epsilon=1e-5)
case("rms_norm", "SimplifiedLayerNormalization", [f(2, 3, 4), f(4)], domain="", epsilon=1e-6, axis=-1)
case("skip_rms_norm", "SkipSimplifiedLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4)], outputs=[0, 3], epsilon=1e-6)
case("skip_rms_norm_bias", "SkipSimplifiedLayerNormalization", [f(2, 3, 4), f(2, 3, 4), f(4), f(4)], epsilon=1e-6)
ANGLES = [np.cos(np.outer(np.arange(8), [1, 0.1])).astype("float32"), np.sin(np.outer(np.arange(8), [1, 0.1])).astype("float32")]
POSITIONS = np.array([[0, 1, 2], [3, 4, 7]], "int64")
case("rotary", "RotaryEmbedding", [f(2, 3, 8), POSITIONS, *ANGLES])
case("rotary_from", "RotaryEmbedding", [f(2, 3, 8), np.array([4], "int64"), *ANGLES])
case("rotary_heads", "RotaryEmbedding", [f(2, 2, 3, 4), POSITIONS, *ANGLES], interleaved=1)
case("qlinear_add", "QLinearAdd", [u(2, 3), s(0.02), z(120), u(2, 3), s(0.03), z(10), s(0.04), z(100)])
case("qlinear_add_signed", "QLinearAdd", [u(2, 3, dtype="int8"), s(0.02), z(3, "int8"), u(3, dtype="int8"), s(0.03), z(-5, "int8"),
                                          s(0.04), z(1, "int8")])
case("qlinear_mul", "QLinearMul", [u(2, 3), s(0.02), z(120), u(2, 3), s(0.03), z(10), s(0.04), z(100)])
case("qlinear_sigmoid", "QLinearSigmoid", [u(2, 9), s(0.05), z(128), s(1 / 256), z(0)], constants=(1, 2, 3, 4))
case("qlinear_leaky_relu", "QLinearLeakyRelu", [u(2, 9), s(0.05), z(128), s(0.04), z(60)], constants=(1, 2, 3, 4), alpha=0.2)
case("qlinear_pool", "QLinearGlobalAveragePool", [u(1, 3, 4, 4), s(0.05), z(128), s(0.04), z(60)], constants=(1, 2, 3, 4))
case("qlinear_average_pool", "QLinearAveragePool", [u(1, 3, 4, 4), s(0.05), z(128), s(0.04), z(60)], constants=(1, 2, 3, 4),
     kernel_shape=[2, 2], strides=[2, 2])
case("qlinear_concat", "QLinearConcat", [s(0.04), z(100), u(2, 3), s(0.02), z(120), u(2, 2), s(0.05), z(7)],
     constants=(0, 1, 3, 4, 6, 7), axis=1)
case("dynamic_matmul", "DynamicQuantizeMatMul", [f(2, 6), u(6, 3, dtype="int8"), s([0.01]), z([0], "int8"), f(3)],
     constants=(1, 2, 3, 4))
case("dynamic_matmul_channels", "DynamicQuantizeMatMul", [f(2, 6), u(6, 3), s([0.01, 0.02, 0.03]), z([9, 8, 7])],
     constants=(1, 2, 3))
case("matmul_integer_to_float", "MatMulIntegerToFloat",
     [u(2, 6), u(6, 3), s(0.02), s(0.03), z(100), z(120), f(3)], constants=(1, 3, 5, 6))
QA, QB = u(3, 6), u(6, 4, dtype="int8")  # a product of 3 x 4
BIAS = np.array([-900, 400, 0, 70], "int32")
case("qgemm", "QGemm", [QA, s(0.02), z(120), QB, s(0.03), z(0, "int8"), BIAS, s(0.1), z(100)], constants=(1, 2, 3, 4, 5, 6, 7, 8))
case("qgemm_float", "QGemm", [QA, s(0.02), z(120), QB, s([0.03]), z([4], "int8")], constants=(1, 2, 3, 4, 5), alpha=0.5)
case("qgemm_alpha", "QGemm", [QA, s(0.02), z(120), QB, s(0.03), z(-7, "int8"), BIAS, s(0.05), z(90)], constants=(1, 2, 7, 8), alpha=0.25)
COLUMNS = s([0.01, 0.02, 0.03, 0.04])
case("qgemm_columns", "QGemm", [QA, s(0.02), z(120), QB, COLUMNS, z([0, 0, 0, 0], "int8"), BIAS, s(0.1), z(100)],
     constants=(1, 2, 3, 4, 5, 6, 7, 8))
case("qgemm_columns_float", "QGemm", [QA, s(0.02), z(120), QB, COLUMNS, z([1, -2, 3, 0], "int8"), BIAS], constants=(4, 5, 6))
case("qgemm_transposed", "QGemm", [QA.T.copy(), s(0.02), z(120), QB.T.copy(), COLUMNS, z([0, 0, 0, 0], "int8"), BIAS, s(0.1), z(100)],
     constants=(1, 2, 3, 4, 5, 6, 7, 8), transA=1, transB=1)
case("qgemm_transposed_b", "QGemm", [QA, s(0.02), z(120), QB.T.copy(), COLUMNS, z([0, 0, 0, 0], "int8"), BIAS, s(0.1), z(100)],
     constants=(1, 2, 3, 4, 5, 6, 7, 8), transB=1)
case("qgemm_unsigned", "QGemm", [QA, s(0.02), z(120), u(6, 4), s(0.03), z(131), BIAS, s(0.1), z(100)], constants=(3, 4, 5, 6))
case("qgemm_signed", "QGemm", [u(3, 6, dtype="int8"), s(0.02), z(-9, "int8"), QB, s(0.03), z(0, "int8"), BIAS.reshape(1, 4), s(0.1),
                               z(3, "int8")], constants=(1, 2, 3, 4, 5, 6, 7, 8))
case("qgemm_rows", "QGemm", [QA, s(0.02), z(120), QB, COLUMNS, z([0, 0, 0, 0], "int8"), BIAS[:3].reshape(3, 1).copy()],
     constants=(1, 2, 3, 4, 5, 6))
case("qgemm_scalar", "QGemm", [QA, s(0.02), z(120), QB, COLUMNS, z([0, 0, 0, 0], "int8"), np.array(500, "int32")],
     constants=(1, 2, 3, 4, 5, 6))

# By plain LSTM of the numbers that the integers stand for: onnxruntime rounds x and h to 8 bits in every step, which no
# file asks for.
SAME = {}


def dynamic_lstm(name, directions, scales, dtype, rest, **attrs):
    """`scales`: of a direction, one or one per gate's row. `rest`: bias, lengths, states and peepholes, None for one left out."""
    def weights(rows):
        return u(directions, rows, 12, dtype=dtype), f(*scales, low=0.002, high=0.01), u(*scales, dtype=dtype)

    def numbers(w, scale, zero):
        turned = w.astype("float32") - zero.astype("float32").reshape(directions, 1, -1)
        return (turned * scale.reshape(directions, 1, -1)).transpose(0, 2, 1).copy()
    (w, w_scale, w_zero), (r, r_scale, r_zero), x = weights(4), weights(3), f(5, 2, 4)
    attrs.update(hidden_size=3, direction="bidirectional" if directions == 2 else "forward")
    case(name, "DynamicQuantizeLSTM", [x, w, r, *rest, w_scale, w_zero, r_scale, r_zero], outputs=3,
         constants=(1, 2, 8, 9, 10, 11), **attrs)
    SAME[name] = ("LSTM", [x, numbers(w, w_scale, w_zero), numbers(r, r_scale, r_zero), *rest], 3, "", (1, 2), attrs)


dynamic_lstm("dynamic_lstm", 1, [1], "int8", [None] * 5)
dynamic_lstm("dynamic_lstm_both_ways", 2, [2], "uint8", [f(2, 24), None, f(2, 2, 3), f(2, 2, 3), None])
dynamic_lstm("dynamic_lstm_rows", 2, [2, 12], "int8", [f(2, 24), np.array([5, 3], "int32"), None, None, f(2, 9)])


def tensor(a):
    flat = a.reshape(-1)
    values = [float(f"{v:.9g}") if math.isfinite(v) else str(v) for v in flat] if a.dtype.kind == "f" else [int(v) for v in flat]
    return {"dtype": str(a.dtype), "shape": list(a.shape), "data": values}


def build(op, inputs, outputs, domain, constants, attrs):
    """The model, and what it is fed."""
    names = [f"i{k}" if a is not None else "" for k, a in enumerate(inputs)]
    places = list(range(outputs)) if isinstance(outputs, int) else outputs
    results = [f"o{k}" if k in places else "" for k in range(max(places) + 1)]
    fed = [k for k, a in enumerate(inputs) if a is not None and k not in constants]
    kind = helper.np_dtype_to_tensor_dtype
    graph = helper.make_graph(
        [helper.make_node(op, names, results, domain=domain, **attrs)], "g",
        [helper.make_tensor_value_info(names[k], kind(inputs[k].dtype), inputs[k].shape) for k in fed],
        [onnx.ValueInfoProto(name=r) for r in results if r],
        [numpy_helper.from_array(inputs[k], names[k]) for k in constants])
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)])
    model.ir_version = 8
    return model, {names[k]: inputs[k] for k in fed}


def make(name, *parts, same=None):
    """`same`: another case's parts that mean the same, for spellings that onnxruntime does not run on this processor."""
    options = onnxruntime.SessionOptions()
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
    runs, fed = build(*(same or parts))
    got = onnxruntime.InferenceSession(runs.SerializeToString(), options).run(None, fed)
    model, fed = build(*parts)
    return {"name": name, "model": base64.b64encode(model.SerializeToString()).decode(),
            "inputs": [tensor(a) for a in fed.values()], "outputs": [tensor(a) for a in got]}


def main():
    with open(sys.argv[1], "w") as out:
        done = [make(name, *parts, same=SAME.get(name)) for name, parts in CASES.items()]
        out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in done) + "\n]\n")
    print(f"{len(done)} cases")


if __name__ == "__main__":
    main()
