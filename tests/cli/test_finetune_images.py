#!/usr/bin/env python3
"""oar finetune of networks over images, as a user runs it: on folders of PNG files and on IDX files, runs that are killed, what comes
out, what is refused; with the downloaded test data MNIST and the released ResNet-20 of CIFAR-10."""
import gzip
import json
import math
import pathlib
import re
import signal
import subprocess
import sys
import tempfile
import unittest
import urllib.request
from array import array

from program import DATA, OAR, SOURCE, Base, Server, has_server

sys.path.insert(0, str(SOURCE / "tests/support"))
import tiny_images  # noqa: E402

CLASSES = ["cat", "dog", "owl"]
SIDE = 28


class FinetuneImages(Base):
    def setUp(self):
        temporary = tempfile.TemporaryDirectory()
        self.addCleanup(temporary.cleanup)
        self.folder = pathlib.Path(temporary.name)
        self.net = self.folder / "net.onnx"

    def lenet_on_pictures(self):
        tiny_images.write_lenet(self.net)
        tiny_images.write_classes(self.folder / "data", CLASSES, 30, SIDE)
        return ("finetune", self.net, "--data", self.folder / "data", "--full", "--batch", 8, "--threads", 1)

    def inferred(self, model, rows, mean=0.0, std=1.0):
        """The likeliest class of each grey image."""
        values = array("f", ((v / 255 - mean) / std for row in rows for v in row))
        tiny_images.write_floats(self.folder / "x.npy", [len(rows), 1, SIDE, SIDE], values)
        self.ok("infer", model, "--input", f"image={self.folder}/x.npy", "--output", self.folder / "scores")
        scores = tiny_images.read_floats(self.folder / "scores/scores.npy")
        return [max(range(10), key=lambda c: scores[10 * k + c]) for k in range(len(rows))]

    def test_a_folder_of_pictures(self):
        command, out, log = self.lenet_on_pictures(), self.folder / "out.onnx", self.folder / "log.jsonl"
        done = self.ok(*command, "--hold-out", 0.2, "--epochs", 4, "--eval-every", 5, "--log", log, "--plot", self.folder / "loss.svg",
                       "-o", out)
        self.assertIn("3 classes: cat, dog, owl", done.stderr)
        self.assertIn("the network scores 10 classes; 7 have no images", done.stderr)
        self.assertIn("24 images, 6 held out, 12 steps of 1 x 8 images of 28 x 28; 61706 numbers are trained in 10 tensors", done.stderr)
        self.assertIn("memory at the peak: ", done.stderr)
        self.assertRegex(done.stderr, r"step 12/12  loss \d+\.\d+  \d+ images/s")
        self.assertRegex(done.stdout, r"held-out loss \d+\.\d+, accuracy \d+\.\d %, of step")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual([l["step"] for l in lines if "loss" in l], list(range(1, 13)))
        self.assertEqual({l["images"] for l in lines if "loss" in l}, {8})
        self.assertEqual([l["step"] for l in lines if "held_out" in l], [5, 10, 12])
        self.assertIn("<svg", (self.folder / "loss.svg").read_text())
        self.assertFalse((self.folder / "out.onnx.training").exists())
        self.assertEqual(len(self.inferred(out, [bytes(SIDE * SIDE)])), 1)
        self.refused(1, *command, "-o", out, says=["is there already"])
        self.ok(*command, "-o", self.folder / "none.onnx", "--dry-run")
        self.assertFalse((self.folder / "none.onnx").exists())

    def test_flags_change_what_comes_out_and_inspect_says_what_a_run_says(self):
        command = self.lenet_on_pictures()

        def with_flags(flags):
            return (*command[:command.index("--batch")], "--threads", 1, *flags, *(() if "--batch" in flags else ("--batch", 8)))

        def trained(name, *flags):
            self.ok(*with_flags(flags), "--steps", 2, "-q", "-o", self.folder / f"{name}.onnx")
            return (self.folder / f"{name}.onnx").read_bytes()
        plain = trained("plain")
        for k, flags in enumerate((("--mean", 0.3), ("--std", 0.3), ("--batch", 4), ("--hold-out", 4), ("--seed", 1), ("--freeze", "*bias*"))):
            with self.subTest(flags=flags):
                self.assertNotEqual(trained(f"other{k}", *flags), plain)
        self.assertEqual(trained("stretched", "--stretch"), plain)  # squares are what they were
        for flags in ((), ("--batch", 4), ("--hold-out", 4), ("--optimizer", "sgd"), ("--ranks", 2), ("--freeze", "*bias*")):
            with self.subTest(flags=flags):
                run = self.ok(*with_flags(flags), "--dry-run", "-o", self.folder / "none.onnx").stderr
                told = self.ok("inspect", self.net, "--train", "full", *(() if "--batch" in flags else ("--batch", 8)), *flags, "--threads", 1).stdout
                line = re.search(r"(?m)^memory at the peak: .*$", run)[0]
                self.assertIn(line, told.splitlines())
        self.refused(2, "inspect", self.net, "--train", "full", "--tokens", 4, says=["--tokens", "--batch"])

    def test_a_killed_run_goes_on_to_the_same_bits(self):
        command = [str(c) for c in (OAR, *self.lenet_on_pictures(), "--steps", 60, "--checkpoint-every", 1, "--hold-out", 6, "-q")]
        subprocess.run(command + ["-o", "whole.onnx"], cwd=self.folder, check=True, capture_output=True)
        killed = 0
        for wait in (0.2, 0.3, 0.5, 0.8, 1.2, 2, 4, None):
            process = subprocess.Popen(command + ["-o", "killed.onnx"], cwd=self.folder, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE)
            try:
                _, errors = process.communicate(timeout=wait)
                self.assertEqual(process.returncode, 0, errors)
                break
            except subprocess.TimeoutExpired:
                process.send_signal(signal.SIGKILL)
                process.communicate()
                killed += 1
        self.assertGreater(killed, 0)
        self.assertEqual((self.folder / "whole.onnx").read_bytes(), (self.folder / "killed.onnx").read_bytes())

    def test_what_is_wrong_is_named(self):
        command, out = self.lenet_on_pictures(), ("-o", self.folder / "out.onnx")
        for flag, words in ((("--lora", "rank=4"), "trained whole"), (("--weights", "int8"), "as it is stored"),
                            (("--tokens", 64), "--batch"), (("--length", 64), "no tokens"), (("--recompute", "layers"), "computed again"),
                            (("--too-long", "refuse"), "no tokens"), (("--labels", "a,b"), "names of folders"),
                            (("--sample-tokens", 3), "does not go on")):
            self.refused(2, *command, *out, *flag, says=[flag[0], words])
        for flag in (("--batch", 8), ("--size", 28), ("--mean", 0.1), ("--std", 0.3), ("--bgr",), ("--stretch",)):
            self.refused(2, "finetune", "demo", "--data", self.net, "--full", *out, *flag, says=[flag[0], "networks over images"])
        self.refused(1, *command, "-o", self.folder / "out", says=["ends in .onnx"])
        self.refused(2, *command[:-5], *out, says=["either --full or --lora"])
        self.refused(1, *command, *out, "--bgr", says=["--bgr: the network's images have one channel"])
        self.refused(1, *command, *out, "--size", 30, says=["--size 30: the network's images are 28 x 28"])
        self.refused(1, *command, *out, "--mean", 0.1, 0.2, says=["--mean and --std need a number for each"])
        self.refused(1, *command, *out, "--memory", "100KiB", says=["training takes", "100.0 KiB may be taken", "fit"])
        self.refused(1, *command, *out, "--hold-out", 5000, says=["--hold-out 5000 of 30 images leaves none"])
        (self.folder / "data/cat/00.png").write_bytes(b"no picture")
        self.refused(1, *command, *out, says=["cat/00.png"])
        empty = self.folder / "empty"
        empty.mkdir()
        self.refused(1, "finetune", self.net, "--data", empty, "--full", *out, says=[str(empty), "has no folders"])
        self.refused(1, "finetune", self.folder / "absent.onnx", "--data", empty, "--full", *out, says=["absent.onnx"])
        self.assertFalse((self.folder / "out.onnx").exists())

    def mnist(self):
        folder = DATA / "vision/mnist"
        if not folder.is_dir():
            self.skipTest("skipped: vision/mnist of the test data is not here")
        images = gzip.decompress((folder / "t10k-images-idx3-ubyte.gz").read_bytes())[16:]
        labels = gzip.decompress((folder / "t10k-labels-idx1-ubyte.gz").read_bytes())[8:]
        return [images[k:k + SIDE * SIDE] for k in range(0, len(images), SIDE * SIDE)], list(labels)

    def test_lenet_learns_digits(self):
        rows, labels = self.mnist()
        held = range(4, len(rows), 5)
        kept = [k for k in range(len(rows)) if k % 5 != 4]
        tiny_images.write_lenet(self.net)
        for name, which in (("train", kept), ("test", held)):
            tiny_images.write_idx(self.folder / f"{name}-images-idx3-ubyte", [rows[k] for k in which], [labels[k] for k in which], SIDE)
        out = self.folder / "digits.onnx"
        done = self.ok("finetune", self.net, "--data", self.folder / "train-images-idx3-ubyte", "--eval",
                       self.folder / "test-images-idx3-ubyte", "--eval-every", 500, "--full", "--epochs", 6, "--rate", "3e-3", "--warmup",
                       50, "--mean", 0.1307, "--std", 0.3081, "-o", out)
        self.assertIn("8000 images, 2000 held out, 1500 steps of 1 x 32 images", done.stderr)
        told = float(re.search(r"accuracy (\d+\.\d) %", done.stdout)[1])
        self.assertGreaterEqual(told, 97)
        right = sum(c == labels[k] for c, k in zip(self.inferred(out, [rows[k] for k in held], 0.1307, 0.3081), held))
        self.assertAlmostEqual(100 * right / len(held), told, delta=0.0501)  # told to one digit
        if not has_server():
            return
        pixels = [(v / 255 - 0.1307) / 0.3081 for v in rows[4]]
        body = {"inputs": [{"name": "image", "shape": [1, 1, SIDE, SIDE], "datatype": "FP32", "data": pixels}]}
        with Server(model=out) as server:
            request = urllib.request.Request(server.url("/v2/models/digits/infer"), json.dumps(body).encode(),
                                             {"content-type": "application/json"})
            scores = json.load(urllib.request.urlopen(request, timeout=60))["outputs"][0]["data"]
        self.assertEqual(max(range(10), key=scores.__getitem__), self.inferred(out, [rows[4]], 0.1307, 0.3081)[0])

    def test_a_released_resnet_is_trained_as_pytorch_does_it(self):
        file = DATA / "vision/cifar10_resnet/resnet20-12fca82f.th"
        if not file.is_file():
            self.skipTest("skipped: vision/cifar10_resnet of the test data is not here")
        golden = json.loads((SOURCE / "tests/golden/training/images/resnet20.json").read_text())
        tiny_images.write_resnet(self.net, tiny_images.read_torch(file), golden["blocks"])
        tiny_images.write_classes(self.folder / "data", [f"c{k}" for k in range(golden["classes"])], golden["images"], golden["side"])
        log = self.folder / "log.jsonl"
        self.ok("finetune", self.net, "--data", self.folder / "data", "--full", "--batch", golden["images"], "--steps", golden["steps"],
                "--rate", golden["rate"], "--decay", golden["decay"], "--schedule", "constant", "--log", log, "-q", "-o",
                self.folder / "out.onnx")
        lines = [json.loads(line) for line in log.read_text().splitlines()]
        self.assertEqual(len(lines), golden["steps"])
        for what in ("loss", "norm"):
            bound = max(1e-5, 4 * golden[f"{what} spread"])
            worst = max(abs(line[what] - golden[what][k]) for k, line in enumerate(lines))
            self.assertLess(worst, bound, what)
        self.assertLess(lines[-1]["loss"], 0.01)
        # A step of plain descent at rate 1 takes the gradient away.
        self.ok("finetune", self.net, "--data", self.folder / "data", "--full", "--batch", golden["images"], "--steps", 1, "--rate", 1,
                "--optimizer", "sgd", "--momentum", 0, "--decay", 0, "--clip", 0, "--schedule", "constant", "-q", "-o",
                self.folder / "one.onnx")
        before, after = tiny_images.read_onnx(self.net), tiny_images.read_onnx(self.folder / "one.onnx")
        most = max(norm for norm, _ in golden["gradients"].values())
        for name, (norm, product) in golden["gradients"].items():
            d = [b - a for b, a in zip(before[name], after[name], strict=True)]
            # The difference of two f32 numbers is off by half a unit of each, the gradient by some hundred roundings.
            bound = 2**-23 * (1 + max(map(abs, before[name]))) * len(d)**0.5 + 1e-5 * most
            self.assertLess(abs(math.hypot(*d) - norm), bound, name)
            self.assertLess(abs(sum(g * math.cos(0.9 * k + 0.3) for k, g in enumerate(d)) - product), bound, name)


if __name__ == "__main__":
    unittest.main(verbosity=1)
