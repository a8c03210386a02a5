#!/usr/bin/env python3
"""Networks over images while they are trained, computed by PyTorch, for tests/train/image_test.cc and
tests/cli/test_finetune_images.py.

    python3 tests/golden/generate_image_training.py resnet8
    python3 tests/golden/generate_image_training.py resnet20 resnet20-12fca82f.th   # of akamaster/pytorch_resnet_cifar10

Writes tests/golden/training/images/<name>.json: the numbers of the run; the loss of each step over one batch of all images in
double; by parameter the norm of its gradient before the first step and its product with cos(0.9 k + 0.3); the gradients' norms by
step; the averages of batch norms behind it, with the population's variance, as ONNX has them; and the largest spread of losses and
norms of PyTorch with itself in f32: 1 and 2 threads, channels last.

resnet8: one block a stage of 4, 8 and 16 channels, weights by name (tiny_weights.py). resnet20: released weights, which are not
kept here.
"""
import json
import sys
from pathlib import Path

import numpy as np
import torch
import torch.nn.functional as F

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "support"))
from tiny_images import pixels, read_torch  # noqa: E402
from tiny_weights import tiny_weights  # noqa: E402

OUT = HERE / "training" / "images"
RATE, DECAY, CLIP, EPSILON, BETAS, SEED = 1e-3, 0.1, 1.0, 1e-8, (0.9, 0.999), 5
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
RUNS = {"resnet8": {"blocks": 1, "widths": (4, 8, 16), "classes": 4, "images": 8, "side": 12, "steps": 60},
        "resnet20": {"blocks": 3, "widths": (16, 32, 64), "classes": 10, "images": 16, "side": 32, "steps": 20}}


class Block(torch.nn.Module):
    def __init__(self, before, width, stride):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(before, width, 3, stride, 1, bias=False), torch.nn.BatchNorm2d(width)
        self.conv2, self.bn2 = torch.nn.Conv2d(width, width, 3, 1, 1, bias=False), torch.nn.BatchNorm2d(width)
        self.stride, self.more = stride, (width - before) // 2

    def forward(self, x):
        y = self.bn2(self.conv2(F.relu(self.bn1(self.conv1(x)))))
        if self.stride == 2: x = F.pad(x[:, :, ::2, ::2], (0, 0, 0, 0, self.more, self.more))
        return F.relu(y + x)


class ResNet(torch.nn.Module):
    def __init__(self, blocks, widths, classes):
        super().__init__()
        self.conv1, self.bn1 = torch.nn.Conv2d(3, widths[0], 3, 1, 1, bias=False), torch.nn.BatchNorm2d(widths[0])
        before = widths[0]
        for k, width in enumerate(widths):
            stage = [Block(before if i == 0 else width, width, 2 if k > 0 and i == 0 else 1) for i in range(blocks)]
            setattr(self, f"layer{k + 1}", torch.nn.Sequential(*stage))
            before = width
        self.linear = torch.nn.Linear(widths[-1], classes)

    def forward(self, x):
        x = self.layer3(self.layer2(self.layer1(F.relu(self.bn1(self.conv1(x))))))
        return self.linear(x.mean((2, 3)))


def weights_of(run, file):
    model = ResNet(run["blocks"], run["widths"], run["classes"])
    shapes = {n: tuple(t.shape) for n, t in model.state_dict().items() if t.dtype == torch.float32}
    if file:
        read = read_torch(file)
        assert {n: tuple(d) for n, (d, _) in read.items()} == shapes
        return {n: torch.tensor(v).reshape(d) for n, (d, v) in read.items()}
    made = {n: torch.from_numpy(tiny_weights(n, s, SEED)) for n, s in shapes.items()}
    return {n: t.abs() + 0.5 if n.endswith("running_var") else t for n, t in made.items()}


