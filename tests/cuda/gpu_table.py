"""Steps of ./dev gpu that measure: the table of numbers, each beside its bound. Models are of random weights.

Shares of the bandwidth and of the matrix peak are of what this device gave in step rates. On the emulated device sizes are tiny
and nothing is judged.
"""
import importlib.util
import json
import shutil
import sys

from gpu_day import ROOT, Skipped

HERE = ROOT / "tests/cuda"
DECODE_BOUNDS = {"bf16": 85, "fp8": 80, "int4": 70}  # percent of the bandwidth, one stream
STREAMS = (1, 16, 64)
# Prompt and text of each request, how many at once, and TensorRT-LLM's published tokens/s (fp8, H100 80 GB; its
# perf-overview of version 1.0).
SATURATED = ((128, 128, 256, 28312), (2048, 128, 64, 3450))
NETWORKS = (("resnet50", ("x=64x3x224x224",), ("--batch", 64)),
            ("bert_base", ("input_ids=32x128", "attention_mask=32x128"), ("--batch", 32, "--tokens", 128)))
STAND_IN = ("det", ("x=1x3x32x32",), ROOT / "tests/data/ocr/det.onnx")  # a small network, for the emulated device


def shape_of(day):
    return ROOT / "configs/bench" / ("tiny.json" if day.emulated else "llama-8b.json")


def weights_of(day):
    """A folder with random weights of the shape, made once."""
    note = day.out / "weights/made.txt"
    if note.exists() and (ROOT / note.read_text(encoding="utf-8")).is_dir():
        return note.read_text(encoding="utf-8")
    rate_of(day, "copy_gb_per_second")  # without a device this says so, before gigabytes are written
    shutil.rmtree(note.parent, ignore_errors=True)
    note.parent.mkdir(parents=True)
    load = ("--prompt-tokens", 16, "--gen-tokens", 2, "--repeat", 1)
    folder = oar(day, "bench", "--shape", shape_of(day), "--keep", "--cache-dir", note.parent, *load)["weights_folder"]
    note.write_text(folder, encoding="utf-8")
    return folder


def last_json(said):
    return json.loads(said.strip().splitlines()[-1])


def oar(day, command, *arguments, **more):
    return last_json(day.run(day.bin / "oar", command, *arguments, "--device", day.device, "--json", **more))


def bench(day, weights, streams, prompt, generated, *more, libraries="none"):
    """What `oar bench` says of a load; on the emulated device of a tiny one."""
    sizes = (min(streams, 2), 16, 2, 1) if day.emulated else (streams, prompt, generated, 3)
    names = ("--streams", "--prompt-tokens", "--gen-tokens", "--repeat")
    options = [word for pair in zip(names, sizes) for word in pair]
    said = oar(day, "bench", weights_of(day), "--weights", weights, *options, *more, env={"OAR_CUDA_LIBRARIES": libraries})
    if "decode_missing" in said:
        raise RuntimeError(said["decode_missing"])
    return said


def rate(said, what):
    return said[f"{what}_tokens_per_second"]["median"]


def share(day, what, value, of, at_least=None):
    day.number(what, 100 * value / of, "%", at_least=at_least)


def rates(day):
    """What every share below is of."""
    return day.part("rates", lambda: day.probe("rates"))


def rate_of(day, name):
    """Of step rates, or measured now where that was left out."""
    before = day.steps.get("rates", {}).get("parts", {}).get("rates")
    return (before or rates(day))[name]


# ---- decoding, and the start

def decode(day):
    weights_of(day)
    streams = STREAMS[:1] if day.emulated else STREAMS
    day.each([(f"decode, {w}, {s} streams", lambda w=w, s=s: decode_row(day, w, s)) for s in streams for w in DECODE_BOUNDS])
    return {}


def decode_row(day, weights, streams):
    name = f"{weights} {streams}"
    said = day.part(name, lambda: bench(day, weights, streams, 512, 128))
    foreseen = day.part(f"{name} computed", lambda: computed(day, weights, streams))
    what = f"decode, {weights}, batch {streams}"
    day.number(what, rate(said, "decode"), "tokens/s")
    day.number(f"{what}, computed from bytes and operations", foreseen, "tokens/s")
    share(day, f"{what}, share of the bandwidth", said["decode_gb_per_second"]["median"], rate_of(day, "copy_gb_per_second"),
          at_least=DECODE_BOUNDS[weights] if streams == 1 else None)


def computed(day, weights, streams):
    """What `oar inspect --times` foresees for an H100."""
    said = oar(day, "inspect", shape_of(day), "--times", "--weights", weights)
    step = next(s for s in said["steps"] if s["sequences"] == streams and s["rows"] == 1)
    return streams / step["computed_seconds"]


def start(day):
    """What loading takes beyond the copy of the weights, which lie in the page cache."""
    said = day.part_of("decode", "bf16 1")
    copy = 2 * said["parameters"] / (1e9 * rate_of(day, "upload_gb_per_second"))
    day.number("start behind the copy of the weights, bf16", said["load_seconds"] - copy, "s", at_most=1)
    return {"load_seconds": said["load_seconds"], "copy_seconds": copy}


# ---- attention and products alone

def attention(day):
    took = day.part("attention", lambda: day.probe("attention"))
    share(day, "decode attention at 8k, bf16, share of the bandwidth", took["attention_bf16_gb_per_second"],
          rate_of(day, "copy_gb_per_second"), at_least=80)
    for other, bound in (("bf16", 2), ("fp8", 1), ("int8", None)):
        day.number(f"decode attention at 8k, int4 cache, times as fast as {other}",
                   took[f"attention_{other}_microseconds"] / took["attention_int4_microseconds"], "x", at_least=bound)
    return took


