#!/usr/bin/env python3
"""Quantized Hugging Face checkpoints of one or two tiny modules, with what each method's published definition
dequantizes them to.

    pip install numpy torch safetensors compressed-tensors && \
        python tests/loader/make_quantized_goldens.py tests/loader/quantized

One safetensors file per case. Its metadata holds `config` (a config.json), and for each module its expected storage
format as `format:<module>`; tensor `expected:<module>` is the reference's result, in the type the reference computes in.
The packing and the dequantization below follow the tools' code as published: AutoGPTQ's qlinear_cuda (torch branch),
AutoAWQ's packing_utils, DeepSeek-V3's weight_dequant, and the compressed_tensors package itself.
"""
import json
import os
import sys

import numpy as np
import torch
from compressed_tensors.compressors import pack_to_int32
from safetensors.torch import save_file

N, K = 16, 128


class Case:
    def __init__(self, name, config):
        self.name, self.config, self.tensors, self.formats = name, config, {}, {}

    def module(self, module, parts, expected, fmt):
        for part, value in parts.items():
            self.tensors[f"{module}.{part}"] = value.contiguous()
        self.tensors[f"expected:{module}"] = expected.contiguous()
        self.formats[f"format:{module}"] = fmt

    def write(self, folder):
        config = {"model_type": "llama", "quantization_config": self.config}
        save_file(self.tensors, os.path.join(folder, self.name + ".safetensors"),
                  metadata={"config": json.dumps(config), **self.formats})


def words(columns, bits):
    """Integers (..., n) to i32 words (..., n bits / 32), the first lowest."""
    p = 32 // bits
    v = columns.reshape(*columns.shape[:-1], -1, p).astype(np.uint64)
    w = (v << (np.arange(p, dtype=np.uint64) * np.uint64(bits))).sum(-1)
    return w.astype(np.uint32).view(np.int32)


def scales_of(shape, dtype, rng):
    return torch.tensor(rng.uniform(0.004, 0.02, shape), dtype=torch.float32).to(dtype)