def train(run, weights, dtype, threads=1, layout=torch.contiguous_format):
    torch.set_num_threads(threads)
    model = ResNet(run["blocks"], run["widths"], run["classes"])
    model.load_state_dict(weights, strict=False)
    model = model.to(dtype).to(memory_format=layout).train()
    side, classes = run["side"], [f"c{k}" for k in range(run["classes"])]
    names = [f"{classes[k % len(classes)]}/{k:02}.png" for k in range(run["images"])]
    x = torch.tensor(np.stack([np.frombuffer(pixels(n, side), np.uint8).reshape(side, side, 3) for n in names]), dtype=dtype)
    x = ((x / 255 - torch.tensor(MEAN, dtype=dtype)) / torch.tensor(STD, dtype=dtype)).permute(0, 3, 1, 2).contiguous(memory_format=layout)
    y = torch.tensor([k % len(classes) for k in range(len(names))])
    named = dict(model.named_parameters())
    optimizer = torch.optim.AdamW([{"params": [p for p in named.values() if p.dim() > 1], "weight_decay": DECAY},
                                   {"params": [p for p in named.values() if p.dim() <= 1], "weight_decay": 0.0}],
                                  lr=RATE, betas=BETAS, eps=EPSILON)
    counts = {}
    def count(name):
        def hook(module, inputs): counts[name] = inputs[0].numel() // inputs[0].shape[1]
        return hook
    for n, m in model.named_modules():
        if isinstance(m, torch.nn.BatchNorm2d): m.register_forward_pre_hook(count(n))
    losses, norms, gradients, averages = [], [], {}, {}
    for step in range(run["steps"]):
        before = {n: b.clone() for n, b in model.named_buffers()}
        optimizer.zero_grad()
        loss = F.cross_entropy(model(x), y)
        loss.backward()
        if step == 0:
            for n, p in named.items():
                g = p.grad.flatten()
                gradients[n] = [float(g.norm()), float((g * torch.cos(0.9 * torch.arange(len(g), dtype=g.dtype) + 0.3)).sum())]
            for n, b in model.named_buffers():
                if n.endswith("running_mean"): averages[n] = b.tolist()
                if n.endswith("running_var"):
                    m = counts[n.removesuffix(".running_var")]
                    averages[n] = (0.9 * before[n] + (b - 0.9 * before[n]) * (m - 1) / m).tolist()
        norm = torch.sqrt(sum((p.grad.double() ** 2).sum() for p in named.values()))
        if norm > CLIP:
            for p in named.values(): p.grad.mul_(CLIP / float(norm))
        optimizer.step()
        losses.append(float(loss.detach()))
        norms.append(float(norm))
    return np.array(losses), np.array(norms), gradients, averages


def generate(name, file=None):
    run = RUNS[name]
    weights = weights_of(run, file)
    loss, norm, gradients, averages = train(run, weights, torch.float64)
    spreads = [train(run, weights, torch.float32, t, l)[:2]
               for t, l in ((1, torch.contiguous_format), (2, torch.contiguous_format), (1, torch.channels_last))]
    spread = [max(float(np.abs(s[k] - exact).max()) for s in spreads) for k, exact in enumerate((loss, norm))]
    short = lambda values: [float(f"{v:.9g}") for v in values]
    out = {**run, "rate": RATE, "decay": DECAY, "clip": CLIP, "seed": SEED, "mean": MEAN, "std": STD, "loss": short(loss),
           "norm": short(norm), "loss spread": float(f"{spread[0]:.3g}"), "norm spread": float(f"{spread[1]:.3g}"),
           "gradients": {n: short(g) for n, g in gradients.items()}, "averages": {n: short(v) for n, v in averages.items()}}
    OUT.mkdir(parents=True, exist_ok=True)
    (OUT / f"{name}.json").write_text(json.dumps(out) + "\n")
    print(name, loss[0], loss[-1], norm[0], norm[-1], "spread", spread)


if __name__ == "__main__":
    torch.manual_seed(0)
    generate(*sys.argv[1:])
