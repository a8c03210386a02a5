"""Tests of bench_cpu.py's readers, figures and report. tests/bench/samples holds recorded output (of sweep-bench, which
was not at hand, output in its documented format)."""
import json
import os
import stat
import sys
import tempfile
import unittest
import xml.dom.minidom

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path.insert(0, HERE)
import bench_cpu  # noqa: E402
import bench_output as read  # noqa: E402
import bench_report  # noqa: E402
import bench_stats as stats  # noqa: E402
import regress  # noqa: E402


def sample(name):
    with open(os.path.join(HERE, "samples", name), encoding="utf-8") as file:
        return file.read()


class Readers(unittest.TestCase):
    def test_llama_bench(self):
        rows = read.llama_bench(sample("llama_bench.json"))
        self.assertEqual([(r["prompt_tokens"], r["gen_tokens"], r["context"]) for r in rows], [(16, 0, 0), (0, 4, 0)])
        self.assertTrue(all(r["flash"] and r["kv"] == "f16" and r["rate"] > 0 for r in rows))
        self.assertAlmostEqual(rows[1]["rate"], json.loads(sample("llama_bench.json"))[1]["avg_ts"])

    def test_llama_bench_behind_log_lines(self):
        rows = read.llama_bench("loading\n[warning] slow\n" + sample("llama_bench.json"))
        self.assertEqual(len(rows), 2)

    def test_llama_bench_refuses(self):
        with self.assertRaisesRegex(ValueError, "no JSON"):
            read.llama_bench("error: failed to load model\n")
        with self.assertRaisesRegex(ValueError, "without 'avg_ts'"):
            read.llama_bench('[{"n_prompt": 1, "n_gen": 0}]')

    def test_batched_bench(self):
        rows = read.llama_table(sample("llama_batched_bench.txt"))
        self.assertEqual([r["streams"] for r in rows], [1, 2, 4])
        self.assertEqual(rows[2]["context"], 80)
        self.assertEqual(rows[0]["decode"], 3.87)

    def test_sweep_bench(self):
        rows = read.llama_table(sample("llama_sweep_bench.txt"))
        self.assertEqual([(r["streams"], r["context"], r["prefill"]) for r in rows], [(1, 0, 465.88), (1, 512, 430.98)])
        self.assertEqual(read.sweep_jsonl(sample("llama_sweep_bench.jsonl")), rows)

    def test_table_refuses(self):
        with self.assertRaisesRegex(ValueError, "no table"):
            read.llama_table("| model | size |\n|---|---|\n| x | 1 |\n")
        with self.assertRaisesRegex(ValueError, "2 cells under 3"):
            read.llama_table("| PP | TG | S_PP t/s |\n| 1 | 2 |\n")

    def test_our_bench(self):
        values = read.our_bench(sample("oar_bench.json"))
        self.assertAlmostEqual(values["read"] / 1e9, 17.06945268163659)
        self.assertAlmostEqual(values["decode"], 1063.5632498785637)
        self.assertEqual(values["decode_operations"], 10485760)
        self.assertIsNone(values["folder"])
        with self.assertRaisesRegex(ValueError, "no field"):
            read.our_bench("{}")

    def test_our_kernels(self):
        values = read.our_kernels(sample("attention_bench.json"))
        self.assertEqual(len(values["cases"]), 4)
        values["cases"][0]["read"].pop()
        with self.assertRaisesRegex(ValueError, "as many probes"):
            read.our_kernels(json.dumps(values))


