"""Random weights of a Llama config as a GGUF file in Q4_K_M, the formats llama.cpp's tools choose under that name: q6_k for the
embedding and for the values and down projections of half the layers, else q4_k. Standard library only."""
import json
import os
import random
import struct
import sys

sys.path.insert(0, os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "support"))
from tiny_gguf import F32, STRING, U32, array_of, entry, text  # noqa: E402

Q4_K, Q6_K, BLOCK = 12, 14, 256
PATTERN = 509  # blocks that are different: a prime, so that rows are not alike


def q4_k(rng):
    d = 1.7e-4  # elements of about 0.02
    return struct.pack("<ee", d, 7.5 * d) + rng.randbytes(12 + BLOCK // 2)


def q6_k(rng):
    return rng.randbytes(BLOCK // 2 + BLOCK // 4 + BLOCK // 16) + struct.pack("<e", 1.5e-5)


def wide(layer, layers):
    """Whether this layer's values and down projection have six bits."""
    return layer < layers // 8 or layer >= 7 * layers // 8 or (layer - layers // 8) % 3 == 2


def tensors_of(c):
    """[(name, (rows, columns) or (columns,), type)], type 0 is f32."""
    width, inner = c["hidden_size"], c["intermediate_size"]
    heads, kv = c["num_attention_heads"] * c["head_dim"], c["num_key_value_heads"] * c["head_dim"]
    made = [("token_embd.weight", (c["vocab_size"], width), Q6_K), ("output_norm.weight", (width,), 0)]
    for n in range(c["num_hidden_layers"]):
        six = Q6_K if wide(n, c["num_hidden_layers"]) else Q4_K
        made += [(f"blk.{n}.{name}.weight", shape, kind) for name, shape, kind in (
            ("attn_norm", (width,), 0), ("ffn_norm", (width,), 0),
            ("attn_q", (heads, width), Q4_K), ("attn_k", (kv, width), Q4_K), ("attn_v", (kv, width), six),
            ("attn_output", (width, heads), Q4_K), ("ffn_gate", (inner, width), Q4_K), ("ffn_up", (inner, width), Q4_K),
            ("ffn_down", (width, inner), six))]
    return made


def metadata_of(c):
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    kinds = [2, 3, 3] + [6] * 256 + [1] * (c["vocab_size"] - len(tokens))
    tokens += [f"t{i}" for i in range(len(tokens), c["vocab_size"])]
    made = [entry("general.architecture", STRING, text("llama"))]
    for key, value in (("block_count", c["num_hidden_layers"]), ("embedding_length", c["hidden_size"]),
                       ("feed_forward_length", c["intermediate_size"]), ("attention.head_count", c["num_attention_heads"]),
                       ("attention.head_count_kv", c["num_key_value_heads"]), ("attention.key_length", c["head_dim"]),
                       ("attention.value_length", c["head_dim"]), ("context_length", 8192)):
        made.append(entry("llama." + key, U32, struct.pack("<I", value)))
    return made + [
        entry("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", c["rms_norm_eps"])),
        entry("llama.rope.freq_base", F32, struct.pack("<f", c["rope_theta"])),
        entry("tokenizer.ggml.model", STRING, text("llama")),
        array_of("tokenizer.ggml.tokens", STRING, [text(t) for t in tokens]),
        array_of("tokenizer.ggml.scores", F32, [struct.pack("<f", 0)] * len(tokens)),
        array_of("tokenizer.ggml.token_type", 5, [struct.pack("<i", k) for k in kinds]),
        entry("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 1)),
        entry("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", 2)),
    ]


def write(config, path):
    with open(config, encoding="utf-8") as f:
        c = json.load(f)
    rng = random.Random(7)
    patterns = {Q4_K: b"".join(q4_k(rng) for _ in range(PATTERN)), Q6_K: b"".join(q6_k(rng) for _ in range(PATTERN))}
    tensors, metadata = tensors_of(c), metadata_of(c)
    directory, sizes, at = b"", [], 0
    for name, shape, kind in tensors:
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        sizes.append(4 * count if kind == 0 else count // BLOCK * len(patterns[kind]) // PATTERN)
        directory += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        directory += struct.pack("<IQ", kind, at)
        at += -(-sizes[-1] // 32) * 32
    head = b"GGUF" + struct.pack("<IQQ", 3, len(tensors), len(metadata)) + b"".join(metadata) + directory
    with open(path + ".part", "wb") as f:
        f.write(head + bytes(-len(head) % 32))
        for (_, _, kind), size in zip(tensors, sizes):
            left = size
            while left > 0:
                piece = patterns[kind] if kind else struct.pack("<f", 1) * 4096
                left -= f.write(piece[:left])
            f.write(bytes(-size % 32))
    os.replace(path + ".part", path)
