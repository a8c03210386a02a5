#!/usr/bin/env python3
"""Writes a GGUF file of random weights for a config.json: the same bytes for Oar and for llama.cpp to run.

    tests/bench/random_gguf.py --llama-cpp DIR configs/bench/qwen3_5-4b.json /var/tmp/qwen3_5-4b.gguf
    tests/bench/random_gguf.py --llama-cpp DIR --layers 8 configs/shapes/gpt-oss-20b.json /var/tmp/gpt-oss-20b-8l.gguf

DIR holds llama.cpp's sources, whose converter names, orders and joins the tensors; no weight of it is read. Matrices are q4_0, the
head q6_k, experts of gpt-oss mxfp4, all else f32; a matrix whose rows no block divides is f16. The vocabulary has the bytes and
fillers. Needs the packages numpy, torch and transformers. Speed does not depend on the weights.
"""
import argparse
import json
import os
import pathlib
import sys
import tempfile

import numpy as np

# Models whose files have experts one by one where the module has them stacked.
EXPERTS_APART = ("glm4_moe", "glm4_moe_lite", "deepseek_v3")
POOL = 1 << 18  # blocks that repeat


def read_config(path, layers):
    config = json.loads(pathlib.Path(path).read_text(encoding="utf-8"))
    config.pop("_source", None)
    config.pop("quantization_config", None)
    if layers:
        config["num_hidden_layers"] = layers
        config["num_nextn_predict_layers"] = 0
        if "layer_types" in config:
            config["layer_types"] = config["layer_types"][:layers]
    if config["model_type"].startswith("gemma4"):
        config["layer_types"][-1] = "full_attention"  # as the module makes it
    return config


def checkpoint_shapes(config, folder):
    """{name in a checkpoint: shape}, from the module made without memory."""
    import torch
    import transformers

    kind = config["model_type"]
    with torch.device("meta"):
        module = transformers.AutoModelForCausalLM.from_config(transformers.AutoConfig.from_pretrained(folder))
    shapes = {}
    for name, tensor in module.state_dict().items():
        shape = tuple(tensor.shape)
        if name == "lm_head.weight" and config.get("tie_word_embeddings"):
            continue
        if kind in EXPERTS_APART and ".mlp.experts." in name:
            stem, last = name.rsplit(".", 1)
            parts = ("gate_proj", "up_proj") if last == "gate_up_proj" else (last,)
            for expert in range(shape[0]):
                for part in parts:
                    shapes[f"{stem}.{expert}.{part}.weight"] = (shape[1] // len(parts), shape[2])
            continue
        if kind == "granitemoehybrid":
            name = name.replace("experts.gate_up_proj", "input_linear.weight")
            name = name.replace("experts.down_proj", "output_linear.weight")
        shapes[name] = shape
    return shapes


def write_vocabulary(writer, size):
    """The bytes as byte-level BPE spells them, one merge, and fillers."""
    printed = [*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)]
    others = [byte for byte in range(256) if byte not in printed]
    spelled = {byte: chr(byte) for byte in printed} | {byte: chr(256 + k) for k, byte in enumerate(others)}
    tokens = [spelled[byte] for byte in range(256)] + ["ab"]
    fillers = size - len(tokens)
    writer.add_tokenizer_model("gpt2")
    writer.add_tokenizer_pre("gpt-2")
    writer.add_token_list(tokens + [f"<unused{k}>" for k in range(fillers)])
    writer.add_token_types([1] * len(tokens) + [4] * fillers)
    writer.add_token_merges(["a b"])
    writer.add_bos_token_id(size - 2)
    writer.add_eos_token_id(size - 1)
    writer.add_add_bos_token(False)


def converted(llama_cpp, config, folder, out):
    """llama.cpp's converter, its writer filled with metadata, and the (name, shape, quantizable) of its tensors."""
    sys.path[:0] = [llama_cpp, os.path.join(llama_cpp, "gguf-py")]
    import gguf
    import torch
    from conversion import ModelBase, get_model_class
    from conversion.base import LazyTorchTensor

    shapes = checkpoint_shapes(config, folder)

    def placeholder(shape):
        meta = LazyTorchTensor.meta_with_dtype_and_shape(torch.float32, shape)
        return lambda: LazyTorchTensor(meta=meta, args=(), func=lambda: None)

    def index(self, remote_hf_model_id=None):
        items = (self.filter_tensors((name, placeholder(shape))) for name, shape in shapes.items())
        return dict(item for item in items if item is not None)

    ModelBase.index_tensors = index
    kind = get_model_class(config["architectures"][0])
    kind.set_vocab = lambda self: write_vocabulary(self.gguf_writer, config["vocab_size"])
    kind.no_mtp = True
    kind._original_block_count = config["num_hidden_layers"]  # its index_tensors() would have set it
    model = kind(pathlib.Path(folder), gguf.LlamaFileType.MOSTLY_Q8_0, pathlib.Path(out), hparams=dict(config))
    tensors = []

    def add(name, data, raw_dtype=None, **_):
        quantizable = raw_dtype == gguf.GGMLQuantizationType.Q8_0
        shape = gguf.quant_shape_from_byte_shape(data.shape, raw_dtype) if quantizable else data.shape
        tensors.append((name, tuple(shape), quantizable))

    model.gguf_writer.add_tensor = add
    model.prepare_tensors()
    model.prepare_metadata(vocab_only=False)
    return gguf, model.gguf_writer, tensors


