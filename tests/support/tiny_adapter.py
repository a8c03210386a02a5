"""A small adapter (LoRA), for tests."""
import json
import struct


def write_adapter(folder, number=0.01):
    """A low-rank adapter of the demo model, as PEFT saves one."""
    folder.mkdir()
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "task_type": "CAUSAL_LM", "r": 1, "lora_alpha": 1, "bias": "none"}), encoding="utf-8")
    module = "base_model.model.model.layers.0.self_attn.o_proj"
    header = json.dumps({f"{module}.lora_A.weight": {"dtype": "F32", "shape": [1, 256], "data_offsets": [0, 1024]},
                         f"{module}.lora_B.weight": {"dtype": "F32", "shape": [256, 1], "data_offsets": [1024, 2048]}}).encode()
    (folder / "adapter_model.safetensors").write_bytes(
        struct.pack("<Q", len(header)) + header + struct.pack("<512f", *(number,) * 512))
