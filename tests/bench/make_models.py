#!/usr/bin/env python3
"""Writes the ordinary models of the benchmarks: published architectures with random weights, as ONNX files.

    tests/bench/make_models.py FOLDER [--paddle DIR] [--only NAME]

ResNet-50, MobileNetV2, MobileNetV3-large, MiniLM-L6 and BERT-base as their PyTorch exporters write them (opset 17, batch norms folded,
GELU spelled out with Erf), 8-bit QDQ forms of two of them by onnxruntime's static quantization, and, where DIR has Paddle's
folders v3_ch_det and v2_en_rec, the text detector and recognizer by `oar convert`. Speed does not depend on the weights; they are
scaled so that no layer overflows. Needs the packages numpy and onnx; onnxruntime for the 8-bit forms.
"""
import argparse
import os
import subprocess
import sys

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))


class Graph:
    """Nodes and weights; every method gives the name of its result."""

    def __init__(self, name):
        self.name, self.nodes, self.weights, self.random = name, [], [], np.random.default_rng(1)

    def constant(self, value):
        name = f"c{len(self.weights)}"
        self.weights.append(numpy_helper.from_array(np.asarray(value), name))
        return name

    def weight(self, *shape):
        fan_in = int(np.prod(shape[1:])) if len(shape) > 1 else 1
        return self.constant((self.random.standard_normal(shape) / np.sqrt(max(fan_in, 1))).astype(np.float32))

    def op(self, kind, *inputs, **attributes):
        name = f"v{len(self.nodes)}"
        self.nodes.append(helper.make_node(kind, list(inputs), [name], **attributes))
        return name

    def write(self, path, inputs, output):
        values = [helper.make_tensor_value_info(n, t, d) for n, t, d in inputs]
        self.nodes.append(helper.make_node("Identity", [output], ["y"]))
        graph = helper.make_graph(self.nodes, self.name, values, [helper.make_tensor_value_info("y", TensorProto.FLOAT, None)],
                                  self.weights)
        model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
        onnx.save(onnx.shape_inference.infer_shapes(model), path)

    def conv(self, x, channels, filters, kernel, stride=1, groups=1):
        pad = (kernel - 1) // 2
        return self.op("Conv", x, self.weight(filters, channels // groups, kernel, kernel), self.weight(filters), group=groups,
                       kernel_shape=[kernel, kernel], strides=[stride, stride], pads=[pad] * 4)

    def classifier(self, x, channels, classes=1000):
        return self.op("Gemm", x, self.weight(classes, channels), self.weight(classes), transB=1)

    def pooled(self, x):
        return self.op("Flatten", self.op("GlobalAveragePool", x), axis=1)


IMAGE = [("x", TensorProto.FLOAT, ["batch", 3, 224, 224])]


def resnet50(path):
    """He et al., https://arxiv.org/abs/1512.03385, with the stride in the 3 x 3 (torchvision's V1.5)."""
    g = Graph("resnet50")
    x = g.op("Relu", g.conv("x", 3, 64, 7, 2))
    x = g.op("MaxPool", x, kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1])
    channels = 64
    for width, blocks, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for block in range(blocks):
            stride = first if block == 0 else 1
            y = g.op("Relu", g.conv(x, channels, width, 1))
            y = g.op("Relu", g.conv(y, width, width, 3, stride))
            y = g.conv(y, width, 4 * width, 1)
            if block == 0:
                x = g.conv(x, channels, 4 * width, 1, stride)
            x = g.op("Relu", g.op("Add", y, x))
            channels = 4 * width
    g.write(path, IMAGE, g.classifier(g.pooled(x), channels))


