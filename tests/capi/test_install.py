#!/usr/bin/env python3
"""What a user of the library gets: installs the build into a folder and checks symbols, size, needs, the pkg-config and
CMake packages, and every example program, C, C++ and Python. Standard library, binutils and the compiler only."""
import os
import re
import shutil
import subprocess
import sys
import tempfile
import unittest

BUILD = os.environ["OAR_BUILD_DIR"]
SOURCE = os.environ["OAR_SOURCE_DIR"]
EXAMPLES = os.path.join(SOURCE, "clients/c")
DEMO = os.path.join(SOURCE, "configs/demo")


def run(*command, **kw):
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, **kw)
    if done.returncode != 0:
        raise AssertionError(f"{' '.join(command)} exited {done.returncode}:\n{done.stdout}\n{done.stderr}")
    return done.stdout


def works(program):
    """Whether it starts: rustup leaves a rustc that only says that no toolchain is installed."""
    if shutil.which(program) is None:
        return False
    return subprocess.run([program, "--version"], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL).returncode == 0


class Installed(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.TemporaryDirectory()
        cls.prefix = os.path.join(cls.temp.name, "usr")
        for component in ("library", "development"):
            run("cmake", "--install", BUILD, "--prefix", cls.prefix, "--component", component)
        found = [os.path.join(d, f) for d, _, files in os.walk(cls.prefix) for f in files]
        cls.files = {os.path.basename(f): f for f in found}
        cls.library = next(f for name, f in cls.files.items() if re.fullmatch(r"liboar\.so\.\d+\.\d+\.\d+", name))
        cls.lib = os.path.dirname(cls.library)
        cls.env = dict(os.environ, LD_LIBRARY_PATH=cls.lib, PKG_CONFIG_PATH=os.path.join(cls.lib, "pkgconfig"))
        cls.env.pop("OAR_DEMO", None)

    @classmethod
    def tearDownClass(cls):
        cls.temp.cleanup()

    def test_needs_nothing_but_the_c_and_cpp_runtimes(self):
        dynamic = run("readelf", "-d", "-W", self.library)
        needed = re.findall(r"NEEDED.*\[(.*)\]", dynamic)
        allowed = re.compile(r"(libc|libm|libgcc_s|libstdc\+\+|libpthread|libdl|ld-linux.*)\.so\.\d+$")
        self.assertTrue(needed)
        self.assertEqual([n for n in needed if not allowed.match(n)], [])
        self.assertRegex(dynamic, r"SONAME.*\[liboar\.so\.0\]")

    def test_exports_the_header_and_nothing_else(self):
        symbols = run("readelf", "--dyn-syms", "-W", self.library)
        exported = set()
        for line in symbols.splitlines():
            f = line.split()
            if len(f) >= 8 and f[4] in ("GLOBAL", "WEAK", "UNIQUE") and f[6] not in ("UND", "ABS"):
                exported.add(f[7].split("@")[0])
        with open(os.path.join(SOURCE, "engine/capi/oar.h"), encoding="utf-8") as header:
            declared = set(re.findall(r"^OAR_API [\w* ]*?(oar_\w+)\(", header.read(), re.M))
        self.assertGreater(len(declared), 20)
        self.assertEqual(exported, declared)

    def test_is_small(self):
        stripped = os.path.join(self.temp.name, "stripped.so")
        run("strip", "-o", stripped, self.library)
        size = os.path.getsize(stripped)
        print(f"liboar.so stripped: {size / 1e6:.2f} MB")
        self.assertLess(size, 13e6)

    def test_header_is_c11_and_cpp(self):
        for name in ("oar.h", "oar_plugin.h"):
            for compiler, options in (("cc", ["-std=c11", "-x", "c"]), ("c++", ["-std=c++11", "-x", "c++"])):
                run(compiler, *options, "-pedantic", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", self.files[name])

    def test_pkg_config_builds_the_example_and_it_answers(self):
        if shutil.which("pkg-config") is None:
            self.skipTest("no pkg-config")
        flags = run("pkg-config", "--cflags", "--libs", "oar", env=self.env).split()
        program = os.path.join(self.temp.name, "chat")
        with open(os.path.join(EXAMPLES, "chat.c"), encoding="utf-8") as source:
            self.assertLessEqual(len(source.readlines()), 40)
        run("cc", "-std=c11", "-Wall", "-Werror", os.path.join(EXAMPLES, "chat.c"), *flags, "-o", program)
        # `demo` is found beside the installed library.
        # Sampled without a seed: one answer may be as short as "Ha!", eight in a row are not.
        answer = run(program, "demo", input='Good "morrow" \\ friend\n' * 8, env=self.env)
        self.assertGreaterEqual(answer.count("\n"), 8)
        self.assertGreater(len(answer.strip()), 3 * 8)

    def test_cmake_package_shared_and_static(self):
        project = os.path.join(self.temp.name, "project")
        os.mkdir(project)
        with open(os.path.join(project, "CMakeLists.txt"), "w", encoding="utf-8") as out:
            out.write("cmake_minimum_required(VERSION 3.22)\nproject(user C CXX)\nfind_package(oar REQUIRED)\n")
            for kind, target in (("shared", "oar::oar"), ("static", "oar::oar_static")):
                out.write(f"add_executable({kind} {EXAMPLES}/tokens.c)\ntarget_link_libraries({kind} {target})\n")
        build = os.path.join(project, "build")
        run("cmake", "-S", project, "-B", build, f"-DCMAKE_PREFIX_PATH={self.prefix}")
        run("cmake", "--build", build)
        shared = run(os.path.join(build, "shared"), DEMO, env=self.env)
        static = run(os.path.join(build, "static"), DEMO, env=dict(os.environ))
        self.assertEqual(shared, static)
        self.assertRegex(shared, r"^\d+( \d+)+\n")

    def test_cpp_example(self):
        answer = run(os.path.join(BUILD, "bin/example_parallel"), DEMO)
        self.assertEqual(answer.count("---"), 4)
        self.assertRegex(answer, r"96 tokens in \d+ steps")

    @unittest.skipUnless(works("rustc"), "skipped: no rustc, or one without a toolchain")
    def test_rust_example(self):
        program = os.path.join(self.temp.name, "tokens_rs")
        run("rustc", "-D", "warnings", "-A", "dead_code", "--edition", "2021", os.path.join(EXAMPLES, "tokens.rs"), "-L", self.lib, "-l", "oar", "-o", program)
        # Sampled without a seed: one answer in a hundred is empty or nothing but line ends.
        answers = [run(program, DEMO, "Good morrow!", env=self.env) for _ in range(4)]
        for answer in answers:
            self.assertRegex(answer, r"^\d+( \d+)+\n")
        self.assertTrue(any(re.search(r"\n\s*\S", answer) for answer in answers), answers)
        failed = subprocess.run([program, "/nonexistent"], capture_output=True, text=True, timeout=240, env=self.env)
        self.assertEqual(failed.returncode, 1)
        self.assertIn("/nonexistent", failed.stderr)

    def test_python_example(self):
        answer = run(sys.executable, os.path.join(EXAMPLES, "chat.py"), self.library, "demo", "Good morrow!", env=self.env)
        self.assertRegex(answer, r"\d+ tokens, the first after \d+\.\d+ s")


if __name__ == "__main__":
    unittest.main()
