#!/usr/bin/env python3
"""The archive that `./dev bundle` makes: its size, and that the program in it runs in a root where there is nothing else but
the C library. Needs a kernel that lets this user make namespaces, and ldd."""
import glob
import os
import re
import shutil
import subprocess
import tarfile
import tempfile
import unittest

LIMIT = 64e6
# What it may have beside our own: of these, test_packages.py counts the sizes in every run.
LIBRARIES = {"libbsd", "libedit", "libfmt", "libgcc_s", "libjpeg", "libmd", "libpng16", "libspdlog", "libstdc++", "libtinfo", "libz"}
C_LIBRARY = re.compile(r"^(libc|libm|libdl|librt|libpthread|libresolv)\.so")
# Mounts /proc in the root, from which a program learns where it lies.
MOUNT = 'mount -t proc proc "$0/proc"'
NAMESPACES = ["unshare", "--map-root-user", "--mount", "--pid", "--fork", "sh", "-c"]
ENTER = [*NAMESPACES, MOUNT + ' && exec chroot "$0" "$@"']  # ROOT PROGRAM ARGUMENT...
MISSING = [t for t in ("unshare", "ldd", "chroot") if shutil.which(t) is None]


def size_of(folder):
    paths = [os.path.join(at, f) for at, _, files in os.walk(folder) for f in files]
    return sum(os.path.getsize(p) for p in paths if not os.path.islink(p))


def may_enter():
    with tempfile.TemporaryDirectory() as root:
        os.mkdir(root + "/proc")
        done = subprocess.run([*NAMESPACES, MOUNT, root], capture_output=True, text=True)
        return "" if done.returncode == 0 else done.stderr.strip() or "unshare failed"


class Bundle(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.TemporaryDirectory()
        cls.root = cls.temp.name
        cls.archive = os.environ["OAR_BUNDLE"]
        with tarfile.open(cls.archive) as archive:
            archive.extractall(cls.root + "/anywhere")
        cls.home = glob.glob(cls.root + "/anywhere/oar-*")[0]
        os.mkdir(cls.root + "/proc")
        os.mkdir(cls.root + "/tmp")
        # The loader and the C library, from where this machine has them.
        for line in subprocess.run(["ldd", cls.home + "/bin/oar"], capture_output=True, text=True).stdout.splitlines():
            for path in re.findall(r"(/\S+)", line):
                if "ld-linux" in path or C_LIBRARY.match(os.path.basename(path)):
                    os.makedirs(cls.root + os.path.dirname(path), exist_ok=True)
                    shutil.copy(path, cls.root + path)

    @classmethod
    def tearDownClass(cls):
        cls.temp.cleanup()

    def oar(self, *arguments):
        inside = "/" + os.path.relpath(self.home, self.root) + "/bin/oar"
        return subprocess.run([*ENTER, self.root, inside, *arguments], capture_output=True, text=True, timeout=120, env={})

    def test_size_and_contents(self):
        packed, unpacked = os.path.getsize(self.archive), size_of(self.home)
        print(f"bundle: {packed / 1e6:.1f} MB packed, {unpacked / 1e6:.1f} MB unpacked")
        self.assertLess(unpacked, LIMIT)
        files = {os.path.relpath(p, self.home) for p in glob.glob(self.home + "/**", recursive=True)}
        for name in ("bin/oar", "lib/liboar.so.0", "lib/libstdc++.so.6", "lib/oar/liboar_cuda.so", "share/oar/demo/config.json"):
            self.assertIn(name, files)
        libraries = {name.split(".so")[0] for name in os.listdir(self.home + "/lib") if ".so" in name}
        self.assertLessEqual(libraries, LIBRARIES | {"liboar"})
        for name in files:
            self.assertNotRegex(os.path.basename(name), C_LIBRARY)
            self.assertFalse(name.endswith((".a", ".h")), name)

    @unittest.skipIf(MISSING, f"skipped: {', '.join(MISSING)} not installed")
    def test_it_runs_where_there_is_only_a_c_library(self):
        obstacle = may_enter()
        if obstacle:
            self.skipTest(f"skipped: no namespaces for this user: {obstacle}")
        done = self.oar("generate", "demo", "--prompt", "ROMEO:", "--max-tokens", "8")
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertGreater(len(done.stdout), 3)

    @unittest.skipIf(MISSING, f"skipped: {', '.join(MISSING)} not installed")
    def test_the_plug_in_is_found_and_says_that_there_is_no_driver(self):
        obstacle = may_enter()
        if obstacle:
            self.skipTest(f"skipped: no namespaces for this user: {obstacle}")
        done = self.oar("generate", "demo", "--prompt", "ROMEO:", "--max-tokens", "8", "--device", "cuda")
        self.assertEqual(done.returncode, 1, done.stdout)
        self.assertNotIn("No such file", done.stderr)
        self.assertRegex(done.stderr, "(?i)driver|no .*device")


if __name__ == "__main__":
    unittest.main()
