#!/usr/bin/env python3
"""Checks who includes whom: check_arrows.py [ROOT].

The rooms of the house form a line, never a circle. ALLOWED says, for each room, which other rooms its files may include
(its own is always allowed); THIRD_PARTY says in which rooms a foreign header may appear. Prints one line per include that
breaks a rule, with the rule, and exits with 1. USES names words of the engine that few files may use. An arrow missing here is a decision to be taken, not a line to be added in
passing.
"""
import os
import re
import subprocess
import sys

BELOW_GRAPH = {"quant", "kernels", "engine/base", "engine/tensor"}
BELOW_OPS = BELOW_GRAPH | {"engine/graph"}
BELOW_MODELS = BELOW_OPS | {"engine/ops", "engine/graph/passes", "engine/loader"}
BELOW_RUNTIME = BELOW_MODELS | {"engine/models", "engine/text", "engine/import"}
BELOW_TUNE = BELOW_RUNTIME | {"engine/runtime", "engine/runtime/core", "engine/vision"}
ENGINE = BELOW_TUNE | {"engine/tune/measure", "engine/tune/quantize", "engine/capi"}
# What a server may know of the engine: the facades, requests, text, status. Not tensors, graphs, kernels.
SERVER = {"engine/base", "engine/runtime", "engine/runtime/core", "engine/text"}

ALLOWED = {
    "quant": set(),
    "kernels": {"quant", "kernels/cpu/matmul"},  # layouts of weights, and the driver of every matmul
    # What the families of kernels share lies in kernels/cpu itself; the engine includes none of this.
    "kernels/cpu/matmul": {"quant", "kernels"},
    "kernels/cpu/attention": {"quant", "kernels"},
    "kernels/cpu/elementwise": {"quant", "kernels"},
    # image_<isa>.cc enters every kernel of ordinary models.
    "kernels/cpu/conv": {"quant", "kernels", "kernels/cpu/elementwise"},
    "engine/base": set(),
    "engine/tensor": {"quant", "kernels", "engine/base"},
    "engine/graph": BELOW_GRAPH,
    # Passes rewrite graphs made of ops they know by name and attribute, never by including engine/ops.
    "engine/graph/passes": BELOW_OPS,
    "engine/ops": BELOW_OPS,
    "engine/loader": BELOW_GRAPH,
    "engine/import": BELOW_OPS | {"engine/ops", "engine/loader"},
    "engine/export": BELOW_OPS | {"engine/ops", "engine/loader", "engine/import"},
    "engine/models": BELOW_MODELS,
    "engine/text": {"engine/base"},
    "engine/vision": {"engine/base"},
    # What runs next: pure logic. It never includes a facade, a model or a tensor. Of kernels it has sample.h, the arithmetic
    # that samplers share.
    "engine/runtime/core": {"engine/base", "kernels"},
    "engine/runtime": BELOW_RUNTIME | {"engine/runtime/core"},
    # Whoever quantizes measures first; whoever measures never quantizes.
    "engine/tune/measure": BELOW_TUNE,
    "engine/tune/quantize": BELOW_TUNE | {"engine/tune/measure"},
    "engine/capi": BELOW_TUNE,
    # What was trained leaves as a file of ours, or as the network it came as.
    "train": ENGINE | {"engine/export"},
    "proto": set(),
    "server/api": SERVER,
    "server/tls": {"engine/base"},
    "server/metrics": SERVER | {"server/api"},
    "server/ui": {"engine/base"},
    "server/repository": SERVER | {"server/api"},
    "server/http": SERVER | {"server/api", "server/tls"},
    "server/grpc": SERVER | {"server/api", "server/tls", "server/metrics", "proto"},
    "server": SERVER | {"server/api", "server/tls", "server/metrics", "server/ui", "server/repository", "server/http", "server/grpc"},
    "clients/cpp": {"proto"},
    "clients/c": {"engine/capi"},
    "clients": None,  # the one leaf that sees everything
    "tests": None,
}
ALLOWED["engine/graph"] = ALLOWED["engine/graph"] | {"engine/graph/passes"}

BOOST_JSON = r"boost/json\b"
THIRD_PARTY = [  # header, rooms where it may appear
    (BOOST_JSON, ("engine", "server", "clients", "tests", "train")),
    (r"boost/", ("server/http", "server/api", "tests/server", "tests/loadtest", "clients")),
    (r"(grpc|grpcpp|google/protobuf)/", ("server/grpc", "proto", "clients", "tests/server", "tests/bench")),
    (r"prometheus/", ("server/metrics",)),
    (r"zlib\.h", ("server/http",)),  # codings of bodies; libpng and gRPC bring it anyway
    (r"openssl/", ("server", "clients", "tests/server")),
    (r"spdlog/", ("clients",)),
    (r"CLI/", ("clients", "tests/bench")),
    (r"(jpeglib|png)\.h", ("clients", "tests")),
    (r"histedit\.h", ("clients",)),
    (r"catch2/", ("tests",)),
    (r"oar\.h$", ("clients/c",)),  # as an installed library's header: the examples are what a user writes
    (r"(cuda|cublas|cudnn|cuda_runtime|nvrtc|vector_functions\.h|vector_types\.h)", ("kernels/cuda", "engine/tensor", "tests/cuda")),
]
# The C++ library (names without a dot), POSIX and SIMD.
PLATFORM = re.compile(
    r"^([a-z0-9_]+|(sys|netinet|arpa|net|linux|asm)/[a-z0-9_/]+\.h|"
    r"(arm_neon|cpuid|cxxabi|dirent|dlfcn|errno|fcntl|immintrin|inttypes|langinfo|malloc|netdb|poll|pthread|sched|signal|spawn|stddef|stdint|stdio|stdlib|string|strings|termios|time|unistd)\.h)$")