def mobilenet_v2(path):
    """Sandler et al., https://arxiv.org/abs/1801.04381, table 2."""
    g = Graph("mobilenet_v2")
    zero, six = g.constant(np.float32(0)), g.constant(np.float32(6))
    relu6 = lambda v: g.op("Clip", v, zero, six)  # noqa: E731
    x, channels = relu6(g.conv("x", 3, 32, 3, 2)), 32
    for expand, filters, blocks, first in ((1, 16, 1, 1), (6, 24, 2, 2), (6, 32, 3, 2), (6, 64, 4, 2), (6, 96, 3, 1), (6, 160, 3, 2),
                                           (6, 320, 1, 1)):
        for block in range(blocks):
            stride, wide = (first if block == 0 else 1), expand * channels
            y = relu6(g.conv(x, channels, wide, 1)) if expand > 1 else x
            y = relu6(g.conv(y, wide, wide, 3, stride, groups=wide))
            y = g.conv(y, wide, filters, 1)
            x = g.op("Add", x, y) if stride == 1 and channels == filters else y
            channels = filters
    g.write(path, IMAGE, g.classifier(g.pooled(relu6(g.conv(x, channels, 1280, 1))), 1280))


def mobilenet_v3_large(path):
    """Howard et al., https://arxiv.org/abs/1905.02244, table 1."""
    g = Graph("mobilenet_v3_large")
    activate = {"RE": lambda v: g.op("Relu", v), "HS": lambda v: g.op("HardSwish", v)}

    def squeeze_excite(x, channels):
        inner = max(8, int(channels / 4 + 4) // 8 * 8)
        s = g.op("Relu", g.conv(g.op("GlobalAveragePool", x), channels, inner, 1))
        return g.op("Mul", x, g.op("HardSigmoid", g.conv(s, inner, channels, 1), alpha=1 / 6))

    x, channels = activate["HS"](g.conv("x", 3, 16, 3, 2)), 16
    for kernel, wide, filters, attends, kind, stride in (
            (3, 16, 16, 0, "RE", 1), (3, 64, 24, 0, "RE", 2), (3, 72, 24, 0, "RE", 1), (5, 72, 40, 1, "RE", 2), (5, 120, 40, 1, "RE", 1),
            (5, 120, 40, 1, "RE", 1), (3, 240, 80, 0, "HS", 2), (3, 200, 80, 0, "HS", 1), (3, 184, 80, 0, "HS", 1),
            (3, 184, 80, 0, "HS", 1), (3, 480, 112, 1, "HS", 1), (3, 672, 112, 1, "HS", 1), (5, 672, 160, 1, "HS", 2),
            (5, 960, 160, 1, "HS", 1), (5, 960, 160, 1, "HS", 1)):
        y = activate[kind](g.conv(x, channels, wide, 1)) if wide != channels else x
        y = activate[kind](g.conv(y, wide, wide, kernel, stride, groups=wide))
        y = squeeze_excite(y, wide) if attends else y
        y = g.conv(y, wide, filters, 1)
        x = g.op("Add", x, y) if stride == 1 and channels == filters else y
        channels = filters
    x = g.pooled(activate["HS"](g.conv(x, channels, 960, 1)))
    x = activate["HS"](g.op("Gemm", x, g.weight(1280, 960), g.weight(1280), transB=1))
    g.write(path, IMAGE, g.classifier(x, 1280))


def encoder(path, layers, width, heads, inner, vocabulary=30522):
    """BERT, https://arxiv.org/abs/1810.04805, as transformers exports its base model."""
    g = Graph(os.path.basename(path)[:-5])
    dim = width // heads
    number = lambda v: g.constant(np.float32(v))  # noqa: E731
    shape = lambda *dims: g.constant(np.array(dims, np.int64))  # noqa: E731

    def norm(x):
        return g.op("LayerNormalization", x, g.constant(np.ones(width, np.float32)), g.weight(width), axis=-1, epsilon=1e-12)

    def linear(x, rows, cols):
        return g.op("Add", g.op("MatMul", x, g.constant(np.ascontiguousarray(
            (g.random.standard_normal((rows, cols)) / np.sqrt(rows)).astype(np.float32)))), g.weight(cols))

    def split(x, perm):
        return g.op("Transpose", g.op("Reshape", x, shape(0, 0, heads, dim)), perm=perm)

    length = g.op("Gather", g.op("Shape", "input_ids"), g.constant(np.int64(1)), axis=0)
    positions = g.op("Range", g.constant(np.int64(0)), length, g.constant(np.int64(1)))
    x = g.op("Add", g.op("Gather", g.weight(vocabulary, width), "input_ids", axis=0),
             g.op("Gather", g.weight(512, width), positions, axis=0))
    x = norm(g.op("Add", x, g.weight(1, width)))
    mask = g.op("Cast", g.op("Unsqueeze", "attention_mask", shape(1, 2)), to=TensorProto.FLOAT)
    mask = g.op("Mul", g.op("Sub", number(1), mask), number(np.finfo(np.float32).min))
    for _ in range(layers):
        q, k, v = (split(linear(x, width, width), perm) for perm in ([0, 2, 1, 3], [0, 2, 3, 1], [0, 2, 1, 3]))
        scores = g.op("Div", g.op("MatMul", q, k), number(np.sqrt(dim)))
        y = g.op("MatMul", g.op("Softmax", g.op("Add", scores, mask), axis=-1), v)
        y = g.op("Reshape", g.op("Transpose", y, perm=[0, 2, 1, 3]), shape(0, 0, width))
        x = norm(g.op("Add", linear(y, width, width), x))
        y = linear(x, width, inner)
        erf = g.op("Add", g.op("Erf", g.op("Div", y, number(np.sqrt(2)))), number(1))
        x = norm(g.op("Add", linear(g.op("Mul", g.op("Mul", y, erf), number(0.5)), inner, width), x))
    g.write(path, [(name, TensorProto.INT64, ["batch", "length"]) for name in ("input_ids", "attention_mask")], x)


def quantized(source, path):
    from onnxruntime.quantization import CalibrationDataReader, QuantFormat, QuantType, quantize_static

    class Samples(CalibrationDataReader):
        def __init__(self):
            random = np.random.default_rng(2)
            self.rows = iter([{"x": random.standard_normal((1, 3, 224, 224)).astype(np.float32)} for _ in range(4)])

        def get_next(self):
            return next(self.rows, None)

    quantize_static(source, path, Samples(), quant_format=QuantFormat.QDQ, activation_type=QuantType.QUInt8,
                    weight_type=QuantType.QInt8, per_channel=True)


WRITERS = {"resnet50": resnet50, "mobilenet_v2": mobilenet_v2, "mobilenet_v3_large": mobilenet_v3_large,
           "minilm": lambda path: encoder(path, layers=6, width=384, heads=12, inner=1536),
           "bert_base": lambda path: encoder(path, layers=12, width=768, heads=12, inner=3072)}


def main():
    p = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("folder")
    p.add_argument("--paddle", metavar="DIR", default=os.path.join(ROOT, "..", "shared", "data", "paddle"))
    p.add_argument("--oar", default=os.path.join(ROOT, "build", "release", "bin", "oar"))
    p.add_argument("--only", choices=WRITERS, help="one network alone, in f32")
    options = p.parse_args()
    os.makedirs(options.folder, exist_ok=True)
    at = lambda name: os.path.join(options.folder, name)  # noqa: E731
    for name in [options.only] if options.only else WRITERS:
        WRITERS[name](at(f"{name}.onnx"))
    if options.only:
        return
    failed = 0
    try:
        for name in ("resnet50", "mobilenet_v2"):
            quantized(at(f"{name}.onnx"), at(f"{name}_int8.onnx"))
    except ImportError as missing:
        print(f"no 8-bit models: {missing}", file=sys.stderr)
        failed = 1
    for source, name in (("v3_ch_det", "ppocr_det"), ("v2_en_rec", "ppocr_rec")):
        folder = os.path.join(options.paddle, source)
        if not os.path.isdir(folder):
            print(f"no {name}: {folder} is not there", file=sys.stderr)
            failed = 1
        elif subprocess.run([options.oar, "convert", folder, "-o", at(f"{name}.onnx")], check=False).returncode != 0:
            failed = 1
    sys.exit(failed)


if __name__ == "__main__":
    main()
