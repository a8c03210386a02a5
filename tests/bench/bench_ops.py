#!/usr/bin/env python3
"""One op at a time, Oar beside ONNX Runtime: which ops are slow, and by how much.

    tests/bench/bench_ops.py BIN [--threads N] [--rounds N] [--only TEXT] [--json FILE]

BIN is a folder of programs that has predictor_bench. Each case of CASES below is an ONNX model of one node with shapes as real
models have them. The two take turns in one run; a row has the medians in microseconds and Oar's speed relative to
ONNX Runtime (above 1: Oar is faster), lowest first. The shapes are part of the table and do not change with the kernels.
Needs the packages numpy, onnx and onnxruntime.
"""
import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time

try:
    import numpy as np
    import onnx
    import onnxruntime
    from onnx import TensorProto, helper, numpy_helper
except ImportError as missing:
    sys.exit(f"bench_ops: {missing}; `pip install numpy onnx onnxruntime`, or name an interpreter that has them in OAR_PYTHON")

from peers_onnx import PARKING_OF_OTHERS, timed

F32, F16, U8, I8, I32, I64, BOOL = (TensorProto.FLOAT, TensorProto.FLOAT16, TensorProto.UINT8, TensorProto.INT8,
                                    TensorProto.INT32, TensorProto.INT64, TensorProto.BOOL)


class Case:
    """A node: its operands in order, each an input (type, extents) or a constant (an array), None where left out."""

    def __init__(self, label, op, operands, opset=17, domain="", outputs=1, **attributes):
        self.label, self.op, self.operands, self.opset, self.domain = label, op, operands, opset, domain
        self.outputs, self.attributes = outputs, attributes

    def inputs(self):
        return [(f"x{k}", o) for k, o in enumerate(self.operands) if isinstance(o, tuple)]

    def model(self):
        names, constants = [], []
        for k, operand in enumerate(self.operands):
            names.append("" if operand is None else f"x{k}")
            if isinstance(operand, (np.ndarray, np.generic)):
                constants.append(numpy_helper.from_array(np.asarray(operand), f"x{k}"))
        results = [f"y{k}" for k in range(self.outputs)]
        node = helper.make_node(self.op, names, results, domain=self.domain, **self.attributes)
        graph = helper.make_graph(
            [node], "op", [helper.make_tensor_value_info(n, t, dims) for n, (t, dims) in self.inputs()],
            [onnx.ValueInfoProto(name=r) for r in results], constants)
        sets = [helper.make_opsetid("", self.opset)] + ([helper.make_opsetid(self.domain, 1)] if self.domain else [])
        return helper.make_model(graph, opset_imports=sets, ir_version=10)


def weights(*shape, dtype=np.float32):
    random = np.random.default_rng(1)
    if np.dtype(dtype).kind in "iu":
        return random.integers(0 if np.dtype(dtype).kind == "u" else -100, 100, shape).astype(dtype)
    return (random.standard_normal(shape) / np.sqrt(max(np.prod(shape[1:]), 1))).astype(dtype)


def ints(*values):
    return np.asarray(values, np.int64)


TOKENS = [1, 128, 768]      # an encoder's hidden state
HEADS = [1, 12, 128, 64]    # its heads
IMAGE = [1, 64, 112, 112]   # behind the first layer of a ResNet
BLOCK = [1, 256, 14, 14]    # in its third stage

