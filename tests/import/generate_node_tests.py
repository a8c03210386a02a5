#!/usr/bin/env python3
"""Writes the ONNX backend node tests of the installed `onnx` package as folders: generate_node_tests.py OUTPUT.

Newer packages no longer ship the data, only the cases that make it. The layout is that of the releases:
OUTPUT/<test>/model.onnx, OUTPUT/<test>/test_data_set_<i>/{input,output}_<j>.pb. Cases whose model the package cannot build
are named on stderr and left out.
"""
import os
import sys
import warnings

warnings.simplefilter("ignore")
import onnx  # noqa: E402
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


def main():
    out = sys.argv[1]
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
