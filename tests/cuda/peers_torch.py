#!/usr/bin/env python3
"""What PyTorch makes of the same work, compiled and with CUDA graphs, in bf16 with random weights: a peer of ./dev gpu.

    peers_torch.py generate --shape configs/bench/llama-8b.json --prompt-tokens 128 --gen-tokens 128 --streams 256
    peers_torch.py resnet50 --batch 64
    peers_torch.py bert_base --batch 32 --tokens 128

`generate` reads the prompts of all streams, 16,384 tokens at a time, then writes their texts a token of each at a time: tokens/s
of text over both. The networks take their inputs from the host and give their result back there: the median of runs, in
milliseconds.
Each prints one JSON object. --device cpu and small sizes try the program where there is no GPU. Needs PyTorch 2.5 or newer.
"""
import argparse
import json
import statistics
import sys
import time

try:
    import torch
    from torch import nn
    from torch.nn import functional as F
except ImportError as why:
    sys.exit(f"peers_torch.py: {why}; PyTorch 2.5 or newer is needed")

PREFILL_TOKENS = 16384  # of a step, as many whole prompts as fit


def rms_norm(x, weight, eps):
    return F.rms_norm(x, (x.shape[-1],), weight, eps)


class Layer(nn.Module):
    """Of a Llama: grouped heads behind a rotation, then a gated pair of products."""

    def __init__(self, shape):
        super().__init__()
        width, inner, self.heads = shape["hidden_size"], shape["intermediate_size"], shape["num_attention_heads"]
        self.kv_heads, self.dim, self.eps = shape["num_key_value_heads"], shape["head_dim"], shape["rms_norm_eps"]
        self.heads_of = nn.Linear(width, (self.heads + 2 * self.kv_heads) * self.dim, bias=False)
        self.joined = nn.Linear(self.heads * self.dim, width, bias=False)
        self.gate_up = nn.Linear(width, 2 * inner, bias=False)
        self.down = nn.Linear(inner, width, bias=False)
        self.norms = nn.Parameter(torch.ones(2, width))

    def forward(self, x, cache, positions, turn, mask):
        batch, rows, _ = x.shape
        joined = self.heads_of(rms_norm(x, self.norms[0], self.eps)).view(batch, rows, -1, self.dim).transpose(1, 2)
        q, k, v = joined.split([self.heads, self.kv_heads, self.kv_heads], dim=1)
        cache[0].index_copy_(2, positions, rotated(k, turn))
        cache[1].index_copy_(2, positions, v)
        out = F.scaled_dot_product_attention(rotated(q, turn), cache[0], cache[1], attn_mask=mask, enable_gqa=True)
        x = x + self.joined(out.transpose(1, 2).reshape(batch, rows, -1))
        gate, up = self.gate_up(rms_norm(x, self.norms[1], self.eps)).chunk(2, dim=-1)
        return x + self.down(F.silu(gate) * up)


def rotated(x, turn):
    cosine, sine = turn
    left, right = x.chunk(2, dim=-1)
    return torch.cat([left * cosine - right * sine, right * cosine + left * sine], dim=-1)


class Llama(nn.Module):
    """A decoder of the shape, whose logits are those of each sequence's last row."""

    def __init__(self, shape):
        super().__init__()
        self.table = nn.Embedding(shape["vocab_size"], shape["hidden_size"])
        self.layers = nn.ModuleList(Layer(shape) for _ in range(shape["num_hidden_layers"]))
        self.norm = nn.Parameter(torch.ones(shape["hidden_size"]))
        self.head = nn.Linear(shape["hidden_size"], shape["vocab_size"], bias=False)
        self.eps, dim = shape["rms_norm_eps"], shape["head_dim"]
        frequencies = shape["rope_theta"] ** (-torch.arange(0, dim, 2, dtype=torch.float32) / dim)
        self.register_buffer("frequencies", frequencies)

    def forward(self, tokens, cache, positions, mask):
        angles = positions[:, None].float() * self.frequencies.float()
        turn = angles.cos().to(self.norm.dtype), angles.sin().to(self.norm.dtype)
        x = self.table(tokens)
        for layer, of_layer in zip(self.layers, cache):
            x = layer(x, of_layer, positions, turn, mask)
        return self.head(rms_norm(x[:, -1], self.norm, self.eps)).argmax(-1, keepdim=True)


def wait(device):
    if device == "cuda":
        torch.cuda.synchronize()


