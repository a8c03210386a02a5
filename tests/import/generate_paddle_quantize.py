#!/usr/bin/env python3
"""Programs of one quantization op each, and what PaddlePaddle computes: FLAGS_enable_pir_api=0
generate_paddle_quantize.py OUTPUT.json. Needs `pip install paddlepaddle` (made with 3.2.2). Committed:
golden/paddle_quantize.json, ProgramDescs as of PaddleSlim."""
import json
import sys
import tempfile

import numpy as np
import paddle
from paddle.base.layer_helper import LayerHelper

import generate_paddle_ops as ops

X = ops.f(2, 3, 4)
HALVES = np.array([[-4, -2, -1.5, -0.75, -0.25, 0, 0.25, 0.75, 1.25, 1.5, 2.5, 4]], "float32")  # ties, and beyond the scale
CHANNELS = np.array([1.5, 0.5, 2.0], "float32")
CASES = {}


def case(name, op, x, outputs, more=(), **attrs):
    CASES[name] = (op, x, outputs, dict(more), attrs)


for rounding in (0, 1):
    case(f"quantize_linear_{rounding}", "quantize_linear", HALVES, ["Y"], {"Scale": [3.0], "ZeroPoint": [0.0]}, quant_axis=-1,
         bit_length=3, qmin=-4, qmax=3, round_type=rounding, is_test=True)
    case(f"fake_quantize_dequantize_{rounding}", "fake_quantize_dequantize_moving_average_abs_max", HALVES, ["Out", "OutScale"],
         {"InScale": [3.0]}, bit_length=3, round_type=rounding, is_test=True)
case("quantize_linear_channels", "quantize_linear", X, ["Y"], {"Scale": CHANNELS, "ZeroPoint": [0.0, 0.0, 0.0]}, quant_axis=1,
     round_type=0, is_test=True)
case("dequantize_linear", "dequantize_linear", np.round(X * 40), ["Y"], {"Scale": [0.7], "ZeroPoint": [0.0]}, quant_axis=-1,
     is_test=True)
case("dequantize_linear_bits", "dequantize_linear", np.round(X), ["Y"], {"Scale": [0.7], "ZeroPoint": [0.0]}, quant_axis=-1,
     bit_length=3, qmin=-4, qmax=3, is_test=True)
case("dequantize_linear_byte_steps", "dequantize_linear", np.round(X), ["Y"], {"Scale": [0.7], "ZeroPoint": [0.0]},
     quant_axis=-1, bit_length=3, is_test=True)
case("dequantize_linear_channels", "dequantize_linear", np.round(X * 40), ["Y"],
     {"Scale": CHANNELS, "ZeroPoint": [0.0, 0.0, 0.0]}, quant_axis=1, is_test=True)
case("fake_quantize_abs_max", "fake_quantize_abs_max", X, ["Out", "OutScale"])
case("fake_quantize_dequantize_abs_max", "fake_quantize_dequantize_abs_max", X, ["Out", "OutScale"], bit_length=4)
for axis in (0, 1):
    case(f"fake_channel_wise_quantize_{axis}", "fake_channel_wise_quantize_abs_max", X, ["Out", "OutScale"], quant_axis=axis,
         is_test=False)
    case(f"fake_channel_wise_quantize_dequantize_{axis}", "fake_channel_wise_quantize_dequantize_abs_max", X,
         ["Out", "OutScale"], quant_axis=axis)
case("fake_quantize_moving_average", "fake_quantize_moving_average_abs_max", X, ["Out", "OutScale"], {"InScale": [1.2]},
     is_test=True)
case("fake_quantize_range", "fake_quantize_range_abs_max", X, ["Out", "OutScale"], {"InScale": [1.2]}, is_test=True)
case("fake_dequantize_max_abs", "fake_dequantize_max_abs", np.round(X * 40), ["Out"], {"Scale": [0.7]}, max_range=127.0)
case("fake_channel_wise_dequantize", "fake_channel_wise_dequantize_max_abs", np.round(X * 40), ["Out"],
     {"Scales": [np.array([0.5, 1.5], "float32")]}, quant_bits=[8], quant_axis=0)
case("fake_channel_wise_dequantize_two", "fake_channel_wise_dequantize_max_abs", np.round(X * 40), ["Out"],
     {"Scales": [CHANNELS, np.array([0.9], "float32")]}, quant_bits=[8, 8], quant_axis=1, x_num_col_dims=1)


def program(op, outputs, more, attrs):
    def build(x):
        helper = LayerHelper(op)
        inputs = {"X": [x]}
        for slot, value in more.items():
            values = value if isinstance(value, list) and isinstance(value[0], np.ndarray) else [np.array(value, "float32")]
            inputs[slot] = [paddle.assign(v) for v in values]
        results = {slot: [helper.create_variable_for_type_inference("float32")] for slot in outputs}
        helper.append_op(type=op, inputs=inputs, outputs=results, attrs=attrs)
        # What a given scale becomes is of no declared shape, and is not fetched.
        return [results[slot][0] for slot in (outputs if "InScale" not in more else ["Out"])]
    return build


def main():
    paddle.enable_static()
    done = []
    with tempfile.TemporaryDirectory() as folder:
        for name, (op, x, outputs, more, attrs) in CASES.items():
            try:
                done.append(ops.make(name, program(op, outputs, more, attrs), (x.astype("float32"),), False, False, folder))
            except Exception as e:  # noqa: BLE001: reported
                print(f"{name}: {type(e).__name__}: {str(e).strip().splitlines()[-1][:200]}")
    with open(sys.argv[1], "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in done) + "\n]\n")
    print(f"{len(done)} cases")


if __name__ == "__main__":
    main()
