"""Oar beside ONNX Runtime and OpenVINO on the same ONNX files: interleaved rounds in one run, medians.

    python tests/bench/peers_onnx.py BENCH_BINARY THREADS ROUNDS MODEL NAME=2x3x224x224 [NAME=...] [-- MODEL ...]

BENCH_BINARY is predictor_bench. Packages that are not installed are left out. Prints one line per model: median
and best milliseconds of each, Oar's speed relative to each by medians (above 1: Oar is faster), and the time from
file to first result. Speed only: outputs are not compared here, and Oar's inputs are random values of its own.
"""
import os
import statistics
import subprocess
import sys
import time

import numpy as np


def inputs_of(specs, session):
    rng = np.random.default_rng(1)
    values = {}
    for i in session.get_inputs():
        dims = specs[i.name]
        if "int" in i.type:
            values[i.name] = rng.integers(0, 2, dims).astype(np.int64)
        else:
            values[i.name] = rng.uniform(-1, 1, dims).astype(np.float32)
    return values


def main():
    binary, threads, rounds = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
    jobs, rest = [], sys.argv[4:]
    while rest:
        end = rest.index("--") if "--" in rest else len(rest)
        specs = dict(a.split("=") for a in rest[1:end])
        jobs.append((rest[0], {k: [int(d) for d in v.split("x")] for k, v in specs.items()}))
        rest = rest[end + 1:]
    import onnxruntime as ort
    try:
        import openvino
    except ImportError:
        openvino = None
    for model, specs in jobs:
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.log_severity_level = 3
        options.add_session_config_entry("session.intra_op.allow_spinning", "0" if os.environ.get("NO_SPIN") else "1")
        t = time.perf_counter()
        session = ort.InferenceSession(model, options, providers=["CPUExecutionProvider"])
        values = inputs_of(specs, session)
        session.run(None, values)
        ort_first = (time.perf_counter() - t) * 1e3
        request = None
        if openvino:
            core = openvino.Core()
            m = core.read_model(model)
            m.reshape({k: v.shape for k, v in values.items()})
            compiled = core.compile_model(m, "CPU", {"INFERENCE_NUM_THREADS": threads, "PERFORMANCE_HINT": "LATENCY",
                                                    "INFERENCE_PRECISION_HINT": "f32"})
            request = compiled.create_infer_request()
            request.infer(values)
        command = [binary, model, "--threads", str(threads), "--serve"]
        for name, dims in specs.items():
            command += ["--input", name + "=" + "x".join(map(str, dims))]
        ours = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
        load, first = map(float, ours.stdout.readline().split())
        times = {"oar": [], "onnxruntime": []}
        if request:
            times["openvino"] = []

        def timed(f, n):
            out = []
            for _ in range(n):
                t = time.perf_counter()
                f()
                out.append((time.perf_counter() - t) * 1e3)
            return out

        runs = 5
        for r in range(rounds):
            order = list(times)
            for who in order[r % len(order):] + order[:r % len(order)]:
                if who == "oar":
                    ours.stdin.write(f"{runs + 1}\n")
                    ours.stdin.flush()
                    got = [float(x) for x in ours.stdout.readline().split()]
                elif who == "onnxruntime":
                    got = timed(lambda: session.run(None, values), runs + 1)
                else:
                    got = timed(lambda: request.infer(values), runs + 1)
                times[who] += got[1:]  # the first of a turn finds the others' data in the caches
                time.sleep(0.002)  # spinning threads of the last one park
        ours.stdin.close()
        ours.wait()
        medians = {k: statistics.median(v) for k, v in times.items()}
        shape = ",".join("x".join(map(str, v)) for v in list(specs.values())[:1])
        line = f"{os.path.basename(os.path.dirname(model)) + '/' + os.path.basename(model):40s} {shape:16s}"
        line += " ".join(f"{k} {v:8.2f} ms (best {min(times[k]):.2f})" for k, v in medians.items())
        line += "  oar is " + ", ".join(f"{v / medians['oar']:.2f}x {k}" for k, v in medians.items() if k != "oar")
        line += f"  load+first: oar {load + first:.0f} ms, onnxruntime {ort_first:.0f} ms"
        print(line, flush=True)


main()
