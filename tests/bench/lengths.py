#!/usr/bin/env python3
"""Sentences of many lengths: what a length that was never seen costs, this program and an older one in turns.

    tests/bench/lengths.py zoo/minilm.onnx OLD [NEW] [--rounds 5] [--threads N]

OLD and NEW (default: this checkout) are checkouts whose build/release has `oar` and `liboar.so`. The model takes integers of
shape (rows, length), as encoders exported to ONNX do. Three cases:

  in a row   a handle that has run meets 200 new lengths, one after the other
  threads    four threads share one handle, with 50 of these lengths each
  batcher    a server with four instances: 200 lengths times 8 counts of rows, from 8 clients over HTTP; minutes a round

Prints medians of seconds and of MiB resident at the end, and the median of the ratios new to old (below 1: better).
Needs the package numpy.
"""
import argparse
import http.client
import json
import os
import random
import re
import statistics
import subprocess
import sys
import threading
import time

import numpy as np

ROOT = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
LENGTHS = random.Random(1).sample(range(8, 208), 200)
CASES = ("in a row", "threads", "batcher")


def resident_mib(process="self"):
    with open(f"/proc/{process}/status", encoding="ascii") as file:
        return int(re.search(r"VmRSS:\s+(\d+)", file.read())[1]) / 1024


def together(work, parts):
    """Runs `work(part)` of all parts, a thread each; the first error is raised here."""
    errors = []

    def guarded(part):
        try:
            work(part)
        except Exception as error:  # raised below, by the thread that waits
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(part,)) for part in parts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if errors:
        raise errors[0]


def in_process(case, model, threads):
    """(seconds, MiB) of a case without a server; PYTHONPATH and OAR_LIBRARY say whose."""
    from oar import inference  # of the checkout that is measured

    config = inference.Config(model)
    config.set_cpu_math_library_num_threads(threads)
    predictor = inference.create_predictor(config)
    names = predictor.get_input_names()

    def run(lengths):
        for length in lengths:
            predictor.run([np.ones((1, length), np.int64)] * len(names))

    run([7])
    began = time.perf_counter()
    if case == "threads":
        together(run, [LENGTHS[k::4] for k in range(4)])
    else:
        run(LENGTHS)
    return time.perf_counter() - began, resident_mib()


def requests(port, model, jobs):
    """Sends tensors of each (rows, length) over one connection and reads the answers whole."""
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=600)
    path = f"/v2/models/{model}"
    connection.request("GET", path)
    inputs = [tensor["name"] for tensor in json.loads(connection.getresponse().read())["inputs"]]
    for rows, length in jobs:
        data = np.ones((rows, length), np.int64).tobytes()
        tensors = [{"name": name, "shape": [rows, length], "datatype": "INT64", "parameters": {"binary_data_size": len(data)}}
                   for name in inputs]
        head = json.dumps({"inputs": tensors, "parameters": {"binary_data_output": True}}).encode()
        connection.request("POST", f"{path}/infer", head + data * len(inputs),
                           {"Inference-Header-Content-Length": str(len(head))})
        response = connection.getresponse()
        body = response.read()
        if response.status != 200:
            raise RuntimeError(f"the server answers {response.status}: {body[:200]!r}")


def batcher(tree, model, threads):
    command = [os.path.join(tree, "build", "release", "bin", "oar"), "serve", model, "--name", "lengths", "--instances", "4",
               "--http", "127.0.0.1:0", "--grpc", "", "--threads", str(threads)]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        port = next((int(found[1]) for line in server.stdout if (found := re.search(r"http://127\.0\.0\.1:(\d+)", line))), None)
        if port is None:
            raise RuntimeError(f"the server of {tree} did not start")
        threading.Thread(target=server.stdout.read, daemon=True).start()
        requests(port, "lengths", [(1, 7)])
        jobs = [(rows, length) for length in LENGTHS for rows in range(1, 9)]
        random.Random(2).shuffle(jobs)
        began = time.perf_counter()
        together(lambda part: requests(port, "lengths", part), [jobs[k::8] for k in range(8)])
        return time.perf_counter() - began, resident_mib(server.pid)
    finally:
        server.terminate()
        server.wait()


def measure(case, tree, model, threads):
    if case == "batcher":
        return batcher(tree, model, threads)
    environment = dict(os.environ, PYTHONPATH=os.path.join(tree, "clients", "python"),
                       OAR_LIBRARY=os.path.join(tree, "build", "release", "lib", "liboar.so"))
    done = subprocess.run([sys.executable, __file__, model, "--child", case, "--threads", str(threads)], env=environment,
                          capture_output=True, text=True, check=False)
    if done.returncode != 0:
        sys.exit(f"lengths: '{case}' of {tree} failed:\n{done.stderr}")
    return json.loads(done.stdout)


def main():
    about, _, more = __doc__.partition("\n\n")
    p = argparse.ArgumentParser(description=about, epilog=more, formatter_class=argparse.RawDescriptionHelpFormatter)
    p.add_argument("model")
    p.add_argument("trees", nargs="*", metavar="TREE", help="OLD, and NEW if it is not this checkout")
    p.add_argument("--rounds", type=int, default=5)
    p.add_argument("--case", choices=CASES, action="append", help="not all three; may be repeated")
    p.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)))
    p.add_argument("--child", choices=CASES, help=argparse.SUPPRESS)
    options = p.parse_args()
    if options.child:
        print(json.dumps(in_process(options.child, options.model, options.threads)))
        return
    if len(options.trees) not in (1, 2):
        p.error("name the older checkout, and the newer one if it is not this")
    old, new = options.trees[0], (options.trees[1:] or [ROOT])[0]
    for case in options.case or CASES:
        found = {old: [], new: []}
        for number in range(options.rounds):
            for tree in (old, new) if number % 2 == 0 else (new, old):
                found[tree].append(measure(case, tree, options.model, options.threads))
        for k, (what, unit) in enumerate((("time", "s"), ("resident", "MiB"))):
            a, b = ([values[k] for values in found[tree]] for tree in (old, new))
            ratio = statistics.median(y / x for x, y in zip(a, b))
            print(f"{case:9s} {what:9s} {statistics.median(a):8.2f} {statistics.median(b):8.2f} {unit:4s} {ratio:6.3f}", flush=True)


if __name__ == "__main__":
    main()