# ---- GPTQ -----------------------------------------------------------------------------------------------------------
def gptq_dequantize(qweight, qzeros, scales, g_idx, bits, v2):
    wf = torch.tensor(list(range(0, 32, bits)), dtype=torch.int32).unsqueeze(0)
    maxq = 2**bits - 1
    zeros = torch.bitwise_right_shift(torch.unsqueeze(qzeros, 2).expand(-1, -1, 32 // bits), wf.unsqueeze(0))
    zeros = torch.bitwise_and(zeros if v2 else zeros + 1, maxq).reshape(scales.shape)
    weight = torch.bitwise_right_shift(torch.unsqueeze(qweight, 1).expand(-1, 32 // bits, -1), wf.unsqueeze(-1))
    weight = torch.bitwise_and(weight, maxq).reshape(-1, qweight.shape[1])
    return (scales[g_idx.long()] * (weight - zeros[g_idx.long()])).t()  # (out, in), in the scales' type


def gptq(name, rng, bits=4, group=32, sym=False, order=None, v2=False, dtype=torch.float16, extra=None, fmt=None):
    config = {"quant_method": "gptq", "bits": bits, "group_size": group, "sym": sym, "desc_act": order is not None,
              "checkpoint_format": "gptq_v2" if v2 else "gptq", **(extra or {})}
    case = Case(name, config)
    g = K if group == -1 else group
    groups = K // g
    levels = rng.integers(0, 2**bits, (K, N))
    zeros = np.full((groups, N), 2**(bits - 1)) if sym else rng.integers(0, 2**bits, (groups, N))
    stored = zeros if v2 else (zeros - 1) % 2**bits
    g_idx = np.arange(K) // g
    if order is not None:
        g_idx = g_idx[rng.permutation(K)]
    scales = scales_of((groups, N), dtype, rng)
    parts = {"qweight": torch.tensor(np.ascontiguousarray(words(np.ascontiguousarray(levels.T), bits).T)),
             "qzeros": torch.tensor(words(stored, bits)), "scales": scales,
             "g_idx": torch.tensor(g_idx, dtype=torch.int32)}
    expected = gptq_dequantize(parts["qweight"], parts["qzeros"], scales, parts["g_idx"], bits, v2)
    case.module("model.layers.0.self_attn.q_proj", parts, expected, fmt)
    return case


# ---- AWQ ------------------------------------------------------------------------------------------------------------
AWQ_ORDER = [0, 2, 4, 6, 1, 3, 5, 7]
AWQ_REVERSE_ORDER = [0, 4, 1, 5, 2, 6, 3, 7]


def awq_pack(v):  # (rows, n) -> (rows, n / 8): nibble i of a word is column 8 c + AWQ_ORDER[i]
    return words(v.reshape(v.shape[0], -1, 8)[:, :, AWQ_ORDER].reshape(v.shape), 4)


def awq_dequantize(qweight, qzeros, scales, group):
    shifts = torch.arange(0, 32, 4)

    def unpack(q):
        q = torch.bitwise_right_shift(q[:, :, None], shifts[None, None, :]).to(torch.int8).view(q.shape[0], -1)
        order = torch.arange(q.shape[-1], dtype=torch.int32).view(-1, 8)[:, AWQ_REVERSE_ORDER].view(-1)
        return torch.bitwise_and(q[:, order], 15)

    iweight, izeros = unpack(qweight), unpack(qzeros)
    scales = scales.repeat_interleave(group, dim=0)
    izeros = izeros.repeat_interleave(group, dim=0)
    return ((iweight - izeros) * scales).t()


def awq(name, rng, group, dtype=torch.float16, fmt=None):
    case = Case(name, {"quant_method": "awq", "bits": 4, "group_size": group, "version": "gemm", "zero_point": True,
                       "modules_to_not_convert": None})
    levels, zeros = rng.integers(0, 16, (K, N)), rng.integers(0, 16, (K // group, N))
    scales = scales_of((K // group, N), dtype, rng)
    parts = {"qweight": torch.tensor(awq_pack(levels)), "qzeros": torch.tensor(awq_pack(zeros)), "scales": scales}
    case.module("model.layers.0.mlp.up_proj", parts,
                awq_dequantize(parts["qweight"], parts["qzeros"], scales, group), fmt)
    return case


# ---- FP8 ------------------------------------------------------------------------------------------------------------
def f8(shape, rng, dtype=torch.float8_e4m3fn):
    return torch.tensor(rng.standard_normal(shape) * 60, dtype=torch.float32).to(dtype)


def fp8_block(name, rng, n, k, fmt, scale_dtype=torch.float32):
    case = Case(name, {"quant_method": "fp8", "activation_scheme": "dynamic", "fmt": "e4m3",
                       "weight_block_size": [128, 128]})
    q = f8((n, k), rng)
    s = scales_of(((n + 127) // 128, (k + 127) // 128), scale_dtype, rng)
    full = s.float().repeat_interleave(128, 0)[:n].repeat_interleave(128, 1)[:, :k]
    expected = q.float() * full  # weight_dequant stores this in the model's type
    case.module("model.layers.0.mlp.down_proj", {"weight": q, "weight_scale_inv": s},
                expected if fmt != "bf16" else expected.bfloat16(), fmt)
    return case


def fp8_tensor(name, rng):
    case = Case(name, {"quant_method": "fp8", "activation_scheme": "static"})
    q, s = f8((N, K), rng), torch.tensor(0.0123)
    case.module("model.layers.0.mlp.down_proj", {"weight": q, "weight_scale": s, "input_scale": torch.tensor(0.5)},
                q.float() * s, "e4m3_channel")
    return case


# ---- compressed-tensors ---------------------------------------------------------------------------------------------
def ct_config(kind, weights, **more):
    return {"quant_method": "compressed-tensors", "format": kind, "quantization_status": "compressed",
            "ignore": ["lm_head"], "kv_cache_scheme": None,
            "config_groups": {"group_0": {"targets": ["Linear"], "weights": weights, "input_activations": None}}, **more}


def ct_dequantize(q, scale, zero, group, dtype):
    """compressed_tensors.quantization.lifecycle.forward._dequantize over groups: (q.to(dtype) - zero) * scale."""
    scale, value = scale.repeat_interleave(group, 1), q.to(dtype)
    if zero is not None:
        value = value - zero.repeat_interleave(group, 1).to(dtype)
    return value * scale


def ct_packed(name, rng, bits, group, asymmetric, dtype, fmt):
    g = group or K
    weights = {"num_bits": bits, "type": "int", "symmetric": not asymmetric, "strategy": "group" if group else "channel",
               "group_size": group}
    case = Case(name, ct_config("pack-quantized", weights))
    lo, hi = -2**(bits - 1), 2**(bits - 1)
    q = torch.tensor(rng.integers(lo, hi, (N, K)), dtype=torch.int8)
    scale = scales_of((N, K // g), dtype, rng)
    parts = {"weight_packed": pack_to_int32(q, bits), "weight_scale": scale,
             "weight_shape": torch.tensor([N, K], dtype=torch.int64)}
    zero = None
    if asymmetric:
        zero = torch.tensor(rng.integers(lo, hi, (N, K // g)), dtype=torch.int8)
        parts["weight_zero_point"] = pack_to_int32(zero, bits, packed_dim=0)
    case.module("model.layers.1.self_attn.k_proj", parts, ct_dequantize(q, scale, zero, g, dtype), fmt)
    return case


def ct_int8(name, rng, dtype):
    case = Case(name, ct_config("int-quantized", {"num_bits": 8, "type": "int", "symmetric": True,
                                                  "strategy": "channel", "group_size": None}))
    q, s = torch.tensor(rng.integers(-128, 128, (N, K)), dtype=torch.int8), scales_of((N, 1), dtype, rng)
    case.module("model.layers.1.self_attn.k_proj", {"weight": q, "weight_scale": s},
                ct_dequantize(q, s, None, K, dtype), "i8_channel")
    return case


def ct_float8(name, rng):
    case = Case(name, ct_config("float-quantized", {"num_bits": 8, "type": "float", "symmetric": True,
                                                    "strategy": "channel", "group_size": None}))
    for module, shape, dtype in (("model.layers.0.mlp.gate_proj", (N, 1), torch.bfloat16),
                                 ("model.layers.0.mlp.up_proj", (1,), torch.float32)):
        q, s = f8((N, K), rng), scales_of(shape, dtype, rng)
        case.module(module, {"weight": q, "weight_scale": s}, q.to(dtype) * s, "e4m3_channel")
    return case


def ct_mixed(name, rng):
    groups = {"group_0": {"targets": ["re:.*self_attn.*"], "weights": {
        "num_bits": 8, "type": "int", "symmetric": True, "strategy": "channel"}},
        "group_1": {"targets": ["re:.*mlp.*"], "weights": {
            "num_bits": 4, "type": "int", "symmetric": True, "strategy": "group", "group_size": 64}}}
    case = Case(name, {"quant_method": "compressed-tensors", "format": "mixed-precision", "config_groups": groups})
    dtype = torch.bfloat16
    q, s = torch.tensor(rng.integers(-128, 128, (N, K)), dtype=torch.int8), scales_of((N, 1), dtype, rng)
    case.module("model.layers.1.self_attn.k_proj", {"weight": q, "weight_scale": s},
                ct_dequantize(q, s, None, K, dtype), "i8_channel")
    q, s = torch.tensor(rng.integers(-8, 8, (N, K)), dtype=torch.int8), scales_of((N, K // 64), dtype, rng)
    case.module("model.layers.1.mlp.up_proj",
                {"weight_packed": pack_to_int32(q, 4), "weight_scale": s, "weight_shape": torch.tensor([N, K])},
                ct_dequantize(q, s, None, 64, dtype), "i4_g64")
    return case


def main(folder):
    rng = np.random.default_rng(20251121)
    bf16, f16 = torch.bfloat16, torch.float16
    cases = [
        gptq("gptq_sym_g128", rng, group=128, sym=True, fmt="i4_g128"),
        gptq("gptq_asym_g32", rng, group=32, fmt="u4_g32"),
        gptq("gptq_asym_row", rng, group=-1, fmt="u4_g128"),
        gptq("gptq_v2", rng, group=64, v2=True, fmt="u4_g64"),
        gptq("gptq_8bit", rng, bits=8, group=64, sym=True, fmt="i8_g64"),
        gptq("gptq_8bit_row", rng, bits=8, group=-1, sym=True, fmt="i8_channel"),
        gptq("gptq_act_order", rng, group=32, order=True, fmt="f16"),
        gptq("gptq_act_order_bf16", rng, group=32, sym=True, order=True, dtype=bf16, fmt="bf16"),
        awq("awq_g128", rng, 128, fmt="u4_g128"),
        awq("awq_g32_bf16", rng, 32, dtype=bf16, fmt="u4_g32"),
        fp8_block("fp8_block", rng, 144, 256, "e4m3_g128"),
        fp8_block("fp8_block_bf16_scales", rng, 16, 256, "e4m3_g128", bf16),
        fp8_block("fp8_block_ragged", rng, 16, 192, "bf16"),
        fp8_tensor("fp8_tensor", rng),
        ct_packed("ct_w4a16_g128", rng, 4, 128, False, bf16, "i4_g128"),
        ct_packed("ct_w4a16_g32", rng, 4, 32, False, f16, "q4_0"),
        ct_packed("ct_w4a16_channel", rng, 4, None, False, bf16, "i4_g128"),
        ct_packed("ct_w4a16_asym", rng, 4, 64, True, bf16, "u4_g64"),
        ct_packed("ct_w8a16", rng, 8, None, False, bf16, "i8_channel"),
        ct_int8("ct_w8a8", rng, bf16),
        ct_float8("ct_fp8", rng),
        ct_mixed("ct_mixed", rng),
    ]
    for case in cases:
        case.write(folder)


if __name__ == "__main__":
    main(sys.argv[1])
