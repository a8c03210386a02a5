"""Static quantization with samples on real models: how exact each method is, and whether ONNX Runtime answers alike.

    python tests/import/calibration_check.py OAR_BINARY DATA_FOLDER

DATA_FOLDER is the collection of test data (../shared/data). Needs numpy, onnxruntime and PIL. For each model prints the
relative error |y - y_f32| / |y_f32| over all outputs and inputs that were no samples: of Oar's int8 with ranges of each run, of
its int8 with each method of ranges from samples, and of ONNX Runtime on the file that `oar convert` wrote; and the relative
difference between Oar and ONNX Runtime on that file. MNIST also as right labels of 1000. Exits with 1 where ONNX Runtime and Oar
differ by more than 0.02, or MNIST loses more than 5 labels.
"""
import gzip
import json
import pathlib
import subprocess
import sys
import tempfile

import numpy as np
import onnxruntime as ort
from PIL import Image

OAR, DATA = sys.argv[1], pathlib.Path(sys.argv[2])


def photos(width, height, f, mode="RGB"):
    out = []
    for p in sorted(DATA.glob("vision/imagenet/*.JPEG")) + [DATA / "vision/coco/dog.jpg", DATA / "onnx/ultraface/faces.jpg"]:
        x = np.asarray(Image.open(p).convert(mode).resize((width, height)), np.float32)
        out.append(f(x if x.ndim == 3 else x[..., None]).transpose(2, 0, 1)[None].astype(np.float32))
    return out


def mnist():
    raw = gzip.decompress((DATA / "vision/mnist/t10k-images-idx3-ubyte.gz").read_bytes())[16:]
    labels = np.frombuffer(gzip.decompress((DATA / "vision/mnist/t10k-labels-idx1-ubyte.gz").read_bytes())[8:], np.uint8)
    images = np.frombuffer(raw, np.uint8).reshape(-1, 1, 1, 28, 28).astype(np.float32)
    return images, labels


def norm(x):
    return (x / 255 - [0.485, 0.456, 0.406]) / [0.229, 0.224, 0.225]


def run_oar(model, x, name, folder, *options):
    np.save(folder / "x.npy", x)
    done = subprocess.run([OAR, "infer", str(model), "--input", f"{name}={folder}/x.npy", "--output", str(folder / "out"),
                           "--json", "--cache-dir", str(folder / "cache"), *options], capture_output=True, text=True)
    if done.returncode:
        sys.exit(done.stderr)
    return [np.load(o["files"][0]) for o in json.loads(done.stdout)["outputs"]]


def session(model):
    options = ort.SessionOptions()
    options.intra_op_num_threads, options.log_severity_level = 2, 3
    return ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])


def error(got, want):
    pairs = [(g.astype(np.float64).ravel(), w.astype(np.float64).ravel()) for g, w in zip(got, want)]
    return float(np.mean([np.linalg.norm(g - w) / max(np.linalg.norm(w), 1e-30) for g, w in pairs]))


def check(title, model, inputs, held_out, labels=None):
    folder = pathlib.Path(tempfile.mkdtemp())
    (folder / "samples").mkdir()
    for k, x in enumerate(inputs):
        np.save(folder / f"samples/{k:03}.npy", x)
    # Written once more: ONNX Runtime does not read every old file that Oar reads.
    copy = folder / "f32.onnx"
    subprocess.run([OAR, "convert", str(model), "-o", str(copy)], check=True, capture_output=True)
    plain = session(copy)
    name = plain.get_inputs()[0].name
    want = [plain.run(None, {name: x}) for x in held_out]
    line = f"{title:18}"
    few = list(zip(held_out, want))[:4]
    line += f" in the run {np.mean([error(run_oar(model, x, name, folder, '--precision', 'int8'), w) for x, w in few]):.4f}"
    failed = False
    for method in ("minmax", "percentile", "mse"):
        written = folder / f"{method}.onnx"
        options = ["--precision", "int8", "--calibrate", str(folder / "samples"), "--calibrate-method", method]
        done = subprocess.run([OAR, "convert", str(model), "-o", str(written), *options], capture_output=True, text=True)
        if done.returncode:
            print(title, done.stderr.strip())
            return False
        peer = session(written)
        theirs = [peer.run(None, {name: x}) for x in held_out]
        ours = [run_oar(written, x, name, folder) for x, _ in few]
        apart = np.mean([error(o, t) for o, t in zip(ours, theirs)])
        failed |= apart > 0.02
        line += (f" | {method} {np.mean([error(o, w) for o, (_, w) in zip(ours, few)]):.4f}"
                 f" (onnxruntime {np.mean([error(t, w) for t, w in zip(theirs, want)][:4]):.4f}, apart {apart:.4f})")
        if labels is not None:
            right = [sum(int(np.argmax(y[0]) == l) for y, l in zip(all_, labels)) for all_ in (want, theirs)]
            line += f" {right[1]} right of {right[0]}"
            failed |= right[1] < right[0] - 5
    print(line + " " + done.stdout.splitlines()[0], flush=True)
    return not failed


images, labels = mnist()
ok = check("mnist", DATA / "onnx/mnist_cntk/mnist.onnx", images[5000:5064], images[:1000], labels[:1000])
for title, path, width, height, f, mode in (
        ("super_resolution", "onnx/super_resolution/super_resolution.onnx", 224, 224, lambda x: x / 255, "L"),
        ("ultraface", "onnx/ultraface/version-RFB-320.onnx", 320, 240, lambda x: (x - 127) / 128, "RGB"),
        ("fastestdet", "onnx/fastestdet/FastestDet.onnx", 352, 352, lambda x: x[..., ::-1] / 255, "RGB"),
        ("ppocr_v3_det", "onnx/ppocr_v3_det/model.onnx", 320, 320, lambda x: norm(x), "RGB")):
    all_ = photos(width, height, f, mode)
    ok &= check(title, DATA / path, all_[:10], all_[10:])
sys.exit(0 if ok else 1)
