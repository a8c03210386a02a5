#!/usr/bin/env python3
"""What PaddlePaddle computes for Paddle models: generate_paddle_models.py DATA_FOLDER golden/paddle_models.json for the
published models and topologies of the real-data collection, generate_paddle_models.py tests/data golden/paddle_own_models.json
for our own. Inputs, and the weights of topologies that come without, are filled
by the hash below, which paddle_models_test.cc repeats. Of each output its shape, 64 values at even distances and the sum
of magnitudes are kept. Needs `pip install paddlepaddle` (made with 3.3.1)."""
import json
import os
import struct
import sys
import tempfile

import numpy as np
from paddle import inference
from paddle.base.proto import framework_pb2

MODELS = [  # path, input shape
    ("paddle/fuse_pass/conv_bn.pdmodel", None),
    ("paddle/fuse_pass/conv_bn_relu.pdmodel", None),
    ("paddle/fuse_pass/conv_bn_hard_swish.pdmodel", None),
    ("paddle/v3_ch_det/inference.pdmodel", (1, 3, 96, 160)),
    ("paddle/v2_cls/inference.pdmodel", (2, 3, 48, 192)),
    ("paddle/v2_cls/inference.pdmodel", (2, 3, 32, 100)),  # as declared: its last pool is cut
    ("paddle/v2_en_rec/inference.pdmodel", (1, 3, 32, 160)),
    ("paddle/v2_korean_rec/inference.pdmodel", (1, 3, 32, 320)),
    ("paddle3_pir/PP-LCNet_x0_25_textline_ori/inference.json", (2, 3, 80, 160)),
    ("paddle/topology_only/ch_PP-OCRv4_det_infer/inference.pdmodel", (1, 3, 64, 96)),
    ("paddle/topology_only/ch_PP-OCRv4_rec_infer/inference.pdmodel", (1, 3, 48, 160)),
    ("paddle/topology_only/resnet50/inference.pdmodel", (1, 3, 224, 224)),
    ("paddle3_pir/topology_only/PP-LCNet_x1_0_doc_ori/inference.json", (1, 3, 224, 224)),
    ("paddle3_pir/topology_only/PP-OCRv5_mobile_det_infer/inference.json", (1, 3, 64, 96)),
    ("paddle3_pir/topology_only/PP-OCRv5_server_rec_infer/inference.json", (1, 3, 48, 160)),
]
OWN = [
    ("ocr/conv_bn/inference.pdmodel", (2, 3, 16, 16)),
    ("ocr/conv_bn_relu/inference.pdmodel", (2, 3, 16, 16)),
    ("ocr/conv_bn_hard_swish/inference.pdmodel", (2, 3, 16, 16)),
    ("ocr/det/inference.pdmodel", (1, 3, 64, 96)),
    ("ocr/rec/inference.pdmodel", (1, 3, 32, 160)),
    ("ocr/cls/inference.json", (2, 3, 48, 192)),
]


def noise(count, seed):
    """Uniform in [-1, 1): a 32-bit mix of position and seed, as f32."""
    with np.errstate(over="ignore"):
        x = (np.arange(1, count + 1, dtype=np.uint32) * np.uint32(2654435761)) + np.uint32((seed * 0x9E3779B9) & 0xFFFFFFFF)
        x ^= x >> np.uint32(15)
        x *= np.uint32(0x2C1B3C6D)
        x ^= x >> np.uint32(12)
    return ((x >> np.uint32(8)).astype(np.float64) / (1 << 23) - 1).astype(np.float32)


def weight(dims, seed):
    """Vectors (biases, norms and their statistics) lie in [0.5, 1); others have variance 1 / fan-in."""
    u = noise(int(np.prod(dims, dtype=np.int64)), seed)
    if len(dims) < 2:
        return (np.abs(u) * np.float32(0.5) + np.float32(0.5)).reshape(dims)
    fan_in = dims[0] if len(dims) == 2 else int(np.prod(dims[1:]))
    return (u * np.float32((3.0 / fan_in) ** 0.5)).astype(np.float32).reshape(dims)


def parameters(path):
    """(name, dims) sorted by name, and the declared input shape."""
    if path.endswith(".json"):
        ops = json.load(open(path))["program"]["regions"][0]["blocks"][0]["ops"]
        return sorted((o["A"][3].encode(), o["O"]["TT"]["D"][1]) for o in ops if o["#"] == "p"), None
    desc = framework_pb2.ProgramDesc.FromString(open(path, "rb").read())
    block = desc.blocks[0]
    types = {v.name: v.type.dense_tensor.tensor.dims for v in block.vars if v.type.type == 7}
    feed = [o.outputs[0].arguments[0] for o in block.ops if o.type == "feed"][0]
    names = sorted(v.name.encode() for v in block.vars if v.persistable and v.type.type == 7)
    return [(n, list(types[n.decode()])) for n in names], [max(d, 1) for d in types[feed]]


def record(dims, values):
    desc = framework_pb2.VarType.TensorDesc(data_type=5, dims=dims).SerializeToString()
    return struct.pack("<IQIi", 0, 0, 0, len(desc)) + desc + values.tobytes()


def main():
    data, cases = sys.argv[1], []
    with tempfile.TemporaryDirectory() as folder:
        for path, shape in OWN if os.path.exists(os.path.join(data, OWN[0][0])) else MODELS:
            full = os.path.join(data, path)
            params = os.path.splitext(full)[0] + ".pdiparams"
            listed, declared = parameters(full)
            if not os.path.exists(params):
                params = os.path.join(folder, "p.pdiparams")
                with open(params, "wb") as out:
                    for k, (_, dims) in enumerate(listed):
                        out.write(record(dims, weight(dims, k + 1)))
            config = inference.Config(full, params)
            config.disable_gpu()
            config.disable_mkldnn()
            config.disable_glog_info()
            config.switch_ir_optim(False)
            predictor = inference.create_predictor(config)
            shape = list(shape or declared)
            handle = predictor.get_input_handle(predictor.get_input_names()[0])
            handle.copy_from_cpu(noise(int(np.prod(shape)), 0).reshape(shape))
            predictor.run()
            outputs = []
            for name in predictor.get_output_names():
                y = predictor.get_output_handle(name).copy_to_cpu()
                at = np.linspace(0, y.size - 1, min(64, y.size)).astype(int)
                outputs.append({"shape": list(y.shape), "at": at.tolist(), "values": [float(f"{v:.8g}") for v in y.reshape(-1)[at]],
                                "magnitude": float(np.abs(y.astype(np.float64)).sum())})
            cases.append({"path": path, "input": shape, "outputs": outputs})
            print(path, shape, [(o["shape"], o["magnitude"]) for o in outputs], flush=True)
    with open(sys.argv[2], "w") as out:
        out.write("[\n" + ",\n".join(json.dumps(c, separators=(",", ":")) for c in cases) + "\n]\n")


if __name__ == "__main__":
    main()
