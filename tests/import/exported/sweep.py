#!/usr/bin/env python3
"""Models as PyTorch's exporter writes them today, with random weights, beside ONNX Runtime: who runs, how far apart, how fast.

    python tests/import/exported/sweep.py torchvision|timm|transformers|yolo|diffusers [NAME...] [--folder DIR] [--legacy]

PyPI: torch torchvision timm transformers ultralytics diffusers onnx onnxscript onnxruntime. OAR_LIBRARY names liboar.so. Each model is
exported once into DIR, then both run it on one thread in turns; times are of the processor, so other work disturbs them little.
A line each: the largest difference relative to an output's largest value, milliseconds of both, how many times as fast ours is. Exit
status 1 where ours fails or differs by more than 1e-4. (Detectors differ there where scores of random weights tie.)
`--legacy` exports by TorchScript, which detectors of torchvision want. docs/ordinary-models-speed.md has results.
"""
import argparse
import json
import os
import pathlib
import signal
import statistics
import sys
import time

HERE = pathlib.Path(__file__).resolve().parent
sys.path[:0] = [str(HERE), str(HERE.parents[2] / "clients/python")]
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
LIMIT_S = 300  # of one model


def torchvision_model(name):
    import torch
    import torchvision.models as m
    kind, _, rest = name.rpartition("/")
    image = torch.rand(1, 3, 224, 224)
    if kind == "segmentation":
        return m.segmentation.__dict__[rest](weights=None, weights_backbone=None), (torch.rand(1, 3, 128, 128),), {}
    if kind == "detection":
        return m.detection.__dict__[rest](weights=None, weights_backbone=None), ([image[0]],), {}
    if kind == "video":
        size = 224 if rest.startswith("mvit") else 112
        return m.video.__dict__[rest](weights=None), (torch.rand(1, 3, 16, size, size),), {}
    if kind == "optical_flow":
        return m.optical_flow.__dict__[rest](weights=None), (torch.rand(1, 3, 128, 128), torch.rand(1, 3, 128, 128)), {}
    return m.__dict__[name](weights=None), (torch.rand(1, 3, 299, 299) if name == "inception_v3" else image,), {}


def timm_model(name):
    import timm
    import torch
    model = timm.create_model(name, pretrained=False)
    return model, (torch.rand(1, *model.default_cfg["input_size"]),), {}


def transformers_model(name):
    import small_transformers
    model, inputs = small_transformers.MODELS[name]()
    return model, (), inputs


def yolo_model(name):
    import torch
    import ultralytics
    model = ultralytics.YOLO(name + ".yaml").model
    model.fuse(verbose=False)
    head = model.model[-1]
    head.export, head.format = True, "onnx"  # one tensor of boxes
    return model, (torch.rand(1, 3, 320, 320),), {}


def diffusers_model(name):
    import diffusers
    import torch
    if name == "decoder":
        half = diffusers.AutoencoderKL(block_out_channels=(64, 128), down_block_types=("DownEncoderBlock2D",) * 2,
                                       up_block_types=("UpDecoderBlock2D",) * 2, layers_per_block=1, norm_num_groups=32)
        half.forward = lambda z: half.decode(z, return_dict=False)[0]
        return half, (torch.rand(1, 4, 32, 32),), {}
    unet = diffusers.UNet2DConditionModel(
        sample_size=32, layers_per_block=1, block_out_channels=(64, 128, 256), cross_attention_dim=128,
        down_block_types=("CrossAttnDownBlock2D", "CrossAttnDownBlock2D", "DownBlock2D"),
        up_block_types=("UpBlock2D", "CrossAttnUpBlock2D", "CrossAttnUpBlock2D"))
    whole = unet.forward
    unet.forward = lambda sample, step, context: whole(sample, step, context, return_dict=False)[0]
    return unet, (torch.rand(1, 4, 32, 32), torch.tensor(5.0), torch.rand(1, 77, 128)), {}


SOURCES = {"torchvision": torchvision_model, "timm": timm_model, "transformers": transformers_model, "yolo": yolo_model,
           "diffusers": diffusers_model}


def names_of(source):
    if source == "transformers":
        import small_transformers
        return list(small_transformers.MODELS)
    lines = (HERE / "names.txt").read_text(encoding="utf-8").splitlines()
    return [name for line in lines if line.startswith(source + ":") for name in line.partition(":")[2].split()]


def export(source, name, path, legacy):
    import torch
    torch.manual_seed(0)
    model, args, kwargs = SOURCES[source](name)
    model.eval()
    random = torch.Generator().manual_seed(1)
    with torch.no_grad():
        # Norms that change something.
        for key, value in model.named_buffers():
            if key.endswith("running_mean"):
                value.copy_(torch.randn(value.shape, generator=random) * 0.1)
            if key.endswith("running_var"):
                value.copy_(torch.rand(value.shape, generator=random) * 0.5 + 0.75)
        for value in model.parameters():
            if value.dim() == 1:
                value.add_(torch.randn(value.shape, generator=random) * 0.05)
        how = {"dynamo": False, "opset_version": 17} if legacy else {"dynamo": True, "external_data": False, "verbose": False}
        torch.onnx.export(model, args, path, kwargs=kwargs or None, **how)


