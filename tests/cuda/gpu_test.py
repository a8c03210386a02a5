#!/usr/bin/env python3
"""The runner of ./dev gpu: its budget, what it keeps, judges and says, with programs that are scripts."""
import io
import json
import os
import pathlib
import subprocess
import sys
import tarfile
import tempfile
import time
import unittest
from contextlib import redirect_stdout
from types import SimpleNamespace
from unittest import mock

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import gpu  # noqa: E402
import gpu_steps  # noqa: E402
import gpu_table  # noqa: E402
from gpu_day import Day, Skipped, TimeIsUp  # noqa: E402

BENCH = {"prompt_tokens": 128, "gen_tokens": 64, "parameters": 8e9, "load_seconds": 1.5,
         "prefill_tokens_per_second": {"median": 1000.0}, "decode_tokens_per_second": {"median": 100.0},
         "decode_gb_per_second": {"median": 90.0}}


class Folder(unittest.TestCase):
    def setUp(self):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = pathlib.Path(folder.name)
        (self.folder / "bin").mkdir()

    def program(self, name, body):
        path = self.folder / "bin" / name
        path.write_text(f"#!/bin/sh\n{body}\n", encoding="utf-8")
        path.chmod(0o755)
        return path

    def day(self, device="cuda"):
        return Day(device, self.folder / "bin", self.folder / "out")


class Budget(unittest.TestCase):
    def test_steps(self):
        self.assertLessEqual(max(s.seconds for s in gpu.STEPS), 8 * 60)
        self.assertLessEqual(sum(s.seconds for s in gpu.STEPS), 25 * 60)
        self.assertEqual(len({s.name for s in gpu.STEPS}), len(gpu.STEPS))

    def test_tests_that_steps_name_are_there(self):
        sources = "".join(p.read_text(encoding="utf-8") for p in HERE.glob("*_test.cc"))
        for name in [n for _, n in gpu_steps.BITS] + list(gpu_steps.BESIDE_CHECK):
            with self.subTest(name):
                self.assertIn('"' + name.rstrip("*").replace("\\,", ","), sources)
        for tag in ("rates", "attention", "products", "cudnn"):
            self.assertIn(f"[.probe][{tag}]", sources)


class Commands(Folder):
    def test_time_is_up(self):
        day = self.day()
        day.begin({}, 0.2)
        with self.assertRaises(TimeIsUp):
            day.run("sleep", 5)
        day.begin({}, 0)
        with self.assertRaises(TimeIsUp):
            day.run("true")

    def test_what_a_tool_runs_ends_with_it(self):
        day = self.day()
        day.begin({}, 0.2)
        with self.assertRaises(TimeIsUp):
            day.run("sh", "-c", f"(sleep 0.6; touch {self.folder}/late) & wait")
        time.sleep(0.7)
        self.assertFalse((self.folder / "late").exists())

    def test_one_of_several_devices(self):
        day = self.day("cuda:1")
        self.assertEqual(day.device, "cuda")
        self.assertEqual(day.run("sh", "-c", "echo $CUDA_VISIBLE_DEVICES $CUDA_DEVICE_ORDER"), "1 PCI_BUS_ID\n")
        self.program("nvidia-smi", "echo H, 1, 2, 3, 4, 5, 6; echo $@ >&2")
        with mock.patch.dict(os.environ, PATH=f"{self.folder}/bin:{os.environ['PATH']}"):
            found = gpu_steps.describe(day)
        self.assertEqual((found["name"], found["power.limit"]), ("H", "6"))

    def test_failures_name_the_command(self):
        with self.assertRaisesRegex(RuntimeError, "false: exit status 1"):
            self.day().run("false")

    def test_tests_that_are_none_or_have_no_device(self):
        day = self.day()
        with self.assertRaisesRegex(RuntimeError, "no such tests"):
            day.ran("echo", "No test cases matched 'x'")
        with self.assertRaisesRegex(Skipped, "no CUDA device"):
            day.ran("echo", "skipped: no CUDA device: too old")
        self.assertEqual(day.ran("printf", "a\nb\n\n"), "b")

    def test_probe(self):
        self.program("test_cuda", "echo copy_gb_per_second 2.5e3; echo 'warning: skipped: no cuBLASLt: gone'; echo 'passed'")
        self.assertEqual(self.day().probe("rates"), {"copy_gb_per_second": 2500.0, "skipped": "no cuBLASLt: gone"})
        self.program("test_cuda", "echo nothing")
        with self.assertRaisesRegex(RuntimeError, r"no number in the output of \[rates\]"):
            self.day().probe("rates")