CASES = [
    # Products.
    Case("MatMul, constant", "MatMul", [(F32, TOKENS), weights(768, 768)]),
    Case("MatMul, two inputs", "MatMul", [(F32, [12, 128, 64]), (F32, [12, 64, 128])]),
    Case("MatMul f16", "MatMul", [(F16, TOKENS), weights(768, 768, dtype=np.float16)]),
    Case("Gemm", "Gemm", [(F32, [128, 768]), weights(3072, 768), weights(3072)], transB=1),
    Case("Einsum bhqd,bhkd->bhqk", "Einsum", [(F32, HEADS), (F32, HEADS)], equation="bhqd,bhkd->bhqk"),
    Case("Einsum bij,jk->bik", "Einsum", [(F32, TOKENS), weights(768, 768)], equation="bij,jk->bik"),
    Case("MatMulInteger", "MatMulInteger", [(U8, TOKENS), weights(768, 768, dtype=np.int8)]),
    Case("QLinearMatMul", "QLinearMatMul",
         [(U8, TOKENS), np.float32(0.02), np.uint8(128), weights(768, 768, dtype=np.int8), np.float32(0.01), np.int8(0),
          np.float32(0.1), np.uint8(128)]),
    # Convolutions and pools.
    Case("Conv 3x3", "Conv", [(F32, BLOCK), weights(256, 256, 3, 3), weights(256)], pads=[1, 1, 1, 1]),
    Case("Conv 1x1", "Conv", [(F32, BLOCK), weights(1024, 256, 1, 1)]),
    Case("Conv 7x7, stride 2", "Conv", [(F32, [1, 3, 224, 224]), weights(64, 3, 7, 7)], pads=[3, 3, 3, 3], strides=[2, 2]),
    Case("Conv depthwise", "Conv", [(F32, [1, 96, 56, 56]), weights(96, 1, 3, 3)], group=96, pads=[1, 1, 1, 1]),
    Case("Conv, 32 groups", "Conv", [(F32, [1, 128, 56, 56]), weights(128, 4, 3, 3)], group=32, pads=[1, 1, 1, 1]),
    Case("Conv of one axis", "Conv", [(F32, [1, 80, 3000]), weights(384, 80, 3)], pads=[1, 1]),
    Case("Conv f16", "Conv", [(F16, BLOCK), weights(256, 256, 3, 3, dtype=np.float16)], pads=[1, 1, 1, 1]),
    Case("ConvInteger", "ConvInteger", [(U8, [1, 64, 56, 56]), weights(64, 64, 3, 3, dtype=np.int8)], pads=[1, 1, 1, 1]),
    Case("ConvTranspose 2x2, stride 2", "ConvTranspose", [(F32, BLOCK), weights(256, 128, 2, 2)], strides=[2, 2]),
    Case("ConvTranspose 4x4, stride 2", "ConvTranspose", [(F32, [1, 128, 32, 32]), weights(128, 64, 4, 4)],
         strides=[2, 2], pads=[1, 1, 1, 1]),
    Case("MaxPool 3x3, stride 2", "MaxPool", [(F32, IMAGE)], kernel_shape=[3, 3], strides=[2, 2], pads=[1, 1, 1, 1]),
    Case("AveragePool 2x2", "AveragePool", [(F32, [1, 128, 56, 56])], kernel_shape=[2, 2], strides=[2, 2]),
    Case("GlobalAveragePool", "GlobalAveragePool", [(F32, [1, 2048, 7, 7])]),
    # Attention, norms, softmax.
    Case("Attention", "Attention", [(F32, HEADS), (F32, HEADS), (F32, HEADS)], opset=23),
    Case("Softmax", "Softmax", [(F32, [1, 12, 128, 128])], axis=-1),
    Case("LayerNormalization", "LayerNormalization", [(F32, TOKENS), weights(768), weights(768)]),
    Case("InstanceNormalization", "InstanceNormalization", [(F32, IMAGE), weights(64), weights(64)]),
    Case("BatchNormalization", "BatchNormalization",
         [(F32, IMAGE), weights(64), weights(64), weights(64), np.abs(weights(64)) + np.float32(1)]),
    Case("LogSoftmax", "LogSoftmax", [(F32, [128, 30522])], axis=-1),
    # Elementwise.
    Case("Add", "Add", [(F32, TOKENS), (F32, TOKENS)]),
    Case("Add, a row", "Add", [(F32, TOKENS), weights(768)]),
    Case("Add, a channel", "Add", [(F32, IMAGE), weights(64, 1, 1)]),
    Case("Add f16", "Add", [(F16, TOKENS), (F16, TOKENS)]),
    Case("Add i64", "Add", [(I64, [1, 4096]), (I64, [1, 4096])]),
    Case("Mul", "Mul", [(F32, TOKENS), (F32, TOKENS)]),
    Case("Mul f16", "Mul", [(F16, TOKENS), (F16, TOKENS)]),
    Case("Div", "Div", [(F32, TOKENS), (F32, TOKENS)]),
    Case("Pow 2", "Pow", [(F32, TOKENS), np.float32(2)]),
    Case("Sqrt", "Sqrt", [(F32, TOKENS)]),
    Case("Erf", "Erf", [(F32, [1, 128, 3072])]),
    Case("Exp", "Exp", [(F32, TOKENS)]),
    Case("Tanh", "Tanh", [(F32, TOKENS)]),
    Case("Sigmoid", "Sigmoid", [(F32, TOKENS)]),
    Case("Relu", "Relu", [(F32, IMAGE)]),
    Case("HardSwish", "HardSwish", [(F32, IMAGE)]),
    Case("Clip", "Clip", [(F32, IMAGE), np.float32(0), np.float32(6)]),
    Case("LeakyRelu", "LeakyRelu", [(F32, IMAGE)], alpha=0.1),
    Case("Elu", "Elu", [(F32, IMAGE)]),
    Case("Softplus", "Softplus", [(F32, IMAGE)]),
    Case("Mish", "Mish", [(F32, IMAGE)], opset=18),
    Case("Where", "Where", [(BOOL, TOKENS), (F32, TOKENS), (F32, TOKENS)]),
    Case("Greater", "Greater", [(F32, TOKENS), (F32, TOKENS)]),
    Case("Cast f32 to f16", "Cast", [(F32, TOKENS)], to=F16),
    Case("Cast i64 to f32", "Cast", [(I64, TOKENS)], to=F32),
    Case("CumSum", "CumSum", [(F32, TOKENS), ints(1)]),
    # Reductions and selections.
    Case("ReduceMean, last axis", "ReduceMean", [(F32, TOKENS)], axes=[-1]),
    Case("ReduceMean, pixels", "ReduceMean", [(F32, IMAGE)], axes=[2, 3]),
    Case("ReduceSum, first axis", "ReduceSum", [(F32, [128, 768]), ints(0)]),
    Case("ReduceMax", "ReduceMax", [(F32, TOKENS)], axes=[-1]),
    Case("ArgMax", "ArgMax", [(F32, [128, 30522])], axis=-1),
    Case("TopK", "TopK", [(F32, [1, 8400]), ints(300)], outputs=2),
    # Moves.
    Case("Transpose, heads", "Transpose", [(F32, [1, 128, 12, 64])], perm=[0, 2, 1, 3]),
    Case("Transpose, channels last", "Transpose", [(F32, IMAGE)], perm=[0, 2, 3, 1]),
    Case("Concat, channels", "Concat", [(F32, [1, 64, 56, 56]), (F32, [1, 64, 56, 56])], axis=1),
    Case("Split", "Split", [(F32, [1, 128, 2304]), ints(768, 768, 768)], axis=2, outputs=3),
    Case("Slice", "Slice", [(F32, IMAGE), ints(0, 8), ints(64, 104), ints(1, 2)]),
    Case("Gather, an embedding", "Gather", [weights(30522, 768), (I64, [1, 128])]),
    Case("GatherElements", "GatherElements", [(F32, [128, 768]), (I64, [128, 768])], axis=0),
    Case("ScatterND", "ScatterND", [(F32, [1024, 64]), (I64, [128, 1]), (F32, [128, 64])]),
    Case("Expand", "Expand", [(F32, [1, 1, 128]), ints(12, 128, 128)]),
    Case("Tile", "Tile", [(F32, [1, 64, 56, 56]), ints(1, 2, 1, 1)]),
    Case("Pad", "Pad", [(F32, IMAGE), ints(0, 0, 1, 1, 0, 0, 1, 1)]),
    Case("DepthToSpace", "DepthToSpace", [(F32, BLOCK)], blocksize=2),
    Case("Resize nearest", "Resize", [(F32, BLOCK), None, np.asarray([1, 1, 2, 2], np.float32)], mode="nearest"),
    Case("Resize linear", "Resize", [(F32, BLOCK), None, np.asarray([1, 1, 2, 2], np.float32)], mode="linear"),
    Case("GridSample", "GridSample", [(F32, [1, 64, 56, 56]), (F32, [1, 56, 56, 2])]),
    # Recurrent layers.
    Case("LSTM", "LSTM", [(F32, [40, 1, 96]), weights(1, 192, 96), weights(1, 192, 48), weights(1, 384)],
         hidden_size=48, outputs=3),
    Case("GRU", "GRU", [(F32, [40, 1, 96]), weights(1, 144, 96), weights(1, 144, 48), weights(1, 288)],
         hidden_size=48, outputs=2),
    # Quantization.
    Case("QuantizeLinear", "QuantizeLinear", [(F32, TOKENS), np.float32(0.02), np.uint8(128)]),
    Case("DequantizeLinear", "DequantizeLinear", [(U8, TOKENS), np.float32(0.02), np.uint8(128)]),
    Case("DynamicQuantizeLinear", "DynamicQuantizeLinear", [(F32, TOKENS)], outputs=3),
    # Contributed ops.
    Case("FastGelu", "FastGelu", [(F32, [1, 128, 3072])], domain="com.microsoft"),
    Case("BiasGelu", "BiasGelu", [(F32, [1, 128, 3072]), weights(3072)], domain="com.microsoft"),
    Case("FusedMatMul", "FusedMatMul", [(F32, [12, 128, 64]), (F32, [12, 128, 64])], domain="com.microsoft", transB=1),
    Case("SkipLayerNormalization", "SkipLayerNormalization", [(F32, TOKENS), (F32, TOKENS), weights(768), weights(768)],
         domain="com.microsoft"),
]