def generate(args):
    with open(args.shape, encoding="utf-8") as file:
        shape = json.load(file)
    length, kind = args.prompt_tokens + args.gen_tokens, {"device": args.device, "dtype": torch.bfloat16}
    with torch.device(args.device):
        torch.set_default_dtype(torch.bfloat16)
        model = Llama(shape).eval()
    cache = [torch.zeros(2, args.streams, shape["num_key_value_heads"], length, shape["head_dim"], **kind) for _ in model.layers]
    for layer in cache:
        torch._dynamo.mark_static_address(layer)  # else no graph is captured of what changes it
    prompts = torch.randint(shape["vocab_size"], (args.streams, args.prompt_tokens), device=args.device)
    together = max(1, min(args.streams, PREFILL_TOKENS // args.prompt_tokens))
    read = torch.compile(model, dynamic=False)
    write = torch.compile(model, mode="reduce-overhead", fullgraph=True, dynamic=False)
    columns = torch.arange(length, device=args.device)

    def mask_of(positions):
        return columns[None, :] <= positions[:, None]

    def wave():
        first = torch.arange(args.prompt_tokens, device=args.device)
        tokens = torch.cat([read(prompts[i:i + together], [c[:, i:i + together] for c in cache], first, mask_of(first))
                            for i in range(0, args.streams, together)])
        for at in range(args.prompt_tokens, length - 1):
            position = torch.tensor([at], device=args.device)
            tokens = write(tokens, cache, position, mask_of(position)).clone()
        wait(args.device)

    wave()  # compiles, and captures
    took = min(seconds_of(wave) for _ in range(2))
    return {"tokens_per_second": args.streams * args.gen_tokens / took}


def seconds_of(run):
    began = time.perf_counter()
    run()
    return time.perf_counter() - began


def normed(channels, filters, taps, stride=1):
    return nn.Sequential(nn.Conv2d(channels, filters, taps, stride, taps // 2, bias=False), nn.BatchNorm2d(filters))


class Bottleneck(nn.Module):
    def __init__(self, channels, width, stride):
        super().__init__()
        self.body = nn.Sequential(normed(channels, width, 1), nn.ReLU(), normed(width, width, 3, stride), nn.ReLU(),
                                  normed(width, 4 * width, 1))
        same = channels == 4 * width and stride == 1
        self.beside = nn.Identity() if same else normed(channels, 4 * width, 1, stride)

    def forward(self, x):
        return F.relu(self.body(x) + self.beside(x))


def resnet50(args):
    """With the stride in the 3 x 3, as tests/bench/make_models.py has it."""
    blocks, channels = [], 64
    for width, count, first in ((64, 3, 1), (128, 4, 2), (256, 6, 2), (512, 3, 2)):
        for i in range(count):
            blocks.append(Bottleneck(channels, width, first if i == 0 else 1))
            channels = 4 * width
    model = nn.Sequential(normed(3, 64, 7, 2), nn.ReLU(), nn.MaxPool2d(3, 2, 1), *blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(),
                          nn.Linear(channels, 1000))
    model = model.to(memory_format=torch.channels_last)
    images = torch.rand(args.batch, 3, 224, 224)
    return network(model, args.device, lambda x: (x.to(torch.bfloat16, memory_format=torch.channels_last),), images)


class Encoder(nn.Module):
    """BERT's: embeddings of words and places, twelve layers that are normed behind each sum."""

    def __init__(self, layers=12, width=768, heads=12, inner=3072, vocabulary=30522, places=512):
        super().__init__()
        self.words, self.places, self.norm = nn.Embedding(vocabulary, width), nn.Embedding(places, width), nn.LayerNorm(width)
        layer = nn.TransformerEncoderLayer(width, heads, inner, dropout=0.0, activation="gelu", batch_first=True)
        self.layers = nn.TransformerEncoder(layer, layers, enable_nested_tensor=False)

    def forward(self, tokens):
        places = torch.arange(tokens.shape[1], device=tokens.device)
        return self.layers(self.norm(self.words(tokens) + self.places(places)))


def bert_base(args):
    return network(Encoder(), args.device, lambda x: (x,), torch.randint(30522, (args.batch, args.tokens)))


def network(model, device, prepare, inputs):
    """The median of runs from the host and back."""
    model = torch.compile(model.eval().to(device, torch.bfloat16), mode="reduce-overhead", dynamic=False)
    if device == "cuda":
        inputs = inputs.pin_memory()

    def once():
        return model(*prepare(inputs.to(device, non_blocking=True))).float().cpu()

    for _ in range(5):
        once()
    return {"milliseconds": 1e3 * statistics.median(seconds_of(once) for _ in range(30))}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", default="cuda", choices=("cuda", "cpu"))
    commands = parser.add_subparsers(dest="command", required=True)
    command = commands.add_parser("generate")
    command.add_argument("--shape", required=True)
    for name in ("--prompt-tokens", "--gen-tokens", "--streams"):
        command.add_argument(name, type=int, required=True)
    commands.add_parser("resnet50").add_argument("--batch", type=int, required=True)
    command = commands.add_parser("bert_base")
    for name in ("--batch", "--tokens"):
        command.add_argument(name, type=int, required=True)
    args = parser.parse_args()
    with torch.no_grad():
        said = {"generate": generate, "resnet50": resnet50, "bert_base": bert_base}[args.command](args)
    print(json.dumps({**said, "torch": torch.__version__}))


if __name__ == "__main__":
    main()
