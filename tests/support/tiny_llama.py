"""A tiny Llama as a Hugging Face folder, for tests of the command line that train: random weights, a tokenizer whose words are numbers.
Standard library only."""
import json
import random
import struct
from array import array

E, F, LAYERS, HEADS, KV_HEADS, V = 32, 64, 2, 4, 2, 64


def shapes():
    out = {"model.embed_tokens.weight": [V, E], "model.norm.weight": [E], "lm_head.weight": [V, E]}
    for k in range(LAYERS):
        layer = f"model.layers.{k}."
        kv = E // HEADS * KV_HEADS
        for name, shape in (("self_attn.q_proj", [E, E]), ("self_attn.k_proj", [kv, E]), ("self_attn.v_proj", [kv, E]),
                            ("self_attn.o_proj", [E, E]), ("mlp.gate_proj", [F, E]), ("mlp.up_proj", [F, E]), ("mlp.down_proj", [E, F]),
                            ("input_layernorm", [E]), ("post_attention_layernorm", [E])):
            out[f"{layer}{name}.weight"] = shape
    return out


def write(folder, **config):
    folder.mkdir(parents=True)
    draw = random.Random(5)
    head, data, at = {}, b"", 0
    for name, shape in shapes().items():
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = array("f", (draw.uniform(-0.3, 0.3) if len(shape) > 1 else draw.uniform(0.8, 1.2) for _ in range(count)))
        head[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + 4 * count]}
        data += values.tobytes()
        at += 4 * count
    text = json.dumps(head).encode()
    text += b" " * (-len(text) % 8)
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + data)
    (folder / "config.json").write_text(json.dumps(
        {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": E, "intermediate_size": F, "num_hidden_layers": LAYERS,
         "num_attention_heads": HEADS, "num_key_value_heads": KV_HEADS, "vocab_size": V, "max_position_embeddings": 128, "rms_norm_eps": 1e-5,
         "rope_theta": 10000.0, "tie_word_embeddings": False, "hidden_act": "silu", **config}))
    (folder / "tokenizer.json").write_text(json.dumps(
        {"version": "1.0", "added_tokens": [], "normalizer": None, "pre_tokenizer": {"type": "WhitespaceSplit"}, "post_processor": None,
         "decoder": None, "model": {"type": "WordLevel", "unk_token": "0", "vocab": {str(k): k for k in range(V)}}}))
    return folder


def write_texts(path, count, length=9, seed=1):
    """Lines {"text"} of so many numbers."""
    draw = random.Random(seed)
    path.write_text("".join(json.dumps({"text": " ".join(str(draw.randrange(V)) for _ in range(length))}) + "\n" for _ in range(count)))
    return path


def spoil(folder, token):
    """The embedding of this token is no number any more."""
    path = folder / "model.safetensors"
    data = bytearray(path.read_bytes())
    size, = struct.unpack_from("<Q", data)
    begin, _ = json.loads(data[8:8 + size])["model.embed_tokens.weight"]["data_offsets"]
    at = 8 + size + begin + 4 * E * token
    data[at:at + 4 * E] = struct.pack(f"<{E}f", *[float("nan")] * E)
    path.write_bytes(data)
