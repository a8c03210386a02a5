"""Models that stand in for those that borrowed suites download: encoders of random weights, and copies of a GGUF file with another
context. What such a model says means nothing; how the server says it is what the suites are run for."""
import json
import pathlib
import random
import re
import shutil
import struct
import sys

# Words that suites count the tokens of; other words are spelled in letters.
WORDS = """i believe the meaning of life is write a joke about ai from very long prompt which will not be truncated this test
another hello world machine learning what capital france brazil paris""".split()
LETTERS = "abcdefghijklmnopqrstuvwxyz0123456789.,-?!'éàèç"


def write_safetensors(path, tensors):
    """`tensors`: {name: (shape, floats)}"""
    header, blobs, at = {}, [], 0
    for name, (shape, values) in tensors.items():
        blob = struct.pack(f"<{len(values)}f", *values)
        header[name] = {"dtype": "F32", "shape": shape, "data_offsets": [at, at + len(blob)]}
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    path.write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))


def with_vocabulary(source, folder, size):
    """The model in `source` with embeddings of so many tokens: those that its tokenizer does not know are never likely."""
    source, folder = pathlib.Path(source), pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    for path in source.iterdir():
        if path.suffix == ".json":
            (folder / path.name).write_bytes(path.read_bytes())
    config = json.loads((source / "config.json").read_text())
    known, config["vocab_size"] = config["vocab_size"], size
    (folder / "config.json").write_text(json.dumps(config))
    data = (source / "model.safetensors").read_bytes()
    length = struct.unpack("<Q", data[:8])[0]
    header, blobs, at = json.loads(data[8:8 + length]), [], 0
    for name, tensor in header.items():
        if name == "__metadata__":
            continue
        begin, end = tensor["data_offsets"]
        blob = data[8 + length + begin:8 + length + end]
        if tensor["shape"][0] == known and ("embed_tokens" in name or "lm_head" in name):
            blob += bytes(len(blob) // known * (size - known))
            tensor["shape"][0] = size
        tensor["data_offsets"] = [at, at + len(blob)]
        blobs.append(blob)
        at += len(blob)
    text = json.dumps(header).encode()
    (folder / "model.safetensors").write_bytes(struct.pack("<Q", len(text)) + text + b"".join(blobs))
    return str(folder)


def with_positions(source, folder, tokens):
    """The model in `source`, said to have been made for so many tokens."""
    shutil.copytree(source, folder)
    config = json.loads(pathlib.Path(folder, "config.json").read_text())
    config["max_position_embeddings"] = tokens
    pathlib.Path(folder, "config.json").write_text(json.dumps(config))
    return str(folder)


def write_encoder(folder, classifier=False, positions=512, pooling=None):
    """A BERT of random weights; with `classifier` a cross-encoder."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    vocabulary = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", *sorted(set(WORDS) - set(LETTERS)), *LETTERS,
                  *("##" + c for c in LETTERS)]
    (folder / "vocab.txt").write_text("\n".join(vocabulary) + "\n", encoding="utf-8")
    wide, inner, layers = 32, 64, 2
    config = {"architectures": ["BertForSequenceClassification" if classifier else "BertModel"], "model_type": "bert",
              "vocab_size": len(vocabulary), "hidden_size": wide, "intermediate_size": inner, "num_hidden_layers": layers,
              "num_attention_heads": 4, "max_position_embeddings": positions, "type_vocab_size": 2, "layer_norm_eps": 1e-12,
              "hidden_act": "gelu", "pad_token_id": 0}
    if classifier:
        config.update(id2label={"0": "LABEL_0"}, label2id={"LABEL_0": 0})
    (folder / "config.json").write_text(json.dumps(config))
    (folder / "tokenizer_config.json").write_text(json.dumps({"do_lower_case": True, "tokenizer_class": "BertTokenizer"}))
    if pooling is not None:
        (folder / "1_Pooling").mkdir(exist_ok=True)
        (folder / "1_Pooling/config.json").write_text(json.dumps({"pooling_mode": pooling, "word_embedding_dimension": wide}))
        modules = ["Transformer", "Pooling", "Normalize"]
        (folder / "modules.json").write_text(json.dumps(
            [{"idx": i, "name": str(i), "path": "" if i == 0 else f"{i}_{m}", "type": f"sentence_transformers.models.{m}"}
             for i, m in enumerate(modules)]))
    draw = random.Random(7)
    tensors = {}

    def add(name, *shape, value=None):
        count = 1
        for n in shape:
            count *= n
        tensors[prefix + name] = (list(shape), [value if value is not None else draw.gauss(0, 0.3) for _ in range(count)])

    def add_linear(name, out, into):
        add(name + ".weight", out, into)
        add(name + ".bias", out, value=0.0)

    def add_norm(name):
        add(name + ".weight", wide, value=1.0)
        add(name + ".bias", wide, value=0.0)

    prefix = "bert." if classifier else ""
    add("embeddings.word_embeddings.weight", len(vocabulary), wide)
    add("embeddings.position_embeddings.weight", positions, wide)
    add("embeddings.token_type_embeddings.weight", 2, wide)
    add_norm("embeddings.LayerNorm")
    for i in range(layers):
        layer = f"encoder.layer.{i}."
        for part in ("query", "key", "value"):
            add_linear(f"{layer}attention.self.{part}", wide, wide)
        add_linear(layer + "attention.output.dense", wide, wide)
        add_norm(layer + "attention.output.LayerNorm")
        add_linear(layer + "intermediate.dense", inner, wide)
        add_linear(layer + "output.dense", wide, inner)
        add_norm(layer + "output.LayerNorm")
    add_linear("pooler.dense", wide, wide)
    prefix = ""
    if classifier:
        add_linear("classifier", 1, wide)
    write_safetensors(folder / "model.safetensors", tensors)
    return str(folder)


def write_adapter(folder, config):
    """A LoRA of rank 1 that changes nothing, of a model with this config.json."""
    folder = pathlib.Path(folder)
    folder.mkdir(parents=True, exist_ok=True)
    model = json.loads(pathlib.Path(config).read_text(encoding="utf-8"))
    wide, tensors = model["hidden_size"], {}
    for i in range(model["num_hidden_layers"]):
        name = f"base_model.model.model.layers.{i}.self_attn.q_proj.lora_"
        tensors[name + "A.weight"] = ([1, wide], [0.1] * wide)
        out = model["num_attention_heads"] * model.get("head_dim", wide // model["num_attention_heads"])
        tensors[name + "B.weight"] = ([out, 1], [0.0] * out)
    (folder / "adapter_config.json").write_text(json.dumps(
        {"peft_type": "LORA", "r": 1, "lora_alpha": 1, "target_modules": ["q_proj"], "base_model_name_or_path": "demo"}))
    write_safetensors(folder / "adapter_model.safetensors", tensors)
    return str(folder)


def with_context(gguf, to, tokens):
    """A copy of a GGUF file whose model is said to have been made for `tokens`."""
    data = bytearray(pathlib.Path(gguf).read_bytes())
    key = re.search(rb"\.context_length\x04\0\0\0", data)
    if key is None:
        raise SystemExit(f"{gguf}: no context_length in it")
    struct.pack_into("<I", data, key.end(), tokens)
    pathlib.Path(to).write_bytes(data)
    return str(to)


SIZES = {0: 1, 1: 1, 2: 2, 3: 2, 4: 4, 5: 4, 6: 4, 7: 1, 10: 8, 11: 8, 12: 8}  # of GGUF's plain values, by type


def end_of_value(data, at, kind):
    """Where a value of a GGUF file ends that begins at `at`."""
    if kind == 8:
        return at + 8 + struct.unpack_from("<Q", data, at)[0]
    if kind != 9:
        return at + SIZES[kind]
    element, count = struct.unpack_from("<IQ", data, at)
    at += 12
    if element in SIZES:
        return at + count * SIZES[element]
    for _ in range(count):
        at = end_of_value(data, at, element)
    return at


def with_gap_tokens(gguf, to):
    """A copy of a GGUF file of Llama's old tokenizer, whose last byte tokens, which no text has, stand around a gap."""
    data = bytearray(pathlib.Path(gguf).read_bytes())
    tensors, fields = struct.unpack_from("<QQ", data, 8)
    places, at = {}, 24
    for _ in range(fields):
        name_end = end_of_value(data, at, 8)
        kind = struct.unpack_from("<I", data, name_end)[0]
        end = end_of_value(data, name_end + 4, kind)
        places[bytes(data[at + 8:name_end]).decode()] = (name_end + 4, end)
        at = end
    for _ in range(tensors):
        at = end_of_value(data, at, 8)
        at += 4 + 8 * struct.unpack_from("<I", data, at)[0] + 12
    begin, end = places["tokenizer.ggml.tokens"]
    types = places["tokenizer.ggml.token_type"][0] + 12
    marks = {b"<0xFD>": b"<|fim_prefix|>", b"<0xFE>": b"<|fim_suffix|>", b"<0xFF>": b"<|fim_middle|>"}
    text, next_token, i = bytes(data[begin:begin + 12]), begin + 12, 0
    while next_token < end:
        after = end_of_value(data, next_token, 8)
        token = bytes(data[next_token + 8:after])
        if token in marks:
            struct.pack_into("<i", data, types + 4 * i, 3)  # a control token
        token = marks.get(token, token)
        text += struct.pack("<Q", len(token)) + token
        next_token, i = after, i + 1
    head = bytes(data[:begin]) + text + bytes(data[end:at])
    pathlib.Path(to).write_bytes(head + bytes(-len(head) % 32) + bytes(data[at + -at % 32:]))  # tensors begin at multiples of 32
    return str(to)


def write_tensor_models(folder):
    """The ordinary models that Triton's tests of its protocols ask for: those that give back what they get, and sums."""
    sys.path.insert(0, str(pathlib.Path(__file__).resolve().parents[1] / "support"))
    from tiny_onnx import field, value, write_model
    kinds = {"FP32": 1, "INT32": 6, "INT64": 7, "STRING": 8, "FP16": 10}

    def write(name, kind, dims, nodes, inputs, outputs, batch=8):
        """`nodes`: (op, inputs, output)"""
        graph = b"".join(field(1, b"".join(field(1, i.encode()) for i in into) + field(2, out.encode()) + field(4, op.encode()))
                         for op, into, out in nodes) + field(2, b"g")
        axes = [*(["batch"] if batch else []), *(f"d{k}" if d < 0 else d for k, d in enumerate(dims))]
        for number, names in ((11, inputs), (12, outputs)):
            graph += b"".join(field(number, value(n.encode(), axes, kinds[kind])) for n in names)
        pathlib.Path(folder, name, "1").mkdir(parents=True)
        write_model(f"{folder}/{name}/1/model.onnx", graph)
        text = f'name: "{name}"\nmax_batch_size: {batch}\n'
        for word, names in (("input", inputs), ("output", outputs)):
            for n in names:
                text += f'{word} {{ name: "{n}" data_type: TYPE_{kind} dims: {list(dims)} }}\n'
        pathlib.Path(folder, name, "config.pbtxt").write_text(text)

    for name, kind, dims, count in (("onnx_zero_1_float32", "FP32", [-1], 1), ("onnx_zero_1_float16", "FP16", [-1, -1], 1),
                                    ("onnx_zero_1_object", "STRING", [-1], 1), ("onnx_zero_1_object_1_element", "STRING", [1], 1),
                                    ("onnx_zero_3_float32", "FP32", [-1], 3), ("simple_identity", "STRING", [-1], 1),
                                    ("simple_identity_int64", "INT64", [-1], 1), ("string_identity", "STRING", [-1], 1)):
        inputs, outputs = ([f"{side}{k}" for k in range(count)] for side in ("INPUT", "OUTPUT"))
        write(name, kind, dims, [("Identity", [i], o) for i, o in zip(inputs, outputs)], inputs, outputs,
              0 if name == "string_identity" else 8)
    queue = pathlib.Path(folder, "onnx_zero_1_float32_queue")
    shutil.copytree(pathlib.Path(folder, "onnx_zero_1_float32"), queue)
    text = (queue / "config.pbtxt").read_text().replace(queue.name.removesuffix("_queue"), queue.name)
    (queue / "config.pbtxt").write_text(text + "dynamic_batching { max_queue_delay_microseconds: 1000000 preferred_batch_size: [ 8 ] "
                                        "default_queue_policy { max_queue_size: 1 } }\n")
    pair = ["INPUT0", "INPUT1"]
    write("simple", "INT32", [16], [("Add", pair, "OUTPUT0"), ("Sub", pair, "OUTPUT1")], pair, ["OUTPUT0", "OUTPUT1"])
    return str(folder)