NUMPY = {F32: np.float32, F16: np.float16, U8: np.uint8, I8: np.int8, I32: np.int32, I64: np.int64, BOOL: np.bool_}


def peer(model, case, threads):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    session = onnxruntime.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    random = np.random.default_rng(1)
    values = {name: (random.integers(0, 2, dims) if t in (I32, I64, BOOL) else random.uniform(-1, 1, dims)).astype(NUMPY[t])
              for name, (t, dims) in case.inputs()}
    return lambda: session.run(None, values)


class Oar:
    def __init__(self, bench, model, case, threads):
        command = [bench, model, "--threads", str(threads), "--serve"]
        for name, (_, dims) in case.inputs():
            command += ["--input", name + "=" + "x".join(map(str, dims))]
        self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                                        text=True)
        first = self.process.stdout.readline().split()
        if not first:
            raise RuntimeError(self.process.stderr.read().strip() or "predictor_bench says nothing")
        self.first = float(first[1])

    def times(self, n):
        self.process.stdin.write(f"{n}\n")
        self.process.stdin.flush()
        return [float(x) for x in self.process.stdout.readline().split()]

    def close(self):
        self.process.stdin.close()
        self.process.wait()


def measure(case, bench, folder, threads, rounds):
    path = os.path.join(folder, "op.onnx")
    onnx.save(case.model(), path)
    theirs = peer(path, case, threads)
    theirs()
    ours = Oar(bench, path, case, threads)
    count = max(3, min(50, round(10 / max(ours.first, 0.05))))
    mine, their, ratios = [], [], []
    for r in range(rounds):
        turns = {}
        for who in ("oar", "peer") if r % 2 == 0 else ("peer", "oar"):
            time.sleep(PARKING_OF_OTHERS)
            turns[who] = (ours.times(count + 1) if who == "oar" else timed(theirs, count + 1))[1:]
        mine += turns["oar"]
        their += turns["peer"]
        ratios.append(statistics.median(turns["peer"]) / statistics.median(turns["oar"]))
    ours.close()
    return {"case": case.label, "oar_us": statistics.median(mine) * 1e3, "onnxruntime_us": statistics.median(their) * 1e3,
            "ratio": statistics.median(ratios)}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("bin")
    parser.add_argument("--threads", type=int, default=os.cpu_count())
    parser.add_argument("--rounds", type=int, default=7)
    parser.add_argument("--only", default="", help="cases whose name holds this text")
    parser.add_argument("--json", help="write the rows to this file")
    arguments = parser.parse_args()
    rows, failed = [], []
    cases = [c for c in CASES if arguments.only.lower() in c.label.lower()]
    with tempfile.TemporaryDirectory() as folder:
        for k, case in enumerate(cases):
            print(f"\r{k + 1} of {len(cases)}: {case.label:40}", end="", file=sys.stderr, flush=True)
            try:
                rows.append(measure(case, os.path.join(arguments.bin, "predictor_bench"), folder, arguments.threads,
                                    arguments.rounds))
            except Exception as error:  # one that does not run here is a row of its own
                failed.append((case.label, str(error).strip().splitlines()[-1]))
    print("\r" + " " * 60 + "\r", end="", file=sys.stderr)
    print(f"{'op':34} {'Oar us':>10} {'ONNX Runtime us':>16} {'ratio':>8}")
    for row in sorted(rows, key=lambda row: row["ratio"]):
        print(f"{row['case']:34} {row['oar_us']:10.1f} {row['onnxruntime_us']:16.1f} {row['ratio']:8.3f}")
    for label, why in failed:
        print(f"{label:34} not measured: {why}")
    if arguments.json:
        with open(arguments.json, "w") as f:
            json.dump(rows, f, indent=1)


if __name__ == "__main__":
    main()
