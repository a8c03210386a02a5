"""A language model small enough to write by hand as GGUF: one layer of random numbers over bytes. Standard library only."""
import array
import random
import struct

U32, F32, STRING, ARRAY, I32 = 4, 6, 8, 9, 5


def text(s):
    data = s.encode()
    return struct.pack("<Q", len(data)) + data


def entry(key, kind, payload):
    return text(key) + struct.pack("<I", kind) + payload


def array_of(key, kind, items):
    return entry(key, ARRAY, struct.pack("<IQ", kind, len(items)) + b"".join(items))


def write_gguf(path, width=64, context=8192):
    """Llama's architecture with the vocabulary of SentencePiece's byte fallback: <unk>, <s>, </s> and 256 bytes."""
    tokens = ["<unk>", "<s>", "</s>"] + [f"<0x{b:02X}>" for b in range(256)]
    kinds = [2, 3, 3] + [6] * 256  # unknown, control, byte
    metadata = [entry("general.architecture", STRING, text("llama"))]
    for key, value in (("block_count", 1), ("embedding_length", width), ("feed_forward_length", width),
                       ("attention.head_count", 2), ("attention.head_count_kv", 2), ("context_length", context)):
        metadata.append(entry("llama." + key, U32, struct.pack("<I", value)))
    metadata += [
        entry("llama.attention.layer_norm_rms_epsilon", F32, struct.pack("<f", 1e-5)),
        entry("tokenizer.ggml.model", STRING, text("llama")),
        array_of("tokenizer.ggml.tokens", STRING, [text(t) for t in tokens]),
        array_of("tokenizer.ggml.scores", F32, [struct.pack("<f", 0)] * len(tokens)),
        array_of("tokenizer.ggml.token_type", I32, [struct.pack("<i", k) for k in kinds]),
        entry("tokenizer.ggml.bos_token_id", U32, struct.pack("<I", 1)),
        entry("tokenizer.ggml.eos_token_id", U32, struct.pack("<I", 2)),
    ]
    shapes = {"token_embd.weight": (len(tokens), width), "output_norm.weight": (width,)}
    for name in ("attn_norm", "ffn_norm"):
        shapes[f"blk.0.{name}.weight"] = (width,)
    for name in ("attn_q", "attn_k", "attn_v", "attn_output", "ffn_gate", "ffn_up", "ffn_down"):
        shapes[f"blk.0.{name}.weight"] = (width, width)
    rng = random.Random(7)
    directory, data = b"", b""
    for name, shape in shapes.items():
        directory += text(name) + struct.pack("<I", len(shape)) + struct.pack(f"<{len(shape)}Q", *reversed(shape))
        directory += struct.pack("<IQ", 0, len(data))  # f32
        count = shape[0] * (shape[1] if len(shape) > 1 else 1)
        values = array.array("f", [1.0 if len(shape) == 1 else rng.gauss(0, 0.1) for _ in range(count)])
        data += values.tobytes()  # a multiple of 32 bytes, the format's alignment
    head = b"GGUF" + struct.pack("<IQQ", 3, len(shapes), len(metadata)) + b"".join(metadata) + directory
    with open(path, "wb") as f:
        f.write(head + bytes(-len(head) % 32) + data)
