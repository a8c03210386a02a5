"""The wheel with the library in it: built, installed into an empty environment without a network, and run there."""
import glob
import os
import platform
import shutil
import subprocess
import sys
import tempfile
import unittest

SOURCE = os.environ["OAR_SOURCE_DIR"]
LIBRARY = os.environ["OAR_LIBRARY"]
PROGRAM = """
import oar, sys
assert "site-packages" in oar.__file__, oar.__file__
with oar.Model("demo", threads=2) as model:
    answer = model.generate("Speak, what news?", max_tokens=8, seed=1)
    assert answer.text and answer.usage.completion_tokens == 8, answer
with open("/proc/self/maps", encoding="utf-8") as maps:
    library = next(line.split()[5] for line in maps if "liboar.so" in line)
assert library.startswith(sys.prefix), library
print(answer.text)
"""


class Wheel(unittest.TestCase):
    def run_(self, *command, **kw):
        done = subprocess.run(command, capture_output=True, text=True, timeout=600, **kw)
        self.assertEqual(done.returncode, 0, f"{command}: {done.stdout}{done.stderr}")
        return done.stdout

    def test_installs_and_runs_where_nothing_else_is(self):
        # A newer system than Debian 12 builds for itself.
        old = tuple(map(int, platform.libc_ver()[1].split("."))) <= (2, 36)
        target = ("manylinux_2_36_" if old else "linux_") + platform.machine()
        with tempfile.TemporaryDirectory() as folder:
            self.run_(sys.executable, SOURCE + "/clients/python/build_wheel.py", LIBRARY, folder, *([] if old else ["auto"]))
            wheel, = glob.glob(folder + "/*.whl")
            if old:
                self.assertRegex(os.path.basename(wheel), rf"^oar-[\d.]+-py3-none-.*{target}\.whl$")
            self.assertEqual(os.path.exists(wheel + ".cdx.json"), shutil.which("dpkg") is not None)
            print(f"{os.path.basename(wheel)}: {os.path.getsize(wheel) / 1e6:.2f} MB")
            self.run_(sys.executable, "-m", "venv", folder + "/empty")
            python = folder + "/empty/bin/python"
            self.run_(python, "-m", "pip", "install", "-q", "--no-index", "--no-deps", "--disable-pip-version-check", wheel)
            env = {key: value for key, value in os.environ.items() if not key.startswith(("OAR_", "PYTHON", "LD_"))}
            self.assertGreater(len(self.run_(python, "-c", PROGRAM, env=env, cwd=folder)), 3)


if __name__ == "__main__":
    unittest.main()
