#!/usr/bin/env python3
"""eval_test.py OAR [--all]: the default model's perplexity on the emulated device is the processor's, within 0.1 %; of 4-bit weights 1 %."""
import json
import os
import pathlib
import subprocess
import sys
import tempfile
import unittest

OAR, ALL = sys.argv[1], "--all" in sys.argv
TEXT = """ROMEO:
What shall I say to her that is so fair,
And yet so far from all that I have been?
JULIET:
Good night, good night; I will not stay to hear.
"""


class Eval(unittest.TestCase):
    def perplexity(self, *options, libraries=""):
        with tempfile.TemporaryDirectory() as folder:
            text = pathlib.Path(folder) / "text"
            text.write_text(TEXT, encoding="utf-8")
            run = subprocess.run([OAR, "eval", "demo", "--text", text, "--json", *options], capture_output=True, text=True, check=False,
                                 env=dict(os.environ, OAR_CUDA_LIBRARIES=libraries))
        self.assertEqual(run.returncode, 0, run.stderr)
        return json.loads(run.stdout)["perplexity"]

    def test_of_weights_and_caches(self):
        # Behind weights of 4 bits the processor rounds rows to 8 bits; the device does not.
        kinds = [([], 1e-3), (["--kv", "int8"], 1e-3), (["--weights", "fp8"], 1e-3), (["--weights", "int4"], 1e-2)]
        for options, bound in kinds if ALL else kinds[:1]:
            with self.subTest(options=options):
                here, there = self.perplexity(*options), self.perplexity(*options, "--device", "cuda_emulated")
                self.assertLess(abs(there / here - 1), bound, (here, there))

    def test_of_prompts_by_warp_groups(self):
        # Rows are rounded to bf16, or e4m3 of which a number has 4 bits.
        kinds = [(["--weights", "fp8"], 2e-2), ([], 2e-3)]
        for options, bound in kinds if ALL else kinds[:1]:
            with self.subTest(options=options):
                here, there = self.perplexity(*options), self.perplexity(*options, "--device", "cuda_emulated", libraries="wgmma")
                self.assertLess(abs(there / here - 1), bound, (here, there))


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