class Numbers(Folder):
    def test_bounds(self):
        day = self.day()
        day.number("a", 85, "%", at_least=85)
        day.number("b", 1.1, "s", at_most=1)
        day.number("c", 3, "x")
        day.absent("d", "PyTorch is not installed")
        self.assertEqual([(n["met"], n["bound"]) for n in day.row["numbers"]],
                         [(True, ">= 85"), (False, "<= 1"), (None, ""), (None, "")])
        emulated = self.day("cuda_emulated")
        emulated.number("a", 1, "%", at_least=85)
        self.assertIsNone(emulated.row["numbers"][0]["met"])

    def test_parts_are_measured_once(self):
        day, asked = self.day(), []
        row = {}
        day.begin(row, 10)
        for _ in range(2):
            self.assertEqual(day.part("x", lambda: asked.append(1) or 7), 7)
        day.begin(row, 10)
        self.assertEqual(day.part("x", lambda: asked.append(1) or 8), 7)
        self.assertEqual(len(asked), 1)

    def test_one_fault_stops_no_other(self):
        day, done = self.day(), []
        rows = [("first", lambda: day.run("false")), ("second", lambda: (_ for _ in ()).throw(Skipped("not here"))),
                ("third", lambda: done.append(3))]
        with self.assertRaisesRegex(RuntimeError, "^first: false"):
            day.each(rows)
        self.assertEqual(done, [3])
        self.assertEqual(day.row["numbers"][0]["why"], "not here")

    def test_rounding(self):
        found = gpu_steps.compared(["mma bf16 0 3f800000 80000001", "mma bf16 1 00000000"],
                                   ["mma bf16 0 3f800002 00000001", "mma bf16 1 80000000"])
        self.assertEqual(found, {"mma bf16": {"cases": 2, "results": 3, "different": 3, "largest_distance": 2}})
        with self.assertRaisesRegex(RuntimeError, "1 cases on the device, 0 on"):
            gpu_steps.compared(["x"], [])


