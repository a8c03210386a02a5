#!/usr/bin/env python3
"""The Debian packages: made by CPack, unpacked into a root of their own, and used there: the program serves the default
model, an example is compiled and linked against liboar-dev and answers. Needs cpack, dpkg-deb and dpkg-shlibdeps."""
import glob
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ["OAR_BUILD_DIR"]
SOURCE = os.environ["OAR_SOURCE_DIR"]
MISSING = [t for t in ("cpack", "dpkg-deb", "dpkg-shlibdeps", "pkg-config") if shutil.which(t) is None]


def run(*command, **kw):
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, **kw)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


@unittest.skipIf(MISSING, f"skipped: {', '.join(MISSING)} not installed")
class Packages(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.TemporaryDirectory()
        run("cpack", "-G", "DEB", "--config", os.path.join(BUILD, "CPackConfig.cmake"), "-B", cls.temp.name)
        cls.files = {}
        cls.root = os.path.join(cls.temp.name, "root")
        for path in glob.glob(os.path.join(cls.temp.name, "*.deb")):
            cls.files[os.path.basename(path).split("_")[0]] = path
            run("dpkg-deb", "-x", path, cls.root)
        cls.lib = os.path.dirname(glob.glob(os.path.join(cls.root, "usr/lib/**/liboar.so.0"), recursive=True)[0])
        cls.env = dict(os.environ, LD_LIBRARY_PATH=cls.lib)
        cls.env.pop("OAR_DEMO", None)

    @classmethod
    def tearDownClass(cls):
        cls.temp.cleanup()

    def field(self, package, name):
        return run("dpkg-deb", "-f", self.files[package], name).strip()

    def test_three_packages_and_what_they_need(self):
        # oar-cuda is there where nvcc is.
        self.assertEqual(set(self.files) - {"oar-cuda"}, {"oar", "liboar0", "liboar-dev"})
        libraries = set(re.findall(r"[a-z0-9+.-]+(?= |,|$)", re.sub(r"\([^)]*\)", "", self.field("liboar0", "Depends"))))
        self.assertEqual(libraries, {"libc6", "libgcc-s1", "libstdc++6"})
        self.assertIn("libgrpc++", self.field("oar", "Depends"))
        self.assertRegex(self.field("oar", "Depends"), r"\bliboar0\b")
        self.assertRegex(self.field("liboar-dev", "Depends"), r"^liboar0 \(= [\d.]+\)$")
        for package in self.files:
            self.assertRegex(self.field(package, "Description"), r"^\w.+\n ")
            print(f"{package}: {os.path.getsize(self.files[package]) / 1e6:.2f} MB")

    def test_nothing_lies_in_two_packages(self):
        seen = {}
        for package, path in self.files.items():
            for line in run("dpkg-deb", "-c", path).splitlines():
                if not line.startswith("d"):
                    name = line.split()[5]
                    self.assertNotIn(name, seen)
                    seen[name] = package
        self.assertEqual(seen["./usr/bin/oar"], "oar")
        self.assertEqual(seen["./usr/include/oar.h"], "liboar-dev")
        self.assertEqual(seen["./usr/lib/systemd/system/oar.service"], "oar")

    def test_the_program_finds_its_model(self):
        out = run(os.path.join(self.root, "usr/bin/oar"), "generate", "demo", "--prompt", "ROMEO:", "--max-tokens", "8", env=self.env)
        self.assertGreater(len(out), 3)

    def test_an_example_is_built_against_them(self):
        env = dict(self.env, PKG_CONFIG_PATH=os.path.join(self.lib, "pkgconfig"))
        flags = run("pkg-config", "--cflags", "--libs", "oar", env=env).split()
        self.assertTrue(all(self.root in f for f in flags if f.startswith(("-I", "-L"))), flags)
        program = os.path.join(self.temp.name, "chat")
        run("cc", "-std=c11", os.path.join(SOURCE, "clients/c/chat.c"), *flags, "-o", program)
        self.assertGreater(len(run(program, "demo", input="Good morrow\n", env=self.env).strip()), 3)

    def test_cmake_finds_them(self):
        project = os.path.join(self.temp.name, "project")
        os.mkdir(project)
        with open(os.path.join(project, "CMakeLists.txt"), "w", encoding="utf-8") as out:
            out.write("cmake_minimum_required(VERSION 3.22)\nproject(user C)\nfind_package(oar 0.1 REQUIRED)\n"
                      f"add_executable(tokens {SOURCE}/clients/c/tokens.c)\ntarget_link_libraries(tokens oar::oar)\n")
        run("cmake", "-S", project, "-B", project + "/build", f"-DCMAKE_PREFIX_PATH={self.root}/usr")
        run("cmake", "--build", project + "/build")
        self.assertRegex(run(project + "/build/tokens", os.path.join(SOURCE, "configs/demo"), env=self.env), r"^\d+( \d+)+\n")


if __name__ == "__main__":
    unittest.main()