def products(day):
    took = day.part("products", lambda: day.probe("products"))
    for kind in ("bf16", "e4m3"):
        ours, library = took[f"product_{kind}_tflops"], took.get(f"product_{kind}_library_tflops")
        share(day, f"products of prompts, {kind}, share of the matrix peak", ours, rate_of(day, f"peak_{kind}_tflops"))
        what = f"products of prompts, {kind}, share of cuBLASLt alone"
        if library is None:
            day.absent(what, took["skipped"])
        else:
            share(day, what, ours, library, at_least=95)
    return took


def prefill(day):
    """2,048 tokens of 8 prompts, by warp groups and by cuBLASLt."""
    over_bf16, over_library = "prefill 2048 x 8, fp8, times as fast as bf16", "prefill 2048 x 8, bf16, share of it by cuBLASLt"

    def measured(weights, libraries):
        return rate(day.part(f"{weights} {libraries}", lambda: bench(day, weights, 8, 2048, 2, libraries=libraries)), "prefill")

    def fp8():
        day.number("prefill 2048 x 8, fp8", measured("fp8", "wgmma"), "tokens/s")
        day.number(over_bf16, measured("fp8", "wgmma") / measured("bf16", "wgmma"), "x", at_least=1.5)

    day.each([(over_bf16, fp8),
              (over_library, lambda: share(day, over_library, measured("bf16", "wgmma"), measured("bf16", "cublaslt")))])
    return {}


# ---- beside peers

def peer(day, *arguments):
    """What PyTorch, compiled and with graphs, says of the same (peers_torch.py)."""
    if importlib.util.find_spec("torch") is None:
        raise Skipped("PyTorch is not installed")
    if day.emulated:
        raise Skipped("no peer runs on the emulated device")
    return last_json(day.run(sys.executable, HERE / "peers_torch.py", *arguments))


def saturated(day):
    """Requests in waves, so that a peer can do the same: all prompts, then all texts."""
    rows = []
    for prompt, generated, streams, published in SATURATED:
        what = f"saturated {prompt}/{generated}"
        rows += [(f"{what}, bf16, times as fast as PyTorch",
                  lambda w=what, p=prompt, g=generated, s=streams: beside_torch(day, w, p, g, s)),
                 (f"{what}, fp8, share of TensorRT-LLM's published",
                  lambda w=what, p=prompt, g=generated, s=streams, t=published: beside_published(day, w, p, g, s, t))]
    day.each(rows)
    return {}


def wave_rate(said):
    """Generated tokens a second of requests whose prompts are read and whose texts are written, all at once."""
    return said["gen_tokens"] / (said["prompt_tokens"] / rate(said, "prefill") + said["gen_tokens"] / rate(said, "decode"))


def beside_torch(day, what, prompt, generated, streams):
    ours = wave_rate(day.part(f"{what} bf16", lambda: bench(day, "bf16", streams, prompt, generated, libraries="wgmma")))
    day.number(f"{what}, bf16", ours, "tokens/s")
    load = ("--prompt-tokens", prompt, "--gen-tokens", generated, "--streams", streams)
    theirs = day.part(f"{what} PyTorch", lambda: peer(day, "generate", "--shape", shape_of(day), *load))
    day.number(f"{what}, bf16, times as fast as PyTorch", ours / theirs["tokens_per_second"], "x", at_least=1.5)


def beside_published(day, what, prompt, generated, streams, published):
    said = day.part(f"{what} fp8", lambda: bench(day, "fp8", streams, prompt, generated, "--kv", "fp8", libraries="wgmma"))
    day.number(f"{what}, fp8", wave_rate(said), "tokens/s")
    share(day, f"{what}, fp8, share of TensorRT-LLM's published", wave_rate(said), published, at_least=80)


def networks(day):
    """Ordinary models in bf16, inputs and outputs on the host, beside PyTorch."""
    if day.emulated:
        name, inputs, path = STAND_IN
        day.number(f"{name}, bf16", day.part(name, lambda: milliseconds(day, path, inputs)), "ms")
        return {}
    day.each([(f"{name}, bf16, times as fast as PyTorch", lambda n=name, i=inputs, s=sizes: beside_torch_network(day, n, i, s))
              for name, inputs, sizes in NETWORKS])
    return {}


def beside_torch_network(day, name, inputs, sizes):
    ours = day.part(name, lambda: milliseconds(day, network_of(day, name), inputs))
    day.number(f"{name}, bf16, batch {sizes[1]}", ours, "ms")
    theirs = day.part(f"{name} PyTorch", lambda: peer(day, name, *sizes))
    day.number(f"{name}, bf16, times as fast as PyTorch", theirs["milliseconds"] / ours, "x", at_least=1.2)


def milliseconds(day, path, inputs):
    options = [word for text in inputs for word in ("--input", text)]
    said = day.run(day.bin / "predictor_bench", path, *options, "--device", day.device, "--precision", "bf16", "--rounds",
                   1 if day.emulated else 30)
    return float(said.split("median ")[1].split()[0])


def network_of(day, name):
    """The ONNX file of a network, made where its packages are."""
    path = day.models / f"{name}.onnx"
    if not path.exists():
        if missing := [p for p in ("numpy", "onnx") if importlib.util.find_spec(p) is None]:
            raise Skipped(f"no {path}: tests/bench/make_models.py makes it where {' and '.join(missing)} are installed")
        path.parent.mkdir(parents=True, exist_ok=True)
        day.run(sys.executable, ROOT / "tests/bench/make_models.py", path.parent, "--only", name)
    return path
