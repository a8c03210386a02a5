"""Oar beside ONNX Runtime, OpenVINO and Paddle Inference on the same ONNX files: interleaved rounds in one run,
medians. Paddle gets the .pdmodel that `oar convert` makes of the file (its PIR path is slower and, with oneDNN,
wrong on encoders).

    python tests/bench/peers_onnx.py BENCH_BINARY THREADS ROUNDS MODEL NAME=2x3x224x224 [NAME=...] [-- MODEL ...]
    python tests/bench/peers_onnx.py BENCH_BINARY THREADS ROUNDS --table FOLDER

BENCH_BINARY is predictor_bench. Packages that are not installed are left out. Prints one line per model: median
and best milliseconds of each, Oar's speed relative to each by medians (above 1: Oar is faster), the time from
file to first result, and memory: what the first run allocates and keeps (activations, and what a runtime sets up on
first use), and the resident size after it, each runtime in a process of its own. Speed only:
outputs are not compared here, and Oar's inputs are random values of its own.

--table runs the usual models of FOLDER (TABLE below), those that are there, and prints the geometric mean of the
ratios over the f32 models at the end. OAR_ARGS in the environment goes to predictor_bench (`--precision bf16`).
"""
import math
import os
import statistics
import subprocess
import sys
import tempfile
import time

TABLE = (
    ("resnet50.onnx", "x=1x3x224x224"),
    ("mobilenet_v2.onnx", "x=1x3x224x224"),
    ("mobilenet_v3_large.onnx", "x=1x3x224x224"),
    ("minilm.onnx", "input_ids=1x128 attention_mask=1x128"),
    ("bert_base.onnx", "input_ids=1x128 attention_mask=1x128"),
    ("ppocr_det.onnx", "x=1x3x640x640"),
    ("ppocr_rec.onnx", "x=1x3x32x320"),
    ("resnet50.onnx", "x=8x3x224x224"),
    ("mobilenet_v3_large.onnx", "x=8x3x224x224"),
    ("minilm.onnx", "input_ids=8x128 attention_mask=8x128"),
    ("bert_base.onnx", "input_ids=8x128 attention_mask=8x128"),
    ("ppocr_rec.onnx", "x=8x3x32x320"),
    ("resnet50_int8.onnx", "x=1x3x224x224"),
    ("resnet50_int8.onnx", "x=8x3x224x224"),
    ("mobilenet_v2_int8.onnx", "x=1x3x224x224"),
)


def status_mib(key):
    with open("/proc/self/status") as f:
        return next(int(line.split()[1]) for line in f if line.startswith(key + ":")) / 1024


def parse_specs(arguments):
    return {k: [int(d) for d in v.split("x")] for k, v in (a.split("=") for a in arguments)}


def inputs_of(specs, session):
    import numpy as np
    rng = np.random.default_rng(1)
    values = {}
    for i in session.get_inputs():
        dims = specs[i.name]
        if "int" in i.type:
            values[i.name] = rng.integers(0, 2, dims).astype(np.int64)
        else:
            values[i.name] = rng.uniform(-1, 1, dims).astype(np.float32)
    return values


def open_onnxruntime(model, specs, threads):
    """A function that runs the model once, and its inputs."""
    import onnxruntime as ort
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.log_severity_level = 3
    options.add_session_config_entry("session.intra_op.allow_spinning", "0" if os.environ.get("NO_SPIN") else "1")
    session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
    values = inputs_of(specs, session)
    return lambda: session.run(None, values)


def open_openvino(model, specs, threads):
    import numpy as np
    import openvino
    core = openvino.Core()
    m = core.read_model(model)
    m.reshape(specs)
    compiled = core.compile_model(m, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
                                            "INFERENCE_PRECISION_HINT": "f32"})
    rng = np.random.default_rng(1)
    values = {}
    for i in compiled.inputs:
        dims = specs[i.any_name]
        integer = np.issubdtype(i.element_type.to_dtype(), np.integer)
        values[i.any_name] = rng.integers(0, 2, dims) if integer else rng.uniform(-1, 1, dims).astype(np.float32)
    request = compiled.create_infer_request()
    return lambda: request.infer(values)


def open_paddle(model, specs, threads):
    if model.endswith("_int8.onnx"):
        raise ImportError  # it computes them in f32, by 100 times as slow kernels
    import numpy as np
    import paddle.inference
    with tempfile.TemporaryDirectory() as folder:
        program, weights = os.path.join(folder, "m.pdmodel"), os.path.join(folder, "m.pdiparams")
        subprocess.run([OAR, "convert", model, "-o", program], check=True, stdout=subprocess.DEVNULL)
        config = paddle.inference.Config(program, weights)
        config.disable_gpu()
        config.enable_mkldnn()
        config.enable_memory_optim()
        config.set_cpu_math_library_num_threads(threads)
        config.disable_glog_info()
        predictor = paddle.inference.create_predictor(config)
    rng = np.random.default_rng(1)
    about = subprocess.run([OAR, "inspect", model], check=True, stdout=subprocess.PIPE, text=True).stdout.split("\n")
    for name in predictor.get_input_names():
        integer = any(line.split()[:2] == ["input", name + ":"] and " i64[" in line for line in about)
        handle = predictor.get_input_handle(name)
        handle.copy_from_cpu(rng.integers(0, 2, specs[name]).astype(np.int64) if integer else
                             rng.uniform(-1, 1, specs[name]).astype(np.float32))
    outputs = [predictor.get_output_handle(name) for name in predictor.get_output_names()]

    def run():
        predictor.run()
        return [o.copy_to_cpu() for o in outputs]
    return run


