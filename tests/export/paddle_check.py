#!/usr/bin/env python3
"""Models written by `oar convert` against Paddle itself: each is converted to both of Paddle's formats, run by
paddle.inference, and compared with what `oar infer` computes from the original. Needs the package paddlepaddle; says so and
exits with 77 where it is absent. For a developer, not for CI: Paddle is 200 MB.

  tests/export/paddle_check.py build/rel/bin/oar [--shape NAME=1,3,64,96] MODEL...
"""
import argparse
import os
import pathlib
import re
import subprocess
import sys
import tempfile

os.environ.setdefault("GLOG_minloglevel", "3")
try:
    import numpy as np
    import paddle.inference
except ImportError as absent:
    print(f"skipped: {absent}; pip install paddlepaddle numpy")
    sys.exit(77)

TYPES = {"f32": "float32", "f64": "float64", "f16": "float16", "i64": "int64", "i32": "int32", "i8": "int8", "u8": "uint8",
         "bool": "bool"}


def ports(oar, model, kind):
    """(name, dtype, extents) of the inputs or outputs, as `oar inspect` prints them."""
    text = subprocess.run([oar, "inspect", model], check=True, capture_output=True, text=True).stdout
    found = re.findall(rf"(?m)^{kind}\s+(\S+): (\w+)(?:\[(.*)\])?$", text)
    return [(name, dtype, [d.strip() for d in dims.split(",") if d.strip()]) for name, dtype, dims in found]


def inputs_of(oar, model, shapes):
    """Made-up arrays by input name; free extents are 1 unless a shape is given."""
    random, arrays = np.random.default_rng(5), {}
    for name, word, dims in ports(oar, model, "input"):
        free = iter(shapes.get(name) or shapes.get("*") or [])
        extents = [int(d) if d.isdigit() else next(free, 1) for d in dims]
        dtype = TYPES[word]
        arrays[name] = (random.uniform(-2, 2, extents) if dtype.startswith("float") else np.ones(extents)).astype(dtype)
    return arrays


def run_oar(oar, model, arrays, folder):
    command = [oar, "infer", model, "--output", folder]
    for k, (name, array) in enumerate(arrays.items()):
        path = f"{folder}/input{k}.npy"
        np.save(path, array)
        command += ["--input", f"{name}={path}"]
    subprocess.run(command, check=True, capture_output=True, text=True)
    return {p.stem: np.load(p) for p in pathlib.Path(folder).glob("*.npy") if not p.stem.startswith("input")}


def run_paddle(program, arrays, passes):
    config = paddle.inference.Config(str(program), str(program.with_suffix(".pdiparams")))
    config.disable_gpu()
    config.disable_mkldnn()
    config.disable_glog_info()
    config.switch_ir_optim(passes)
    predictor = paddle.inference.create_predictor(config)
    for name, array in arrays.items():
        predictor.get_input_handle(name).copy_from_cpu(array)
    predictor.run()
    return [predictor.get_output_handle(name).copy_to_cpu() for name in predictor.get_output_names()]


def compare(want, got):
    """The largest difference relative to the larger of 1 and the expected value."""
    if want.shape != got.shape or want.dtype != got.dtype:
        return f"{got.dtype}{list(got.shape)} instead of {want.dtype}{list(want.shape)}"
    if want.size == 0:
        return 0.0
    w, g = want.astype("float64"), got.astype("float64")
    return float(np.max(np.where(w == g, 0, np.abs(w - g) / np.maximum(1, np.abs(w)))))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("oar")
    parser.add_argument("models", nargs="+")
    parser.add_argument("--shape", action="append", default=[], help="NAME=extents of the free axes; NAME may be '*'")
    parser.add_argument("--tolerance", type=float, default=1e-4)
    parser.add_argument("--no-passes", action="store_true", help="without Paddle's own optimizations")
    args = parser.parse_args()
    shapes = {n: [int(d) for d in s.split(",")] for n, s in (x.split("=") for x in args.shape)}
    failed = 0
    for model in args.models:
        with tempfile.TemporaryDirectory() as folder:
            try:
                arrays = inputs_of(args.oar, model, shapes)
                want = run_oar(args.oar, model, arrays, folder)
            except subprocess.CalledProcessError as error:
                print(f"FAILED  {model}: {error.stderr.strip()}")
                failed += 1
                continue
            for suffix in (".pdmodel", ".json"):
                program = pathlib.Path(folder) / f"written{suffix}"
                done = subprocess.run([args.oar, "convert", model, "-o", str(program)], capture_output=True, text=True)
                if done.returncode != 0:
                    print(f"refused {model} {suffix}: {done.stderr.strip()}")
                    continue
                try:
                    got = run_paddle(program, arrays, not args.no_passes)
                except Exception as error:  # whatever Paddle throws is the finding
                    print(f"FAILED  {model} {suffix}: {str(error).strip()[-400:]}")
                    failed += 1
                    continue
                names = [name for name, _, _ in ports(args.oar, model, "output")]
                by_place = list(want.values()) if len(names) == 1 else [want[n.replace("/", "_")] for n in names]
                worst = [compare(w, g) for w, g in zip(by_place, got)]
                bad = [w for w in worst if isinstance(w, str) or not w <= args.tolerance]
                failed += bool(bad)
                print(f"{'FAILED ' if bad else 'ok     '} {model} {suffix}: {bad or max(worst)}")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