PROTO = re.compile(r"^(oar/v1|inference|google)/.*\.pb\.h$")
GENERATED = re.compile(r"^oar_[a-z_]+\.(inc|h)$")
INCLUDE = re.compile(r'^[ \t]*#[ \t]*include[ \t]*([<"])([^>"\n]+)[>"]', re.M)


# Words that only these files and folders of the engine may use, and why.
USES = [
    (r"\b(KernelRegistry::cpu|best_isa)\(", ("engine/tensor/backend_cpu.cc", "engine/runtime/predictor.cc",
                                             "engine/runtime/serving_plan.cc"),
     "kernels are found through a Backend; a facade alone chooses the processor's level"),
    # Constants are folded, weights rotated and models calibrated before there is a backend.
    (r"\bcalling_thread_backend\(", ("engine/tensor/backend.h", "engine/tensor/backend_cpu.cc", "engine/graph/evaluate.h",
                                      "engine/ops/hadamard.cc",
                                      "engine/runtime/calibration.h"),
     "kernels are those of the Backend that a graph runs on"),
    (r"\boptions\(\)\.backend\b|_cast<[^>]*KernelContext", (),
     "evaluate() calls no kernel: it is what they are held against"),
]


def room_of(path):
    """The longest known room that the path lies in."""
    folders = path.split("/")[:-1]
    for n in range(len(folders), 0, -1):
        room = "/".join(folders[:n])
        if room in ALLOWED:
            return room
    return None


def complaint(path, kind, target):
    """Why this include breaks a rule, or None."""
    room = room_of(path)
    if room is None:
        return "lies in no room known to .ci/check_arrows.py"
    if GENERATED.match(target):
        return None
    if PROTO.match(target):
        allowed = ALLOWED[room]
        return None if allowed is None or "proto" in allowed or room == "proto" else f"{room} may not include generated protobuf code"
    if kind == '"':
        other = room_of(target)
        if other is None or not os.path.exists(target):
            return "names no file from the root of the repository"
        allowed = ALLOWED[room]
        if other == room or allowed is None or other in allowed:
            return None
        return f"{room} may not include {other}"
    for pattern, rooms in THIRD_PARTY:
        if re.match(pattern, target):
            if any(path.startswith(r + "/") for r in rooms):
                return None
            return f"<{target}> may appear only under {', '.join(rooms)}"
    return None if PLATFORM.match(target) else f"<{target}> is no dependency that was decided on"


def circle():
    """A circle in ALLOWED itself, as a list of rooms, or None."""
    done, path = set(), []

    def visit(room):
        if room in path:
            return path[path.index(room):] + [room]
        if room in done:
            return None
        path.append(room)
        for other in sorted(ALLOWED[room] or ()):
            # A parent and its parts are one room when it comes to circles.
            if other in ALLOWED and not other.startswith(room + "/") and not room.startswith(other + "/"):
                if found := visit(other):
                    return found
        path.pop()
        done.add(room)
        return None

    for room in ALLOWED:
        if found := visit(room):
            return found
    return None


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    if found := circle():
        sys.exit("the arrows form a circle: " + " <- ".join(found))
    listed = subprocess.run(["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"], check=True,
                            capture_output=True, text=True).stdout.split("\0")
    sources = [p for p in listed if re.search(r"\.(h|cc|cu|cuh|inc|c)$", p) and os.path.exists(p)]
    includes = broken = 0
    used = set()
    for path in sources:
        with open(path, encoding="utf-8", errors="replace") as source:
            text = source.read()
        for m in INCLUDE.finditer(text):
            includes += 1
            if why := complaint(path, m[1], m[2]):
                broken += 1
                print(f'{path}:{text.count(chr(10), 0, m.start()) + 1}: #include "{m[2]}": {why}')
        for pattern, files, why in USES if path.startswith("engine/") else ():
            for m in re.finditer(pattern, text):
                if path in files:
                    used.add((pattern, path))
                    continue
                broken += 1
                print(f"{path}:{text.count(chr(10), 0, m.start()) + 1}: {m[0]}: {why}")
    for pattern, files, _ in USES:
        for path in files:
            if (pattern, path) not in used:
                broken += 1
                print(f".ci/check_arrows.py: {path} no longer uses {pattern}")
    print(f"{len(sources)} files, {includes} includes, {broken} against the arrows")
    sys.exit(1 if broken or not includes else 0)


if __name__ == "__main__":
    main()