PEERS = {"onnxruntime": open_onnxruntime, "openvino": open_openvino, "paddle": open_paddle}
# Seconds until a peer's spinning threads park: those of ONNX Runtime 1.32 take 46 ms, those of Intel's OpenMP 200.
PARKING = {"paddle": 0.3}
PARKING_OF_OTHERS = 0.1
OAR = ""  # the program that converts for Paddle, beside predictor_bench


def set_oar(path):
    global OAR
    OAR = path


def print_memory(peer, model, specs, threads):
    """Anonymous memory that a first run adds and keeps (no code that it touches first), and the resident size after
    it, in MiB; for a process of its own."""
    run = PEERS[peer](model, specs, threads)
    before = status_mib("RssAnon")
    run()
    print(status_mib("RssAnon") - before, status_mib("VmRSS"))


def memory_of(peer, model, specs, threads):
    out = subprocess.run([sys.executable, __file__, "--memory", OAR, peer, str(threads), model, *spec_arguments(specs)],
                         stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    return tuple(map(float, out.stdout.split())) if out.returncode == 0 else (math.nan, math.nan)


def spec_arguments(specs):
    return [name + "=" + "x".join(map(str, dims)) for name, dims in specs.items()]


def timed(f, n):
    out = []
    for _ in range(n):
        t = time.perf_counter()
        f()
        out.append((time.perf_counter() - t) * 1e3)
    return out


def compare(binary, threads, rounds, model, specs):
    """Prints the model's line; returns Oar's speed relative to each peer."""
    memory = {}
    runs, first = {}, {}
    for peer, open_peer in PEERS.items():
        try:
            t = time.perf_counter()
            runs[peer] = open_peer(model, specs, threads)
            runs[peer]()
            first[peer] = (time.perf_counter() - t) * 1e3
        except ImportError:
            continue
        except Exception as error:  # Paddle knows few 8-bit models
            print(f"{peer} does not run {model}: {str(error).strip().splitlines()[-1]}", flush=True)
            runs.pop(peer, None)
            continue
        memory[peer] = memory_of(peer, model, specs, threads)
    command = [binary, model, "--threads", str(threads), "--serve", *os.environ.get("OAR_ARGS", "").split()]
    for s in spec_arguments(specs):
        command += ["--input", s]
    ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    load, first_run, *memory["oar"] = map(float, ours.stdout.readline().split())
    first["oar"] = load + first_run
    times = {"oar": [], **{peer: [] for peer in runs}}
    # Enough runs of a small model that its turn is not all warming up.
    count = max(5, min(30, round(30 / max(first_run, 0.1))))
    for r in range(rounds):
        order = list(times)
        for who in order[r % len(order):] + order[:r % len(order)]:
            if who == "oar":
                ours.stdin.write(f"{count + 1}\n")
                ours.stdin.flush()
                got = [float(x) for x in ours.stdout.readline().split()]
            else:
                got = timed(runs[who], count + 1)
            times[who] += got[1:]  # the first of a turn finds the others' data in the caches
            time.sleep(PARKING.get(who, PARKING_OF_OTHERS))
    ours.stdin.close()
    ours.wait()
    medians = {k: statistics.median(v) for k, v in times.items()}
    ratios = {k: v / medians["oar"] for k, v in medians.items() if k != "oar"}
    shape = ",".join("x".join(map(str, v)) for v in list(specs.values())[:1])
    line = f"{os.path.basename(os.path.dirname(model)) + '/' + os.path.basename(model):40s} {shape:16s}"
    line += " ".join(f"{k} {v:8.2f} ms (best {min(times[k]):.2f})" for k, v in medians.items())
    line += "  oar is " + ", ".join(f"{v:.2f}x {k}" for k, v in ratios.items())
    line += "  load+first: " + ", ".join(f"{k} {first[k]:.0f} ms" for k in times)
    line += "  first run adds, resident after: " + ", ".join(
        f"{k} {memory[k][0]:.0f}, {memory[k][1]:.0f} MiB" for k in times)
    print(line, flush=True)
    return ratios


def main():
    if sys.argv[1] == "--memory":
        set_oar(sys.argv[2])
        return print_memory(sys.argv[3], sys.argv[5], parse_specs(sys.argv[6:]), int(sys.argv[4]))
    binary, threads, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    set_oar(os.path.join(os.path.dirname(os.path.abspath(binary)), "oar"))
    jobs, rest = [], sys.argv[4:]
    if rest[0] == "--table":
        jobs = [(os.path.join(rest[1], name), parse_specs(specs.split())) for name, specs in TABLE]
        for model in sorted({m for m, _ in jobs if not os.path.exists(m)}):
            print(f"{model} is not there", flush=True)
        jobs = [j for j in jobs if os.path.exists(j[0])]
        rest = []
    while rest:
        end = rest.index("--") if "--" in rest else len(rest)
        jobs.append((rest[0], parse_specs(rest[1:end])))
        rest = rest[end + 1:]
    ratios = {}
    for model, specs in jobs:
        for peer, ratio in compare(binary, threads, rounds, model, specs).items():
            if not model.endswith("_int8.onnx"):
                ratios.setdefault(peer, []).append(ratio)
    for peer, all_of_them in ratios.items():
        print(f"geometric mean over {len(all_of_them)} f32 models: {statistics.geometric_mean(all_of_them):.2f}x {peer}")


if __name__ == "__main__":
    main()
