#!/usr/bin/env python3
"""Seeds of fuzz_quantization_config: one small quantized module in each method's layout, its config.json in the
metadata.

    pip install torch safetensors && python tests/fuzz/make_quantization_seeds.py tests/fuzz/seeds/quantization_config
"""
import json
import os
import sys

import torch
from safetensors.torch import save

N, K, G = 8, 64, 32


def ints(*shape):
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) * 0x1357).to(torch.int32)


def ones(*shape, dtype=torch.float16):
    return torch.ones(shape, dtype=dtype)


def bytes_of(*shape):
    return (torch.arange(torch.Size(shape).numel()).reshape(shape) % 120).to(torch.uint8)


def seeds():
    gptq = {"quant_method": "gptq", "bits": 4, "group_size": G, "sym": False, "desc_act": False}
    words = {"qweight": ints(K // 8, N), "qzeros": ints(K // G, N // 8), "scales": ones(K // G, N)}
    yield "gptq", gptq, words
    order = (torch.arange(K) % (K // G)).to(torch.int32)
    yield "gptq_act_order", dict(gptq, desc_act=True), dict(words, g_idx=order)
    yield "awq", {"quant_method": "awq", "bits": 4, "group_size": G, "zero_point": True, "version": "gemm"}, {
        "qweight": ints(K, N // 8), "qzeros": ints(K // G, N // 8), "scales": ones(K // G, N)}
    f8 = ones(N, K, dtype=torch.float8_e4m3fn)
    yield "fp8", {"quant_method": "fp8"}, {"weight": f8, "weight_scale": ones(1, dtype=torch.float32)}
    yield "fp8_block", {"quant_method": "fp8", "weight_block_size": [4, 32]}, {
        "weight": f8, "weight_scale_inv": ones(N // 4, K // 32, dtype=torch.float32)}

    def compressed(kind, weights):
        return {"quant_method": "compressed-tensors", "format": kind,
                "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights}}, "ignore": ["lm_head"]}

    int4 = {"num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": G}
    yield "compressed_int4", compressed("pack-quantized", int4), {
        "weight_packed": ints(N, K // 8), "weight_scale": ones(N, K // G),
        "weight_shape": torch.tensor([N, K], dtype=torch.int64)}
    int8 = {"num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}
    yield "compressed_int8", compressed("int-quantized", int8), {
        "weight": torch.ones((N, K), dtype=torch.int8), "weight_scale": ones(N, 1, dtype=torch.float32)}
    float8 = {"num_bits": 8, "type": "float", "symmetric": True, "strategy": "channel"}
    yield "compressed_fp8", compressed("float-quantized", float8), {
        "weight": f8, "weight_scale": ones(N, 1, dtype=torch.float32)}
    yield "oar", {"quant_method": "oar", "version": 1,
                  "tensors": {"a.weight": {"format": "q4_0", "shape": [N, K]}}}, {"weight": bytes_of(N, K // 32 * 18)}


if __name__ == "__main__":
    os.makedirs(sys.argv[1], exist_ok=True)
    for name, config, parts in seeds():
        config = json.dumps({"quantization_config": config})
        with open(os.path.join(sys.argv[1], name), "wb") as out:
            out.write(save({f"a.{part}": t.contiguous() for part, t in parts.items()}, metadata={"config": config}))
