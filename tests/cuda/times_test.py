#!/usr/bin/env python3
"""times_test.py OAR: the computed times of an 8B model's steps (`oar inspect --times`) are no less than its bytes take, its bytes are
those of weights and cache, and kernels/cuda/README.md has the same numbers."""
import json
import pathlib
import re
import subprocess
import sys
import unittest

OAR = sys.argv[1]
ROOT = pathlib.Path(__file__).resolve().parents[2]
SHAPE = ROOT / "configs/bench/llama-8b.json"
STREAMS, CONTEXT, PROMPT = (1, 16, 64), 1024, 2048
BANDWIDTH = 3.35e12  # bytes a second, of an H100: published
# Bits of a number in layers and in the head; int4 has a scale for 256 and sub-scales for 32, and a head of 6 bits.
BITS = {"bf16": (16, 16), "fp8": (8, 16), "int4": (4.5, 6.5625)}


def told(weights):
    said = subprocess.run([OAR, "inspect", SHAPE, "--device", "cuda_emulated", "--times", "--weights", weights, "--context", str(CONTEXT),
                           "--prompt-tokens", str(PROMPT), "--json"], text=True, capture_output=True, check=True).stdout
    return json.loads(said)


def parameters():
    """Of the layers' products, and of the head."""
    c = json.loads(SHAPE.read_text(encoding="utf-8"))
    hidden, wide, heads, own = c["hidden_size"], c["intermediate_size"], c["num_attention_heads"], c["num_key_value_heads"]
    head = c["head_dim"]
    layer = hidden * head * (2 * heads + 2 * own) + 3 * hidden * wide
    return c["num_hidden_layers"] * layer, c["vocab_size"] * hidden, c["num_hidden_layers"] * own * head


def between(rows):
    """Bytes that kernels hand each other in f32: of two norms with their sums, of products, of rotated heads and attention, of
    gates, and of logits."""
    c = json.loads(SHAPE.read_text(encoding="utf-8"))
    keys = c["num_key_value_heads"] * c["head_dim"]
    layer = 18 * c["hidden_size"] + 4 * c["intermediate_size"] + 7 * keys
    return 4 * rows * (c["num_hidden_layers"] * layer + 2 * c["vocab_size"])


class Times(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.told = {weights: told(weights) for weights in BITS}

    def test_they_are_marked_as_computed(self):
        for weights, all_of_it in self.told.items():
            self.assertIs(all_of_it["measured"], False)
            self.assertEqual([(s["sequences"], s["rows"], s["context"]) for s in all_of_it["steps"]],
                             [(n, 1, CONTEXT) for n in STREAMS] + [(1, PROMPT, PROMPT)], weights)

    def test_bytes_are_those_of_weights_and_cache(self):
        layers, head, kv = parameters()
        for weights, (bits, head_bits) in BITS.items():
            for step in self.told[weights]["steps"][:len(STREAMS)]:
                with self.subTest(weights=weights, sequences=step["sequences"]):
                    # Keys and values of bf16, or of 8 bits where the tier is that.
                    width = {"bf16": 2, "f16": 2, "int8": 1.02, "fp8": 1.02}[self.told[weights]["kv"]]
                    least = layers * bits / 8 + head * head_bits / 8 + step["sequences"] * CONTEXT * 2 * kv * width
                    self.assertGreater(step["bytes"], 0.98 * least)
                    self.assertLess(step["bytes"], 1.02 * (least + between(step["sequences"])))

    def test_no_step_is_faster_than_its_bytes(self):
        for weights, all_of_it in self.told.items():
            for step in all_of_it["steps"]:
                with self.subTest(weights=weights, sequences=step["sequences"], rows=step["rows"]):
                    self.assertGreater(step["computed_seconds"], step["bytes"] / BANDWIDTH)
                    by_kernel = sum(k["calls"] * k["computed_microseconds"] for k in step["kernels"]) / 1e6
                    self.assertAlmostEqual(by_kernel / step["computed_seconds"], 1, 3)
        # Fewer bits, less time, as long as a few rows wait for memory.
        alone = [self.told[w]["steps"][0]["computed_seconds"] for w in ("int4", "fp8", "bf16")]
        self.assertEqual(alone, sorted(alone))

    def test_draws_are_part_of_a_step(self):
        for step in self.told["bf16"]["steps"]:
            calls = {k["kernel"].split(".")[1]: k["calls"] for k in step["kernels"]}
            self.assertEqual(calls.get("sample"), 1)
            self.assertEqual(calls.get("feed_tokens"), 1 if step["rows"] == 1 else None)

    def test_calls_that_are_one_launch_are_told(self):
        # A layer that generates has three launches, and seven are beside them, as step_counters_test.cc counts what a step
        # does.
        layers = json.loads(SHAPE.read_text(encoding="utf-8"))["num_hidden_layers"]
        for weights, all_of_it in self.told.items():
            for step in all_of_it["steps"]:
                with self.subTest(weights=weights, sequences=step["sequences"], rows=step["rows"]):
                    for whole in ("calls", "launches"):
                        self.assertEqual(step[whole], sum(k[whole] for k in step["kernels"]))
                    self.assertLess(step["launches"], step["calls"])
                    if step["sequences"] == 1 and step["rows"] == 1:
                        self.assertEqual(step["launches"], 3 * layers + 7)

    def test_the_readme_has_them(self):
        text = (ROOT / "kernels/cuda/README.md").read_text(encoding="utf-8")
        for weights, all_of_it in self.told.items():
            steps = all_of_it["steps"]
            row = "| {} | {} | {:.0f} |".format(
                weights, " | ".join(f"{s['computed_seconds'] * 1e3:.2f} ms, {s['sequences'] / s['computed_seconds']:.0f}"
                                    for s in steps[:len(STREAMS)]), PROMPT / steps[-1]["computed_seconds"])
            self.assertRegex(text, "(?m)^" + re.escape(row), f"kernels/cuda/README.md should have\n{row}")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
