#!/usr/bin/env python3
"""What llama.cpp's converter calls the tensors of hybrids and of latents, by its own tables, for tests/models/gguf_hybrid_test.cc.

    python3 tests/golden/generate_gguf_names.py    # needs gguf

Writes tests/golden/gguf_names.json: by golden the architecture and, for each tensor of the checkpoint, its name in a file; of a
tensor that the converter splits, the names of its parts in order. Experts are one name for all.
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
    "minicpm3": "minicpm3"}
# What the converter splits: names of the parts, as its tables have them.
SPLIT = {
    "linear_attn.in_proj_qkvz": ["linear_attn.in_proj_qkv", "linear_attn.in_proj_z"],
    "self_attn.kv_b_proj": ["self_attn.k_b_proj", "self_attn.v_b_proj"],
    "block_sparse_moe.input_linear": ["mlp.experts.gate_proj", "mlp.experts.up_proj"],
    "shared_mlp.input_linear": ["mlp.shared_expert.gate_proj", "mlp.shared_expert.up_proj"]}
# Where its tables know a name by another.
KNOWN_AS = [(r"\.dt_bias$", ".dt_proj.bias"), (r"e_score_correction_bias$", "e_score_correction.bias"),
            (r"\.expert_bias$", ".expert_bias.bias"), (r"\.feed_forward\.experts\.\d+\.", ".feed_forward.experts."),
            (r"^model\.(layers\.\d+\.feed_forward\.experts)", r"\1"), (r"experts\.(gate_up|down)_proj$", r"experts.\1_proj.weight"),
            (r"backbone\.layers\.(\d+)\.mixer\.experts\.\d+\.", r"model.layers.\1.mlp.experts."), (r"\.experts\.\d+\.", ".experts.")]


def main() -> None:
    kinds = {name: arch for arch, name in MODEL_ARCH_NAMES.items()}
    out = {"made_with": f"gguf {version('gguf')}"}
    for golden, architecture in ARCHITECTURES.items():
        names = [t["name"] for t in json.loads((GOLDEN / "models" / f"{golden}.json").read_text())["tensors"]]
        layers = 1 + max(int(m[1]) for n in names if (m := re.search(r"layers\.(\d+)\.", n)))
        dense = gguf.get_tensor_name_map(kinds["qwen35"], layers)
        table = gguf.get_tensor_name_map(kinds[architecture], layers)

        def written(name: str) -> str:
            for pattern, other in KNOWN_AS: name = re.sub(pattern, other, name)
            found = table.get_name(name, try_suffixes=(".weight", ".bias"))
            # A dense layer, which every released model of this type lacks, and its table too.
            if not found and golden == "qwen3-next": found = dense.get_name(name, try_suffixes=(".weight", ".bias"))
            assert found, (golden, name)
            return found

        tensors = {}
        for name in names:
            whole = re.sub(r"\.experts\.\d+\.", ".experts.", name)
            parts = next((p for key, p in SPLIT.items() if key in name), None)
            if parts is None or golden == "minicpm3": tensors[whole] = [written(name)]
            else:
                key = next(key for key in SPLIT if key in name)
                tensors[whole] = [written(name.replace(key, part)) for part in parts]
        out[golden] = {"architecture": architecture, "tensors": tensors}
    lines = [f'"made_with": {json.dumps(out.pop("made_with"))}']
    lines += [f'"{g}": {json.dumps(v)}' for g, v in out.items()]
    (GOLDEN / "gguf_names.json").write_text("{" + ",\n".join(lines) + "}\n")


if __name__ == "__main__":
    main()
