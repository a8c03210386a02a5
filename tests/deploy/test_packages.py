#!/usr/bin/env python3
"""The Debian packages: made by CPack, unpacked into a root of their own, and used there: the program serves the default
model, an example is compiled and linked against liboar-dev and answers. Needs cpack, dpkg-deb and dpkg-shlibdeps."""
import glob
import gzip
import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

from test_bundle import LIBRARIES, LIMIT, size_of

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
        self.assertNotIn("liboar0", self.field("oar", "Depends"))  # it has the engine and the default model in itself
        self.assertRegex(self.field("liboar-dev", "Depends"), r"^liboar0 \(= [\d.]+\)$")
        for package in self.files:
            self.assertRegex(self.field(package, "Description"), r"^\w.+\n ")
            print(f"{package}: {os.path.getsize(self.files[package]) / 1e6:.2f} MB")

    def test_a_bundle_of_them_stays_small(self):
        """What ./dev bundle packs is the same but for the server, so it is less."""
        if "oar-cuda" not in self.files:
            self.skipTest("skipped: built without nvcc")
        program, demo = os.path.join(self.root, "usr/bin/oar"), os.path.join(self.root, "usr/share/oar/demo")
        parts = {"program": os.path.getsize(program) - size_of(demo),  # a bundle has the model once, in its folder
                 "library": os.path.getsize(os.path.realpath(self.lib + "/liboar.so.0")), "demo": size_of(demo),
                 "plug-in": os.path.getsize(os.path.join(self.root, "usr/lib/oar/liboar_cuda.so"))}
        for path in set(re.findall(r"=> (/\S+)", run("ldd", program))):
            name = os.path.basename(path).split(".so")[0]
            if name in LIBRARIES:
                parts[name] = os.path.getsize(os.path.realpath(path))
        self.assertIn("libstdc++", parts)
        print("a bundle: at most", ", ".join(f"{name} {size / 1e6:.1f}" for name, size in parts.items()), "MB")
        self.assertLess(sum(parts.values()), LIMIT)

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

    def test_papers(self):
        for package, path in self.files.items():
            names = {line.split()[5] for line in run("dpkg-deb", "-c", path).splitlines()}
            self.assertLessEqual({f"./usr/share/doc/{package}/copyright", f"./usr/share/doc/{package}/changelog.gz"}, names)
            # What is in it, beside it.
            with open(path.removesuffix(".deb") + ".deb.cdx.json", encoding="utf-8") as f:
                bill = json.load(f)
            with open(path, "rb") as f:
                self.assertEqual(bill["metadata"]["component"]["hashes"][0]["content"], hashlib.sha256(f.read()).hexdigest())
            if package != "liboar-dev":
                self.assertIn("libc6", {c["name"] for c in bill["components"]})
            for component in bill["components"]:
                self.assertRegex(component["purl"], r"^pkg:deb/\w+/[\w.%-]+@[\w.%~-]+\?arch=\w+&distro=\S+$")
        triplet = run("dpkg-architecture", "-qDEB_HOST_MULTIARCH").strip()
        self.assertEqual(self.lib, os.path.join(self.root, "usr/lib", triplet))
        self.assertRegex(run("dpkg-deb", "-I", self.files["liboar0"], "shlibs"), r"^liboar 0 liboar0 \(>= [\d.]+\)\n$")
        for script in ("postinst", "prerm", "postrm"):
            self.assertIn("#!/bin/sh", run("dpkg-deb", "-I", self.files["oar"], script))

    def test_manual_pages(self):
        """One for the program and one for each command, with every option that --help names."""
        oar = os.path.join(BUILD, "bin/oar")
        folder = os.path.join(self.root, "usr/share/man/man1")
        commands = re.findall(r"^  ([a-z]+) ", run(oar, "--help").split("Subcommands:")[1].split("\n\n")[0], re.M)
        self.assertIn("serve", commands)
        self.assertEqual(set(os.listdir(folder)), {"oar.1.gz"} | {f"oar-{c}.1.gz" for c in commands})
        for command in ("serve", "health", "quantize"):
            with gzip.open(f"{folder}/oar-{command}.1.gz", "rt", encoding="utf-8") as f:
                text = f.read()
            self.assertIn(f".TH OAR-{command.upper()} 1", text)
            tagged = " ".join(re.findall(r"^\.TP\n\\fB(.*)\\fR$", text, re.M)).replace("\\-", "-")
            for option in re.findall(r"^  (-[^ ]+)", run(oar, command, "--help"), re.M):
                self.assertIn(option, tagged)

    @unittest.skipIf(shutil.which("lintian") is None, "skipped: lintian not installed")
    def test_lintian(self):
        done = subprocess.run(["lintian", "--allow-root", "--fail-on", "error", *self.files.values()], capture_output=True, text=True, timeout=600)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)

    def test_the_program_needs_no_other_package_of_ours(self):
        alone = os.path.join(self.temp.name, "alone")
        run("dpkg-deb", "-x", self.files["oar"], alone)
        env = {k: v for k, v in self.env.items() if k != "LD_LIBRARY_PATH"}
        out = run(os.path.join(alone, "usr/bin/oar"), "generate", "demo", "--prompt", "ROMEO:", "--max-tokens", "8", env=env)
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
