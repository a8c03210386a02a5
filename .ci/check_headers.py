#!/usr/bin/env python3
"""Compiles headers alone: check_headers.py [--build build/release] [--jobs N] [--all] [HEADER...].

A header that needs another one first is a trap for the next who includes it. Each is given to the compiler as a file of its
own (-fsyntax-only); the build folder must hold the generated sources. Without --all those are left out that some source file
includes first: whoever compiles file by file (presets fuzz and cuda, which have no server) has proven the same of them.
"""
import argparse
import concurrent.futures
import os
import platform
import re
import subprocess
import sys

AVX2 = ["-mavx2", "-mfma", "-mf16c"]
AVX512 = AVX2 + ["-mavx512f", "-mavx512bw", "-mavx512vl", "-mavx512dq", "-mavx512vnni", "-mavx512bf16"]
AMX = AVX512 + ["-mamx-tile", "-mamx-bf16", "-mamx-int8"]
# Warnings inside g++ 12's own intrinsics.
QUIET = ["-Wno-uninitialized", "-Wno-maybe-uninitialized"]
# The kernels that are written once for all sets want to know where they are put.
SIMD = ["-DOAR_SIMD_NAMESPACE=header_check"]
VERSION = '-DOAR_VERSION="0"'  # the build says which


def of_cuda(header):
    return header.startswith(("kernels/cuda/", "tests/cuda/"))


def has_toolkit(compiler):
    """Whether the headers of the CUDA toolkit are there."""
    source = subprocess.run([compiler, "-E", "-x", "c++", "-include", "cuda_runtime_api.h", "/dev/null"], capture_output=True)
    return source.returncode == 0


def flag_sets(header, x86):
    """Sets of flags of which one must do: a header written for one instruction set needs that set's flags."""
    if header.startswith("kernels/cpu/") and x86:
        return [AMX + QUIET + SIMD, SIMD]
    if of_cuda(header):
        return [["-Wno-unknown-pragmas"]]
    return [[]]


def check(compiler, build, header, x86):
    """(header, None) or (header, the compiler's message)."""
    message = None
    for flags in flag_sets(header, x86):
        run = subprocess.run(
            [compiler, "-std=c++20", "-fsyntax-only", "-Wall", "-Wextra", "-Werror", "-Wno-missing-field-initializers",
             "-Wno-unused-function", "-I.", f"-I{build}/generated", "-isystem", f"{build}/proto/gen", VERSION, *flags,
             "-x", "c++", "-include", header, "/dev/null"],
            capture_output=True, text=True)
        if run.returncode == 0:
            return header, None
        message = message or run.stderr
    return header, message


def included_first():
    """The headers with which a source file begins."""
    found = set()
    for name in tracked("*.cc") + tracked("*.cu"):
        with open(name, encoding="utf-8") as source:
            first = next((line for line in source if line.startswith("#include")), "")
        found.update(re.findall('"(.+)"', first))
    return found


def tracked(pattern):
    names = subprocess.run(["git", "ls-files", "-z", pattern], check=True, capture_output=True, text=True).stdout.split("\0")
    return [name for name in names if name and os.path.exists(name)]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--build", default="build/release")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--all", action="store_true")
    parser.add_argument("header", nargs="*")
    arguments = parser.parse_args()
    os.chdir(os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    if not os.path.isdir(f"{arguments.build}/generated"):
        sys.exit(f"{arguments.build}/generated is missing: ./dev build first")
    x86 = platform.machine() in ("x86_64", "AMD64")
    headers = arguments.header or tracked("*.h")
    if x86:
        headers = [h for h in headers if not h.endswith("_neon.h")]
    if not arguments.all and not arguments.header:
        proven = included_first()
        headers = [h for h in headers if h not in proven]
    compiler = os.environ.get("CXX", "g++")
    if not has_toolkit(compiler):
        print("skipped: headers of kernels/cuda and tests/cuda, without the CUDA toolkit's")
        headers = [h for h in headers if not of_cuda(h)]
    failed = 0
    with concurrent.futures.ThreadPoolExecutor(arguments.jobs) as pool:
        for header, message in pool.map(lambda h: check(compiler, arguments.build, h, x86), headers):
            if message is not None:
                failed += 1
                print(f"{header} does not compile alone:\n{message}", flush=True)
    print(f"{len(headers)} headers, {failed} do not compile alone")
    sys.exit(1 if failed or not headers else 0)


if __name__ == "__main__":
    main()