class Table(Folder):
    """Steps before a program that answers as `oar bench` does."""

    def setUp(self):
        super().setUp()
        (self.folder / "made").mkdir()
        said = json.dumps({**BENCH, "weights_folder": str(self.folder / "made")})
        times = json.dumps({"steps": [{"sequences": s, "rows": 1, "computed_seconds": 0.5} for s in gpu_table.STREAMS]})
        self.program("oar", f"echo \"$OAR_CUDA_LIBRARIES $@\" >> {self.folder}/asked\n"
                     f"[ $1 = inspect ] && echo '{times}' || echo '{said}'")
        self.program("test_cuda", "echo copy_gb_per_second 100; echo upload_gb_per_second 20; echo peak_bf16_tflops 900; "
                     "echo peak_e4m3_tflops 1800; echo attention_bf16_gb_per_second 85; echo attention_bf16_microseconds 40; "
                     "echo attention_int4_microseconds 10; echo attention_fp8_microseconds 8; "
                     "echo attention_int8_microseconds 20; "
                     "echo product_bf16_tflops 720; echo product_e4m3_tflops 900; echo product_bf16_library_tflops 750; "
                     "echo product_e4m3_library_tflops 1000")

    def numbers(self, step, day=None):
        day = day or self.day()
        step(day)
        return {n["what"]: n for n in day.row["numbers"]}

    def test_decode_and_start(self):
        day = self.day()
        day.steps["decode"] = day.row
        found = self.numbers(gpu_table.decode, day)
        self.assertTrue(found["decode, bf16, batch 1, share of the bandwidth"]["met"])
        self.assertEqual(found["decode, int4, batch 16, share of the bandwidth"]["bound"], "")
        self.assertEqual(found["decode, fp8, batch 64, computed from bytes and operations"]["value"], 128)
        asked = (self.folder / "asked").read_text(encoding="utf-8").splitlines()
        self.assertEqual(sum("--shape" in line for line in asked), 1)  # weights are made once
        self.assertEqual(len(asked), 1 + 2 * 9)
        day.begin({}, 10)
        # 16 GB at 20 GB/s are 0.8 s of the 1.5.
        self.assertAlmostEqual(self.numbers(gpu_table.start, day)["start behind the copy of the weights, bf16"]["value"], 0.7)
        with self.assertRaisesRegex(Skipped, "step decode has not measured it"):
            gpu_table.start(self.day())

    def test_without_a_device_no_weights_are_made(self):
        self.program("test_cuda", "echo 'skipped: no CUDA device: no driver'")
        for step in (gpu_table.decode, gpu_table.prefill, gpu_table.saturated):
            with self.assertRaisesRegex(Skipped, "^no CUDA device$"):
                step(self.day())
        self.assertFalse((self.folder / "asked").exists())
        self.program("oar", "echo 'oar: plug-in cuda finds no device on this machine'; exit 1")
        with self.assertRaisesRegex(Skipped, "^no CUDA device$"):
            gpu_steps.plug_in(self.day())

    def test_attention_and_products(self):
        found = self.numbers(gpu_table.attention)
        self.assertEqual([n["met"] for n in found.values()], [True, True, False, None])
        found = self.numbers(gpu_table.products)
        self.assertEqual(found["products of prompts, bf16, share of cuBLASLt alone"]["met"], True)
        self.assertEqual(found["products of prompts, e4m3, share of cuBLASLt alone"]["met"], False)
        self.assertEqual(found["products of prompts, bf16, share of the matrix peak"]["value"], 80)
        self.program("test_cuda", "echo peak_bf16_tflops 9; echo peak_e4m3_tflops 9; echo product_bf16_tflops 7; "
                     "echo product_e4m3_tflops 9; echo 'skipped: no cuBLASLt: gone'")
        found = self.numbers(gpu_table.products)
        self.assertEqual(found["products of prompts, bf16, share of cuBLASLt alone"]["why"], "no cuBLASLt: gone")

    def test_a_load_whose_decoding_could_not_be_measured_is_a_fault(self):
        day = self.day()
        gpu_table.weights_of(day)
        self.program("oar", "echo '{\"decode_missing\": \"raise --max-context\"}'")
        with self.assertRaisesRegex(RuntimeError, "raise --max-context"):
            gpu_table.bench(day, "bf16", 1, 16, 2)

    def test_prompts_are_asked_of_each_library(self):
        found = self.numbers(gpu_table.prefill)
        self.assertEqual(found["prefill 2048 x 8, fp8, times as fast as bf16"]["met"], False)
        asked = (self.folder / "asked").read_text(encoding="utf-8")
        self.assertRegex(asked, r"(?m)^cublaslt bench .*--weights bf16 .*--streams 8 --prompt-tokens 2048")
        self.assertRegex(asked, r"(?m)^wgmma bench .*--weights fp8 ")

    def test_peers(self):
        with mock.patch("importlib.util.find_spec", return_value=None):
            found = self.numbers(gpu_table.saturated)
            self.assertEqual(found["saturated 128/128, bf16, times as fast as PyTorch"]["why"], "PyTorch is not installed")
            # 128 prompt tokens at 1000/s, then 64 at 100/s.
            self.assertAlmostEqual(found["saturated 128/128, bf16"]["value"], 64 / (0.128 + 0.64))
            self.assertEqual(found["saturated 2048/128, fp8, share of TensorRT-LLM's published"]["met"], False)
            day = self.day()
            with self.assertRaisesRegex(Skipped, "make_models.py makes it where numpy and onnx are installed"):
                gpu_table.networks(day)
            self.assertEqual([n["what"] for n in day.row["numbers"]],
                             [f"{name}, bf16, times as fast as PyTorch" for name in ("resnet50", "bert_base")])
        self.program("predictor_bench", "echo 'load 1 ms, first run 2 ms, median 2.500 ms, best 2 ms of 3'")
        (self.folder / "out/models").mkdir()
        for name in ("resnet50", "bert_base"):
            (self.folder / f"out/models/{name}.onnx").touch()
        with mock.patch.object(gpu_table, "peer", return_value={"milliseconds": 4}):
            found = self.numbers(gpu_table.networks)
        self.assertEqual(found["bert_base, bf16, times as fast as PyTorch"]["met"], True)
        self.assertEqual(found["resnet50, bf16, batch 64"]["value"], 2.5)

    def test_a_peer_without_pytorch_says_so(self):
        (self.folder / "torch.py").write_text("raise ImportError('no torch here')\n", encoding="utf-8")
        done = subprocess.run([sys.executable, HERE / "peers_torch.py", "resnet50", "--batch", "1"], text=True,
                              capture_output=True, check=False, env={**os.environ, "PYTHONPATH": str(self.folder)})
        self.assertEqual((done.returncode, done.stderr),
                         (1, "peers_torch.py: no torch here; PyTorch 2.5 or newer is needed\n"))

    def test_bundle(self):
        with self.assertRaisesRegex(Skipped, "dev bundle makes it"):
            gpu_steps.bundle(self.day())
        home = self.folder / "oar-1/bin"
        home.mkdir(parents=True)
        (home / "oar").write_text("#!/bin/sh\necho $@\necho Oar works here.\n", encoding="utf-8")
        (home / "oar").chmod(0o755)
        with tarfile.open(self.folder / "oar-1.tar.xz", "w:xz") as archive:
            archive.add(self.folder / "oar-1", "oar-1")
        day = self.day()
        self.assertEqual(gpu_steps.bundle(day)["check"], "Oar works here.")
        self.assertTrue(day.row["numbers"][0]["met"])
        self.assertEqual(list((self.folder / "out").glob("tmp*")), [])

    def test_cudnn(self):
        self.program("test_cuda", "echo 'cudnn_device {\"deviceName\": \"H\"}'")
        self.assertEqual(gpu_steps.cudnn(self.day())["description"], {"deviceName": "H"})
        self.assertEqual(json.loads((self.folder / "out/cudnn-device.json").read_text(encoding="utf-8")), {"deviceName": "H"})
        self.program("test_cuda", "echo 'skipped: no cuDNN: gone'")
        with self.assertRaisesRegex(Skipped, "^no cuDNN: gone$"):
            gpu_steps.cudnn(self.day())

    def test_plug_in(self):
        def says(kernels, notes=()):
            report = json.dumps({"checks": [{"check": "a line"}, *kernels], "notes": notes, "failures": 0})
            (self.folder / "report.json").write_text(report, encoding="utf-8")
            self.program("oar", f"cat {self.folder}/report.json")
            return gpu_steps.plug_in(self.day())

        rope = {"kernel": "rope", "error": 0, "bound": 1, "microseconds": 4, "computed_microseconds": 2, "tflops": 0.5, "bytes": 9}
        found = says([rope])
        self.assertEqual(found["kernels"], {"rope": {"error": 0, "bound": 1, "microseconds": 4, "computed_microseconds": 2,
                                                     "tflops": 0.5}})
        with self.assertRaisesRegex(RuntimeError, "without a roofline: .'rope: kv_append'"):
            says([{**rope, "before": [{"family": "kv_append"}]}])
        with self.assertRaisesRegex(RuntimeError, "no kernel on cuda:0"):
            says([rope], ["pool: no kernel on cuda:0; the processor does it"])
        with self.assertRaisesRegex(RuntimeError, "^0 kernels"):
            says([])

    def test_sanitizer(self):
        tool = self.program("compute-sanitizer", f"echo $2 >> {self.folder}/checks; shift 4; \"$@\"")
        self.program("test_cuda", "echo All tests passed")
        self.program("oar", "echo Oar works here.")
        with mock.patch("shutil.which", return_value=str(tool)):
            found = gpu_steps.sanitizer(self.day())
        self.assertEqual(len(found), 2 * (len(gpu_steps.CHECKED) + len(gpu_steps.BESIDE_CHECK)))
        self.assertEqual(set((self.folder / "checks").read_text(encoding="utf-8").split()), {"memcheck", "racecheck"})
        self.assertEqual(found["racecheck: oar check"], "Oar works here.")


