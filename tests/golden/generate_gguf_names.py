#!/usr/bin/env python3
"""What llama.cpp's converter calls the tensors of our goldens, by its own tables, for tests/models/gguf_test.cc and gguf_hybrid_test.cc.

    python3 tests/golden/generate_gguf_names.py    # needs gguf

Writes tests/golden/gguf_names.json: by golden the architecture and, for each tensor of the checkpoint, its name in a file; of a
tensor that the converter splits, the names of its parts in order; of one that it joins to another, none. Layers and experts are one
name for all, layers of the number N.
"""

import json
import re
from importlib.metadata import version
from pathlib import Path

import gguf
from gguf.constants import MODEL_ARCH_NAMES

GOLDEN = Path(__file__).resolve().parent
ARCHITECTURES = {
    "lfm2": "lfm2", "lfm2-moe": "lfm2moe", "mamba2": "mamba2", "falcon_h1": "falcon-h1", "granitemoehybrid": "granitehybrid", "nemotron_h": "nemotron_h",
    "nemotron_h-moe": "nemotron_h_moe", "qwen3-next": "qwen3next", "qwen3_5": "qwen35", "qwen3_5-moe": "qwen35moe",
    "deepseek-v2": "deepseek2", "deepseek-v3": "deepseek2", "glm4-moe-lite": "deepseek2", "mistral4": "mistral4",
    "minicpm3": "minicpm3", "llama2": "llama", "llama3": "llama", "llama-bias": "llama", "mistral": "llama", "mixtral": "llama",
    "qwen2": "qwen2", "qwen3": "qwen3", "qwen3-moe": "qwen3moe", "gpt2": "gpt2", "phi3": "phi3", "phi4": "phi3", "smollm3": "smollm3",
    "granite": "granite", "ernie4_5": "ernie4_5", "seed_oss": "seed_oss", "hunyuan_v1_dense": "hunyuan-dense", "olmo2": "olmo2",
    "olmo3": "olmo2", "gemma2": "gemma2", "gemma3": "gemma3", "glm4": "glm4", "cohere2": "cohere2", "exaone4": "exaone4",
    "starcoder2": "starcoder2", "qwen2-moe": "qwen2moe", "glm4-moe": "glm4moe", "ernie4_5-moe": "ernie4_5-moe",
    "minimax-m2": "minimax-m2", "gpt-oss": "gpt-oss", "gpt-oss-mxfp4": "gpt-oss", "llama4": "llama4", "ministral3": "mistral3",
    "gemma4-e2b": "gemma4", "gemma4-12b": "gemma4", "gemma4-26b-a4b": "gemma4"}
# What the converter splits: names of the parts, as its tables have them.
SPLIT = {
    "linear_attn.in_proj_qkvz": ["linear_attn.in_proj_qkv", "linear_attn.in_proj_z"],
    "self_attn.kv_b_proj": ["self_attn.k_b_proj", "self_attn.v_b_proj"],
    "block_sparse_moe.input_linear": ["mlp.experts.gate_proj", "mlp.experts.up_proj"],
    "shared_mlp.input_linear": ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"]}
SPLIT_EXPERTS = {"experts.gate_up_proj": ["experts.gate_proj", "experts.up_proj"]}  # of these alone
SPLITS_EXPERTS = ("gpt-oss", "gpt-oss-mxfp4", "llama4")
# Where its tables know a name by another.
KNOWN_AS = [(r"\.dt_bias$", ".dt_proj.bias"), (r"e_score_correction_bias$", "e_score_correction.bias"),
            (r"\.expert_bias$", ".expert_bias.bias"), (r"\.feed_forward\.experts\.\d+\.", ".feed_forward.experts."),
            (r"^model\.(layers\.\d+\.feed_forward\.experts\.w)", r"\1"),
            (r"experts\.(gate|up|gate_up|down)_proj(_blocks)?$", r"experts.\1_proj.weight"), (r"_proj_bias$", "_proj.bias"),
            # Ends that it writes itself.
            (r"\.sinks$", ".sinks.weight"), (r"\.layer_scalar$", ".layer_scalar.weight"), (r"router\.scale$", "router.proj.scale"),
            (r"router\.per_expert_scale$", "experts.down_proj.scale"),
            (r"backbone\.layers\.(\d+)\.mixer\.experts\.\d+\.", r"model.layers.\1.mlp.experts."), (r"\.experts\.\d+\.", ".experts.")]


def main() -> None:
    kinds = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    out = {"made_with": f"gguf {version('gguf')}"}
    for golden, architecture in ARCHITECTURES.items():
        names = [t["name"] for t in json.loads((GOLDEN / "models" / f"{golden}.json").read_text())["tensors"]]
        layers = 1 + max(int(m[1]) for n in names if (m := re.search(r"(?:layers|h)\.(\d+)\.", n)))
        dense = gguf.get_tensor_name_map(kinds["qwen35"], layers)
        table = gguf.get_tensor_name_map(kinds[architecture], layers)

        def written(name: str) -> str:
            for pattern, other in KNOWN_AS: name = re.sub(pattern, other, name)
            found = table.get_name(name, try_suffixes=(".weight", ".bias", ".scale"))
            # A dense layer, which every released model of this type lacks, and its table too.
            if not found and golden in ("qwen3-next", "qwen3-moe"): found = dense.get_name(name, try_suffixes=(".weight", ".bias"))
            assert found, (golden, name)
            return found

        tensors = {}
        for name in names:
            whole = re.sub(r"\b(layers|h)\.\d+\.", r"\1.N.", re.sub(r"\.experts\.\d+\.", ".experts.", name))
            split = SPLIT | (SPLIT_EXPERTS if golden in SPLITS_EXPERTS else {})
            parts = next((p for key, p in split.items() if key in name), None)
            if name.endswith("_scales"): theirs = []  # with the blocks
            elif parts is None or golden == "minicpm3": theirs = [written(name)]
            else:
                key = next(key for key in split if key in name)
                theirs = [written(name.replace(key, part)) for part in parts]
            theirs = [re.sub(r"^blk\.\d+\.", "blk.N.", t) for t in theirs]
            assert tensors.setdefault(whole, theirs) == theirs, (golden, name)
        out[golden] = {"architecture": architecture, "tensors": tensors}
    lines = [f'"made_with": {json.dumps(out.pop("made_with"))}']
    lines += [f'"{g}": {json.dumps(v)}' for g, v in out.items()]
    (GOLDEN / "gguf_names.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