class Figures(unittest.TestCase):
    def test_half_speed_rounds_are_set_aside(self):
        self.assertEqual(stats.disturbed_rounds([100, 52, 98, 101, 49]), {1, 4})
        self.assertEqual(stats.disturbed_rounds([100, 90, 80, 75]), set())
        self.assertEqual(stats.disturbed_rounds([50, 100]), set())  # which of two is usual nobody knows

    def test_lower_bound_of_median(self):
        self.assertIsNone(stats.lower_bound_of_median([1, 2, 3, 4]))  # all four above it: 1 of 16
        self.assertEqual(stats.lower_bound_of_median([5, 1, 2, 3, 4]), 1)  # 1 of 32
        self.assertEqual(stats.lower_bound_of_median(list(range(8))), 1)  # 9 of 256
        self.assertEqual(stats.lower_bound_of_median(list(range(20))), 5)

    def test_verdicts_of_regress(self):
        fail = lambda: self.fail("no need to count")  # noqa: E731
        self.assertEqual(regress.verdict([1.0] * 8, fail)[2], "holds")
        self.assertEqual(regress.verdict([0.9] * 8, fail)[2], "slower")
        noisy = [0.8, 0.8, 0.9, 1.0, 1.0, 1.1, 1.2, 1.2]
        self.assertEqual(regress.verdict(noisy, lambda: (100, 102))[2], "holds")
        self.assertEqual(regress.verdict(noisy, lambda: (100, 103))[2], "slower")
        self.assertEqual(regress.verdict(noisy, lambda: (100, None))[2], "undecided")

    def test_kernel_row(self):
        case = {"name": "k", "bytes": 100.0, "ops": 1000.0, "arithmetic": "int8",
                "seconds": [2.0, 4.0, 9.0, 2.5], "read": [100.0, 50.0, 100.0, 100.0], "peak": [1e4, 1e4, 4e3, 1e4]}
        row = stats.kernel_row(case)
        self.assertEqual((row["rounds"], row["aside"], row["limit"]), (3, 1, "read"))
        self.assertEqual(row["percent"], 50)  # of 50, 50, 40
        self.assertEqual((row["seconds"], row["best_seconds"]), (2.5, 2.0))
        case["ops"] = 1e6
        self.assertEqual(stats.kernel_row(case)["limit"], "int8")

    def test_attention_operations(self):
        config = {"hidden_size": 8, "num_hidden_layers": 2, "num_attention_heads": 2, "head_dim": 4}
        self.assertEqual(stats.attention_operations(config, 3, 5), 4 * 2 * 2 * 4 * (6 + 7 + 8))
        self.assertEqual(stats.attention_operations(dict(config, layer_types=[]), 3, 5), 0)
        self.assertEqual(stats.attention_operations({}, 3, 5), 0)

    def test_model_row(self):
        def round_of(peak, ours, **peers):
            return {"peak": peak, "ours": {"decode": ours}, "peers": {k: {"decode": v} for k, v in peers.items()}}
        rounds = [round_of(10, 20, a=10, b=8), round_of(10, 30, a=10, b=12), round_of(4, 99, a=1), round_of(10, 25, a=10)]
        row = stats.model_row("m", rounds, "decode", lambda r: 0.02)
        self.assertEqual((row["rounds"], row["aside"], row["pairs"]), (3, 1, 3))
        self.assertEqual((row["ratio"], row["rate"], row["peer"], row["peer_rate"]), (2.5, 25, "a", 10))
        self.assertAlmostEqual(row["percent"], 50)
        self.assertNotIn("ratio", stats.model_row("m", [round_of(1, 2)], "decode", None))


    def test_limits_of_streams_and_of_long_contexts(self):
        def round_of(decode, gigabytes, read, peak=1e12, operations=4e9):
            return {"peak": peak, "machine": {"peaks": {"int8.vnni": 2e12, "bf16.vnni": 1e12}}, "peers": {},
                    "ours": {"decode": decode, "decode_bytes": gigabytes * 1e9, "read": read, "decode_operations": operations}}
        one = bench_cpu.limit_of({}, {"prompt": 8}, "decode", "int8")
        self.assertAlmostEqual(one(round_of(1, 2, 40e9)), 0.05)
        # 16 tokens a step: 2 GB at 40 GB/s, then 4 billion operations at 2 tera.
        many = bench_cpu.limit_of({}, {"prompt": 8, "streams": 16}, "decode", "int8")
        self.assertAlmostEqual(many(round_of(1, 2, 40e9)), (0.05 + 0.002) / 16)
        row = stats.model_row("m", [round_of(160, 2, 40e9)], "decode", many)
        self.assertAlmostEqual(row["percent"], 100 * 160 * 0.052 / 16)
        # Half as fast where a step reads 1.5 times as much of a memory as fast: 75 %. A memory that was twice as fast
        # says that it should have been twice that.
        near, far = round_of(20, 2, 40e9), round_of(10, 3, 40e9)
        self.assertAlmostEqual(stats.growth_row("m", [near], [far])["percent"], 75)
        self.assertAlmostEqual(stats.growth_row("m", [near], [round_of(10, 3, 80e9)])["percent"], 37.5)
        slow = round_of(10, 3, 40e9, peak=1e11)
        row = stats.growth_row("m", [near] * 4, [far, slow, far, far])
        self.assertEqual((row["rounds"], row["aside"], row["rate"]), (3, 1, 10))
        self.assertAlmostEqual(row["percent"], 75)


