#!/usr/bin/env python3
"""Seeds of the loader fuzzers: small, valid files from independent writers.

    pip install numpy safetensors gguf && python tests/fuzz/make_loader_seeds.py tests/fuzz/seeds
"""
import os
import sys

import numpy as np
from gguf import GGMLQuantizationType as Q
from gguf import GGUFWriter
from safetensors.numpy import save


def safetensors_seeds(folder):
    a, b = np.arange(6, dtype=np.float32).reshape(2, 3), np.ones(3, dtype=np.float16)
    files = {
        "empty": save({}),
        "metadata": save({"a": a}, metadata={"format": "pt"}),
        "dtypes": save({"a": a, "b": b, "c": np.array(7, dtype=np.int64), "d": np.zeros((0, 4), dtype=np.uint8),
                        "e": np.array([True, False])}),
        "truncated": save({"a": a})[:-1],
    }
    for name, data in files.items():
        with open(os.path.join(folder, name), "wb") as out:
            out.write(data)


def gguf_seeds(folder):
    def writer(name, arch):
        w = GGUFWriter(os.path.join(folder, name), arch)
        w.add_block_count(1)
        w.add_embedding_length(32)
        w.add_head_count(2)
        w.add_context_length(64)
        return w

    def finish(w):
        w.write_header_to_file()
        w.write_kv_data_to_file()
        w.write_tensors_to_file()
        w.close()

    w = writer("llama", "llama")
    w.add_tokenizer_model("llama")
    w.add_token_list(["<unk>", "<s>", "a"])
    w.add_token_scores([0.0, -1.0, -2.0])
    w.add_token_types([2, 3, 1])
    w.add_bos_token_id(1)
    w.add_pad_token_id(0xFFFFFFFF)
    w.add_chat_template("{{ messages }}")
    w.add_tensor("token_embd.weight", np.ones((3, 32), dtype=np.float32))
    w.add_tensor("blk.0.attn_q.weight", np.zeros((2, 34), dtype=np.uint8), raw_dtype=Q.Q8_0)
    w.add_tensor("rope_freqs.weight", np.ones(8, dtype=np.float32))
    finish(w)

    w = writer("gpt2", "gpt2")
    w.add_tokenizer_model("gpt2")
    w.add_token_list(["a", "b", "ab"])
    w.add_token_merges(["a b"])
    w.add_tensor("blk.0.attn_qkv.bias", np.ones(96, dtype=np.float16))
    finish(w)

    w = writer("moe", "qwen3moe")
    w.add_expert_count(2)
    w.add_expert_used_count(1)
    w.add_array("qwen3moe.feed_forward_length", [64, 64])
    w.add_tensor("blk.0.ffn_gate_exps.weight", np.zeros((2, 1, 144), dtype=np.uint8), raw_dtype=Q.Q4_K)
    finish(w)


if __name__ == "__main__":
    for kind, make in (("safetensors", safetensors_seeds), ("gguf", gguf_seeds)):
        os.makedirs(os.path.join(sys.argv[1], kind), exist_ok=True)
        make(os.path.join(sys.argv[1], kind))