def blocks(kind, random):
    """POOL blocks of a format, as bytes."""
    def bytes_of(*shape):
        return random.integers(0, 256, shape, dtype=np.uint8)

    def scales(size):
        return ((np.abs(random.standard_normal(POOL)) + 1) * size).astype(np.float16).view(np.uint8).reshape(POOL, 2)

    if kind == "Q4_0":
        return np.concatenate([scales(0.004), bytes_of(POOL, 16)], 1)
    if kind == "Q6_K":
        small = random.integers(-60, 60, (POOL, 16)).astype(np.int8).view(np.uint8)
        return np.concatenate([bytes_of(POOL, 192), small, scales(2e-5)], 1)
    return np.concatenate([np.full((POOL, 1), 119, np.uint8), bytes_of(POOL, 16)], 1)  # MXFP4: 2^-8


def small_values(name, count, random):
    if name == "rope_freqs.weight":  # a quarter of the pairs turns
        return np.where(np.arange(count) < count // 4, 1.0, 1e30)
    if name.endswith("ssm_a"):
        return -np.exp(random.uniform(0, 2, count))
    values = random.standard_normal(count) * 0.02
    return 1 + values if "norm" in name else values


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0], epilog=__doc__.partition("\n\n")[2],
                                formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("--llama-cpp", required=True, metavar="DIR", help="its sources, with convert_hf_to_gguf.py")
    p.add_argument("--layers", type=int, metavar="N", help="the first N of the config's layers")
    p.add_argument("config")
    p.add_argument("out")
    options = p.parse_args()
    config = read_config(options.config, options.layers)
    with tempfile.TemporaryDirectory() as folder:
        (pathlib.Path(folder) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        # Gemma's converter counts tokens to cut the embedding to them.
        vocabulary = {str(k): k for k in range(config["vocab_size"])}
        (pathlib.Path(folder) / "tokenizer.json").write_text(
            json.dumps({"added_tokens": [], "model": {"vocab": vocabulary}}), encoding="utf-8")
        gguf, writer, tensors = converted(options.llama_cpp, config, folder, options.out)
    random = np.random.default_rng(1)
    pools = {kind: blocks(kind, random) for kind in ("Q4_0", "Q6_K", "MXFP4")}
    head = "output.weight" if any(name == "output.weight" for name, *_ in tensors) else "token_embd.weight"
    formats = []
    for name, shape, quantizable in tensors:
        kind = "F32"
        if quantizable:
            kind = "Q6_K" if name == head and shape[-1] % 256 == 0 else "Q4_0"
            if config["model_type"] == "gpt_oss" and "_exps" in name:
                kind = "MXFP4"
            if shape[-1] % 32:
                kind = "F16"
        formats.append(kind)
        dtype = gguf.GGMLQuantizationType[kind]
        per_block, block_bytes = gguf.GGML_QUANT_SIZES[dtype]
        if kind in pools:
            stored = (*shape[:-1], shape[-1] // per_block * block_bytes)
            writer.add_tensor_info(name, stored, np.dtype(np.uint8), int(np.prod(stored)), raw_dtype=dtype)
        else:
            writer.add_tensor_info(name, shape, np.dtype(np.float16 if kind == "F16" else np.float32),
                                   int(np.prod(shape)) * block_bytes)
    writer.write_header_to_file(path=pathlib.Path(options.out))
    writer.write_kv_data_to_file()
    writer.write_ti_data_to_file()
    for (name, shape, _), kind in zip(tensors, formats):
        count = int(np.prod(shape))
        if kind in pools:
            need = count // gguf.GGML_QUANT_SIZES[gguf.GGMLQuantizationType[kind]][0]
            writer.write_tensor_data(np.tile(pools[kind], (-(-need // POOL), 1))[:need].reshape(-1))
        else:
            values = small_values(name, count, random).astype(np.float16 if kind == "F16" else np.float32)
            writer.write_tensor_data(values.reshape(shape))
    writer.close()
    print(f"{options.out}: {os.path.getsize(options.out) / 1e9:.2f} GB, {len(tensors)} tensors")


if __name__ == "__main__":
    main()
