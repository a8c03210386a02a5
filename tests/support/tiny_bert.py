"""A BERT of one small layer, for tests."""
import json
import struct


def write_bert(folder):
    """A folder in the Hugging Face layout: no head, zeros but for a pattern of small numbers."""
    E, F, V, P = 16, 32, 40, 512
    shapes = {"embeddings.word_embeddings.weight": [V, E], "embeddings.position_embeddings.weight": [P, E],
              "embeddings.token_type_embeddings.weight": [2, E]}
    layer = "encoder.layer.0."
    for name, rows, columns in (("attention.self.query", E, E), ("attention.self.key", E, E), ("attention.self.value", E, E),
                                ("attention.output.dense", E, E), ("intermediate.dense", F, E), ("output.dense", E, F)):
        shapes |= {f"{layer}{name}.weight": [rows, columns], f"{layer}{name}.bias": [rows]}
    for name in ("embeddings", f"{layer}attention.output", f"{layer}output"):
        shapes |= {f"{name}.LayerNorm.weight": [E], f"{name}.LayerNorm.bias": [E]}
    shapes |= {"pooler.dense.weight": [E, E], "pooler.dense.bias": [E]}
    header, data = {}, b""
    for seed, (name, shape) in enumerate(shapes.items()):
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        norm = 1.0 if name.endswith("LayerNorm.weight") else 0.0
        part = struct.pack(f"<{count}f", *(norm + ((i * 7919 + seed * 104729) % 101 - 50) / 500 for i in range(count)))
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [len(data), len(data) + len(part)]}
        data += part
    folder.mkdir()
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(
        {"model_type": "bert", "architectures": ["BertModel"], "hidden_size": E, "intermediate_size": F, "num_attention_heads": 2,
         "num_hidden_layers": 1, "vocab_size": V, "max_position_embeddings": P, "type_vocab_size": 2, "hidden_act": "gelu",
         "layer_norm_eps": 1e-12, "pad_token_id": 0}), encoding="utf-8")
    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *"abcdefghijklmnopqrstuvwxyz", "good", "bad", "film", "a", "the"]
    words = list(dict.fromkeys(words))
    (folder / "vocab.txt").write_text("".join(f"{w}\n" for w in [*words, *(f"w{i}" for i in range(V - len(words)))]), encoding="utf-8")