def inputs_of(session):
    import numpy as np
    random = np.random.default_rng(0)
    feeds = {}
    for i in session.get_inputs():
        shape = [d if isinstance(d, int) else 1 for d in i.shape]
        if "mask" in i.name and "int" in i.type:
            feeds[i.name] = np.ones(shape, np.int64)
        elif "int64" in i.type:
            feeds[i.name] = random.integers(1, 60, shape)
        elif "bool" in i.type:
            feeds[i.name] = np.ones(shape, bool)
        else:
            feeds[i.name] = random.standard_normal(shape).astype(np.float32)
    return feeds


def difference(ours, theirs):
    import numpy as np
    worst = 0.0
    for a, b in zip(ours, theirs):
        a, b = np.asarray(a), np.asarray(b)
        if a.shape != b.shape:
            raise ValueError(f"shape {a.shape}, ONNX Runtime's {b.shape}")
        if a.size and a.dtype.kind in "biu":
            worst = max(worst, float((a != b).mean()))
        elif a.size:
            if not np.array_equal(np.isfinite(a), np.isfinite(b)):
                raise ValueError("another set of values is finite")
            finite = np.isfinite(b)
            scale = np.abs(b[finite]).max(initial=1e-6)
            worst = max(worst, float(np.abs(a - b)[finite].max(initial=0) / scale))
    return worst


def milliseconds(run):
    begun = time.process_time()
    run()
    return (time.process_time() - begun) * 1e3


def compare(path, rounds=8):
    import onnxruntime
    from oar import inference
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 1, 4
    peer = onnxruntime.InferenceSession(path, options, providers=["CPUExecutionProvider"])
    feeds = inputs_of(peer)
    theirs = peer.run(None, feeds)
    config = inference.Config(path)
    config.set_cpu_math_library_num_threads(1)
    predictor = inference.create_predictor(config)
    out = {"difference": difference(predictor.run(feeds), theirs)}
    times = [(milliseconds(lambda: predictor.run(feeds)), milliseconds(lambda: peer.run(None, feeds))) for _ in range(rounds)]
    out["ours_ms"], out["peer_ms"] = (statistics.median(t[k] for t in times) for k in (0, 1))
    return out


def in_a_process(work):
    """What `work` returns, or its error; a crash, and whoever takes too long, are an error too."""
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        signal.alarm(LIMIT_S)
        os.close(reading)
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
        os.dup2(1, 2)
        try:
            said = work()
        except BaseException as error:  # noqa: B902 whatever a model's own code raises
            said = {"error": f"{type(error).__name__}: {error}"[:300]}
        os.write(writing, json.dumps(said).encode())
        os._exit(0)
    os.close(writing)
    with os.fdopen(reading, encoding="utf-8") as pipe:
        text = pipe.read()
    _, status = os.waitpid(child, 0)
    return json.loads(text) if text else {"error": f"ended by signal {os.WTERMSIG(status)}"}


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("source", choices=SOURCES)
    parser.add_argument("names", nargs="*")
    parser.add_argument("--folder", type=pathlib.Path, default=pathlib.Path("build/exported"))
    parser.add_argument("--legacy", action="store_true")
    args = parser.parse_args()
    args.folder.mkdir(parents=True, exist_ok=True)
    import torch.onnx  # once, not in every process
    counts = {"equal": 0, "not equal": 0, "not exported": 0}
    for name in args.names or names_of(args.source):
        path = args.folder / f"{args.source}-{name.replace('/', '-')}.onnx"
        said = {}
        if not path.exists():
            said = in_a_process(lambda: export(args.source, name, str(path), args.legacy) or {})
        if "error" in said:
            result = "not exported"
        else:
            said = in_a_process(lambda: compare(str(path)))
            result = "not equal" if said.get("difference", 1) > 1e-4 else "equal"
        counts[result] += 1
        line = said["error"].splitlines()[0] if "error" in said else (
            f"{said['difference']:.1e}, {said['ours_ms']:.2f} ms, ONNX Runtime {said['peer_ms']:.2f} ms: "
            f"{said['peer_ms'] / said['ours_ms']:.2f}")
        print(f"{name}: {'' if result == 'equal' else result + ': '}{line}", flush=True)
    print(f"{args.source}: " + ", ".join(f"{count} {result}" for result, count in counts.items()))
    return 1 if counts["not equal"] else 0


if __name__ == "__main__":
    sys.exit(main())