class Sessions(Folder):
    """Whole runs, of steps of their own."""

    def go(self, steps, minutes=25.0, again=False, commit="c"):
        args = SimpleNamespace(minutes=minutes, again=again, only=[s.name for s in steps])
        day = self.day()
        results = gpu.Results(day, commit)
        with mock.patch.object(gpu, "STEPS", steps), redirect_stdout(io.StringIO()) as said:
            left = gpu.run_all(day, results, args)
        return left, results.all["steps"], said.getvalue()

    def test_what_has_passed_is_not_done_again(self):
        done = []
        steps = [gpu.Step("a", 20, lambda day: done.append("a")),
                 gpu.Step("b", 20, lambda day: done.append("b") or day.run("false"))]
        left, rows, _ = self.go(steps)
        self.assertEqual((left, rows["a"]["status"], rows["b"]["status"]), ((["b"], []), "passed", "failed"))
        self.go(steps)
        self.assertEqual(done, ["a", "b", "b"])
        self.go(steps, again=True)
        self.go(steps, commit="another")
        self.assertEqual(done, ["a", "b", "b", "a", "b", "a", "b"])

    def test_a_session_goes_on_where_its_time_ended(self):
        done = []

        def slow(day):
            for name in ("one", "two"):
                day.part(name, lambda n=name: done.append(n) or day.run("sleep", 0.4) or n)

        steps = [gpu.Step("slow", 480, slow), gpu.Step("late", 480, lambda day: None)]
        with mock.patch.object(gpu, "LEAST_SECONDS", 0.1):
            left, rows, _ = self.go(steps, minutes=0.6 / 60)
        self.assertEqual(left, ([], ["slow", "late"]))
        self.assertEqual((rows["slow"]["status"], list(rows["slow"]["parts"])), ("unfinished", ["one"]))
        left, rows, _ = self.go(steps)
        self.assertEqual((left, rows["slow"]["status"], done), (([], []), "passed", ["one", "two", "two"]))

    def test_a_step_that_takes_too_long_fails(self):
        left, rows, _ = self.go([gpu.Step("slow", 0.2, lambda day: day.run("sleep", 5))])
        self.assertEqual(left, (["slow"], []))
        self.assertIn("took longer than 0.2 s in sleep", rows["slow"]["why"])

    def test_numbers_below_their_bounds_are_said_and_fail_nothing(self):
        def measure(day):
            day.number("share <of> it", 50, "%", at_least=85)
            day.absent("beside", "PyTorch is not installed")

        left, _, said = self.go([gpu.Step("a", 20, measure)])
        self.assertEqual(left, ([], []))
        self.assertIn("below its bound: share <of> it: 50 %, not >= 85", said)
        report = (self.folder / "out/report.html").read_text(encoding="utf-8")
        self.assertIn("<tr class=no><td>share &lt;of&gt; it<td>50 %<td>&gt;= 85<td>not met", report)
        self.assertIn("none: PyTorch is not installed", report)
        kept = json.loads((self.folder / "out/results.json").read_text(encoding="utf-8"))
        self.assertEqual(kept["steps"]["a"]["numbers"][0]["met"], False)

    def test_options(self):
        def parsed(*words):
            with mock.patch.object(sys, "argv", ["gpu.py", *words]), mock.patch.object(sys, "stderr", io.StringIO()):
                return gpu.options()
        self.assertEqual(parsed("--only", "rates,bits").only, ["rates", "bits"])
        self.assertEqual(parsed().only, [s.name for s in gpu.STEPS])
        for wrong in (("--only", "nothing"), ("--minutes", "26"), ("--minutes", "0")):
            with self.assertRaises(SystemExit):
                parsed(*wrong)


if __name__ == "__main__":
    unittest.main(verbosity=2)
