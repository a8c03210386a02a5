#!/usr/bin/env python3
"""A small ShuffleNet (grouped convolutions, channels shuffled by reshape and transpose, split, concat, sums, global pool, a
dense layer at the end) as onnxruntime's quantizer writes it with operators of integers, an input and what onnxruntime
computes: generate_shufflenet.py OUTPUT.json. Needs `pip install onnx onnxruntime` (made with onnxruntime 1.32). Committed:
golden/onnx_shufflenet.json."""
import base64
import json
import sys
import tempfile

import numpy as np
import onnx
import onnxruntime
from onnx import helper, numpy_helper
from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

import generate_contrib

rng = np.random.RandomState(11)
SIDE, CLASSES = 20, 10
nodes, weights = [], []


def node(op, inputs, outputs=1, **attrs):
    names = [f"{op.lower()}{len(nodes)}_{k}" for k in range(outputs)]
    nodes.append(helper.make_node(op, inputs, names, name=f"{op}{len(nodes)}", **attrs))
    return names[0] if outputs == 1 else names


def constant(values):
    weights.append(numpy_helper.from_array(values, f"c{len(weights)}"))
    return weights[-1].name


def conv(x, inputs, outputs, side=1, group=1, stride=1, relu=True):
    # Some filters are far larger than others: scales per filter matter.
    w = rng.normal(0, (2 / (inputs // group * side * side)) ** 0.5, (outputs, inputs // group, side, side))
    w *= np.exp(rng.uniform(-1, 1, (outputs, 1, 1, 1)))
    y = node("Conv", [x, constant(w.astype("float32")), constant(rng.normal(0, 0.1, outputs).astype("float32"))], group=group,
             strides=[stride] * 2, pads=[side // 2] * 4, kernel_shape=[side] * 2)
    return node("Relu", [y]) if relu else y


def shuffle(x, channels, side, groups):
    y = node("Reshape", [x, constant(np.array([-1, groups, channels // groups, side, side], "int64"))])
    y = node("Transpose", [y], perm=[0, 2, 1, 3, 4])
    return node("Reshape", [y, constant(np.array([-1, channels, side, side], "int64"))])


def unit_v1(x, channels, side, groups=3):
    """Grouped 1 x 1, shuffle, depthwise 3 x 3, grouped 1 x 1, sum."""
    y = shuffle(conv(x, channels, channels, group=groups), channels, side, groups)
    y = conv(y, channels, channels, 3, group=channels, relu=False)
    y = conv(y, channels, channels, group=groups, relu=False)
    return node("Relu", [node("Add", [x, y])])


def unit_v2(x, channels, side):
    """Half of the channels passes, the other half goes through; concatenated and shuffled."""
    half = channels // 2
    a, b = node("Split", [x, constant(np.array([half, half], "int64"))], 2, axis=1)
    b = conv(conv(conv(b, half, half), half, half, 3, group=half, relu=False), half, half)
    return shuffle(node("Concat", [a, b], axis=1), channels, side, 2)


def network():
    y = node("MaxPool", [conv("x", 3, 12, 3, stride=2)], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    y = unit_v1(y, 12, 5)
    # Down: the pooled input beside the convolved one.
    pooled = node("AveragePool", [y], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1], count_include_pad=0)
    y = node("Concat", [pooled, conv(conv(y, 12, 12, 3, group=12, stride=2, relu=False), 12, 12)], axis=1)
    y = unit_v2(shuffle(y, 24, 3, 2), 24, 3)
    y = unit_v1(y, 24, 3)
    y = node("Flatten", [node("GlobalAveragePool", [conv(y, 24, 32)])])
    w = constant(rng.normal(0, 0.3, (CLASSES, 32)).astype("float32"))
    nodes.append(helper.make_node("Gemm", [y, w, constant(rng.normal(0, 0.3, CLASSES).astype("float32"))], ["y"], name="Last", transB=1))
    kind = onnx.TensorProto.FLOAT
    graph = helper.make_graph(nodes, "shufflenet", [helper.make_tensor_value_info("x", kind, ["n", 3, SIDE, SIDE])],
                              [helper.make_tensor_value_info("y", kind, ["n", CLASSES])], weights)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 13)])
    model.ir_version = 8
    onnx.checker.check_model(model)
    return model


def images(count):
    """Smooth, as photos are: noise of a quarter of the side, enlarged."""
    return np.kron(rng.normal(0, 1, (count, 3, SIDE // 4, SIDE // 4)), np.ones((4, 4))).astype("float32")


class Samples(CalibrationDataReader):
    def __init__(self):
        self.left = [{"x": images(1)} for _ in range(16)]

    def get_next(self):
        return self.left.pop() if self.left else None


def main():
    cases = []
    model = network()
    with tempfile.TemporaryDirectory() as folder:
        onnx.save(model, f"{folder}/float.onnx")
        for name, per_channel, count in (("per_tensor", False, 1), ("per_channel", True, 2)):
            quantize_static(f"{folder}/float.onnx", f"{folder}/int8.onnx", Samples(), quant_format=QuantFormat.QOperator,
                            per_channel=per_channel, activation_type=QuantType.QUInt8, weight_type=QuantType.QInt8)
            written = onnx.load(f"{folder}/int8.onnx")
            print(name, sorted({n.op_type for n in written.graph.node}))
            # What no runtime reads, and what comes back in every node.
            written.graph.ClearField("value_info")
            options = onnxruntime.SessionOptions()
            options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_DISABLE_ALL
            data = written.SerializeToString()
            scale = next(n.input[7] for n in written.graph.node if n.op_type == "QGemm")
            step = float(numpy_helper.to_array(next(w for w in written.graph.initializer if w.name == scale)).item())
            x = np.round(images(count), 2)
            y = onnxruntime.InferenceSession(data, options).run(None, {"x": x})[0]
            float_y = onnxruntime.InferenceSession(f"{folder}/float.onnx").run(None, {"x": x})[0]
            print(f"{len(data)} bytes, off float by {np.abs(y - float_y).max() / np.abs(float_y).max():.3f} of the largest")
            cases.append({"name": name, "model": base64.b64encode(data).decode(), "inputs": [generate_contrib.tensor(x)],
                          "outputs": [generate_contrib.tensor(y)], "step": step})
    with open(sys.argv[1], "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
