#!/usr/bin/env python3
"""Writes the backend tests of the installed `onnx` package as folders: generate_node_tests.py OUTPUT.

The node tests with their functions expanded (test_*_expanded), and the models whose data the package ships: small ones, those
converted from PyTorch, and whole networks (light_*) whose weights are constants and whose input is a ramp, as its runner makes it.
Newer packages no longer ship the data, only the cases that make it. The layout is that of the releases:
OUTPUT/<test>/model.onnx, OUTPUT/<test>/test_data_set_<i>/{input,output}_<j>.pb. Cases whose model the package cannot build
are named on stderr and left out.
"""
import glob
import os
import shutil
import sys
import warnings

warnings.simplefilter("ignore")
import numpy as np  # noqa: E402
import onnx  # noqa: E402
import onnx.backend.test  # noqa: E402
from onnx import numpy_helper  # noqa: E402
from onnx.backend.test.case.node import collect_testcases  # noqa: E402


def to_proto(value, info):
    if isinstance(value, (onnx.TensorProto, onnx.SequenceProto, onnx.OptionalProto)):
        return value
    kind = info.type.WhichOneof("value")
    if kind == "sequence_type":
        return numpy_helper.from_list(value, info.name)
    if kind == "optional_type":
        return numpy_helper.from_optional(value, info.name)
    if kind == "map_type":
        return numpy_helper.from_dict(value, info.name)
    return numpy_helper.from_array(value, info.name)


def ramp(info):
    shape = [d.dim_value if d.HasField("dim_value") else 1 for d in info.type.tensor_type.shape.dim]
    n = int(np.prod(shape))
    return (np.arange(n).reshape(shape) / n).astype(np.float32)


def write_models(out):
    data = os.path.join(os.path.dirname(onnx.backend.test.__file__), "data")
    for kind in ("simple", "pytorch-converted", "pytorch-operator"):
        for folder in glob.glob(os.path.join(data, kind, "*")):
            shutil.copytree(folder, os.path.join(out, os.path.basename(folder)), dirs_exist_ok=True)
    for file in glob.glob(os.path.join(data, "light", "*.onnx")):
        stem = file[:-len(".onnx")]
        folder = os.path.join(out, os.path.basename(stem))
        os.makedirs(os.path.join(folder, "test_data_set_0"), exist_ok=True)
        shutil.copy(file, os.path.join(folder, "model.onnx"))
        shutil.copy(stem + "_output_0.pb", os.path.join(folder, "test_data_set_0", "output_0.pb"))
        graph = onnx.load(file).graph
        weights = {i.name for i in graph.initializer}
        for i, info in enumerate([i for i in graph.input if i.name not in weights]):
            with open(os.path.join(folder, "test_data_set_0", f"input_{i}.pb"), "wb") as f:
                f.write(numpy_helper.from_array(ramp(info)).SerializeToString())


def main():
    out = sys.argv[1]
    write_models(out)
    for case in collect_testcases():
        folder = os.path.join(out, case.name)
        try:
            os.makedirs(folder, exist_ok=True)
            with open(os.path.join(folder, "model.onnx"), "wb") as f:
                f.write(case.model.SerializeToString())
            for i, (inputs, outputs) in enumerate(case.data_sets):
                data = os.path.join(folder, f"test_data_set_{i}")
                os.makedirs(data, exist_ok=True)
                for name, values, infos in (("input", inputs, case.model.graph.input),
                                            ("output", outputs, case.model.graph.output)):
                    for j, value in enumerate(values):
                        with open(os.path.join(data, f"{name}_{j}.pb"), "wb") as f:
                            f.write(to_proto(value, infos[j]).SerializeToString())
        except Exception as e:  # noqa: BLE001: a case the package itself cannot write
            print(f"{case.name}: {type(e).__name__}: {e}", file=sys.stderr)


if __name__ == "__main__":
    main()
