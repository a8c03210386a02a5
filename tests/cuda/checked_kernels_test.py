#!/usr/bin/env python3
"""checked_kernels_test.py BIN: what ./dev gpu has the sanitizer watch launches every kernel of kernels/cuda, seen on the emulated device."""
import os
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

HERE = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(HERE))
import gpu_steps  # noqa: E402

BIN = pathlib.Path(sys.argv.pop(1)).resolve()
SOURCES = HERE.parents[1] / "kernels/cuda"


def names_in(binary):
    """Of each function of a program or library, by where it lies."""
    said = subprocess.run(["nm", "--demangle", "--defined-only", binary], stdout=subprocess.PIPE, text=True, check=True).stdout
    return {int(address, 16): name for address, _, name in (line.split(" ", 2) for line in said.splitlines())}


def launched(file):
    """Names of kernels, without what they are a template of; the file has lines `BINARY WHERE` (emulation/runtime.h)."""
    binaries, names = {}, set()
    for line in file.read_text(encoding="utf-8").splitlines():
        binary, where = line.rsplit(" ", 1)
        if binary not in binaries: binaries[binary] = names_in(binary)
        whole = binaries[binary][int(where, 16)].replace("(anonymous namespace)", "")
        names.add(re.search(r"(\w+)[<(]", whole).group(1))
    return names


class Checked(unittest.TestCase):
    def test_every_kernel_is_launched(self):
        with tempfile.TemporaryDirectory() as folder:
            file = pathlib.Path(folder) / "kernels"
            env = {**os.environ, "OAR_CUDA_EMULATED": f"kernels={file}"}
            commands = [([BIN / "oar", "check", "demo", "--device", "cuda_emulated", *options], used) for used, options in gpu_steps.CHECKED]
            commands += [([BIN / "test_cuda_emulated", name], "") for name in gpu_steps.BESIDE_CHECK]
            for command, used in commands:
                done = subprocess.run(command, env={**env, "OAR_CUDA_LIBRARIES": used}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
                self.assertEqual(done.returncode, 0, done.stdout)
            seen = launched(file)
        text = "".join(path.read_text(encoding="utf-8") for path in sorted([*SOURCES.glob("*.cu"), *SOURCES.glob("*.h")]))
        kernels = set(re.findall(r"__global__[^;{]*?\b([a-z]\w*)\((?=[A-Za-z])(?!k[A-Z])", text))
        self.assertGreater(len(kernels), 40)
        self.assertEqual(kernels - seen, set(), "kernels that nothing under the sanitizer launches (gpu_steps.py)")


if __name__ == "__main__":
    unittest.main()