class Report(unittest.TestCase):
    results = {
        "machine": {"cpu": "CPU", "threads": 4, "isa": "amx", "read": 5e10, "read_one_thread": 1.2e10, "peaks": {"int8.amx": 1e13}},
        "kernels": [{"name": "k <1>", "seconds": 2e-4, "best_seconds": 1e-4, "percent": 80.0, "best_percent": 90.0, "limit": "read",
                     "rounds": 8, "aside": 1}],
        "models": [{"name": "1b", "what": "decode", "rate": 50.0, "best_rate": 60.0, "rounds": 8, "aside": 0, "percent": 91.0,
                    "limit": "read", "peer": "clang, fa 0", "peer_rate": 40.0, "best_peer_rate": 41.0, "ratio": 1.25, "pairs": 8},
                   {"name": "1b", "what": "prefill", "rate": 1500.0, "best_rate": 1600.0, "rounds": 8, "aside": 0, "limit": "int8"}],
        "failures": ["gcc: llama-bench ended with -11"],
    }

    def test_markdown(self):
        text = bench_report.markdown(self.results)
        self.assertIn("| k <1> | 200.0 us (100.0 us) | 80 % (90) | read | 8, 1 |", text)
        self.assertIn("| 1b, decode | 50.0 (60.0) | 91 % | clang, fa 0: 40.0 (41.0) | 1.25 | 8, 0 |", text)
        self.assertIn("| 1b, prefill | 1,500 (1,600) |  |  |  | 8, 0 |", text)
        self.assertIn("Not measured: gcc: llama-bench ended with -11", text)
        self.assertIn("int8 by amx 10,000 GOP/s", text)

    def test_svg_is_well_formed(self):
        image = xml.dom.minidom.parseString(bench_report.svg(self.results))
        texts = [node.firstChild.data for node in image.getElementsByTagName("text")]
        self.assertIn("k <1>", texts)
        self.assertIn("91", texts)
        self.assertIn("1.25", texts)
        self.assertEqual(texts.count("the fastest peer"), 1)
        alone = dict(self.results, models=self.results["models"][1:])
        self.assertNotIn("the fastest peer", bench_report.svg(alone))


class Programs(unittest.TestCase):
    """The peers' command lines, by programs that print the samples."""

    def folder(self, programs):
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        for name, body in programs.items():
            path = os.path.join(folder.name, name)
            with open(path, "w", encoding="utf-8") as file:
                file.write(f"#!/bin/sh\n{body}\n")
            os.chmod(path, stat.S_IRWXU)
        return folder.name

    def test_peer(self):
        samples = os.path.join(HERE, "samples")
        folder = self.folder({"llama-bench": f"cat {samples}/llama_bench.json",
                              "llama-batched-bench": f"cat {samples}/llama_batched_bench.txt",
                              "llama-sweep-bench": f"cat {samples}/llama_sweep_bench.txt"})
        peer = bench_cpu.Peer("x", folder, 4)
        rates = peer.rates("m.gguf", bench_cpu.SCENARIOS["prompt of 512, 32 tokens"])
        self.assertEqual(sorted(rates), ["x, fa 0", "x, fa 1", "x, sweep"])
        self.assertEqual(rates["x, sweep"], {"prefill": 465.88, "decode": 43.1})
        rates = peer.rates("m.gguf", bench_cpu.SCENARIOS["16 streams of 128 and 64"])
        self.assertEqual(rates["x, fa 1"]["decode"], 4.43)

    def test_failures_name_the_program(self):
        folder = self.folder({"llama-bench": "echo no such model >&2; exit 3"})
        peer = bench_cpu.Peer("x", folder, 4)
        with self.assertRaisesRegex(bench_cpu.Failure, "llama-bench ended with 3: no such model"):
            peer.rates("m.gguf", bench_cpu.SCENARIOS["prompt of 4096"])
        with self.assertRaisesRegex(bench_cpu.Failure, "llama-batched-bench is missing"):
            peer.rates("m.gguf", bench_cpu.SCENARIOS["64 streams of 128 and 64"])

    def test_options(self):
        self.assertEqual(bench_cpu.parse(["--quick"]).rounds, 3)
        self.assertEqual(bench_cpu.parse(["--rounds", "8"]).rounds, 8)


if __name__ == "__main__":
    unittest.main(verbosity=2)
