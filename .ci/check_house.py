#!/usr/bin/env python3
"""Checks that one idea stands in the house once: check_house.py [ROOT].

  ops       an op that is defined by no others is a line of engine/ops/primitives.txt, with the reason, an op of training one of
            engine/ops/train/primitives.txt; no two ops are twins.
  once      the kinds of type of which there is one: a builder, a memory planner, an owner of weights, a list of patterns.
  oracle    evaluate() of an op has no kernels to call (EvalContext): it is what they are held against. That nobody asks the
            processor for one is a rule of check_arrows.py.
  models    a file of an architecture is short (LONGEST, MEDIAN lines), and files that architectures share name none of them.
  training  train/ has less than TRAINING_LINES lines of code, and the gradient of an op less than GRADIENT at the median.

Prints one line per finding and exits with 1. docs/ops.md, which it reads, is written by the program itself and held against it by
a test (docs/generate.py --check).
"""
import glob
import os
import re
import statistics
import subprocess
import sys

PRIMITIVES, TRAINING_PRIMITIVES = "engine/ops/primitives.txt", "engine/ops/train/primitives.txt"
# Endings and beginnings under which one op had two names, and words for the same.
TWIN_ENDINGS = ("_by", "_of", "_rows", "_normalization", "_layer", "_op", "_v2")
SAME = {"dense": "linear", "gemm": "linear", "fully_connected": "linear", "swish": "silu", "rotary_embedding": "rope",
        "rotary_pos_embedding": "rope", "rms_normalization": "rms_norm", "layer_normalization": "layer_norm",
        "dense_attention": "head_attention", "multi_head_attention": "head_attention"}
# Names of types where graphs are made and run (ROOMS): the only file that may define one.
ROOMS = [f"engine/{room}" for room in ("export", "graph", "import", "loader", "models", "ops", "runtime", "tensor", "tune")]
ONCE = [
    (r"^(?:class|struct) (\w*Builder)\b(?!;)", {"Builder": "engine/graph/builder.h", "ModelBuilder": "engine/models/model.h"},
     "graphs are written with Builder, models with ModelBuilder"),
    (r"^(?:class|struct) (\w*Planner|BlockPlan)\b(?!;)", {"BlockPlan": "engine/graph/run_memory.h"}, "memory is planned by plan_blocks()"),
    (r"^(?:class|struct) (\w*WeightStore|\w*Packer)\b(?!;)", {"WeightStore": "engine/graph/weight_store.h"}, "packed weights lie in a WeightStore"),
    (r"^(?:class|struct) (\w*Pattern)\b(?!;)", {"Pattern": "engine/graph/passes/fuse_definitions.cc"},
     "definitions are the patterns"),
    (r"^BlockPlan (plan_\w+)\(.*{$", {"plan_blocks": "engine/graph/run_memory.cc"}, "memory is planned by plan_blocks()"),
]

# Lines of a file of engine/models that defines architectures, and of all of them at the median.
LONGEST, MEDIAN = 150, 70
# Lines of code, without blank ones and comments, of train/, and of a gradient's function in engine/ops at the median.
TRAINING_LINES, GRADIENT = 4000, 15


TRAINING = "## Ops of training graphs"  # of docs/ops.md; their table has three columns


def ops_of_docs():
    """What defines each op that files may name."""
    with open("docs/ops.md", encoding="utf-8") as page:
        served = page.read().split(TRAINING)[0]
    return {m[1]: m[2].strip() for m in re.finditer(r"^\| `(\w+)` \|[^|\n]*\|[^|\n]*\|([^|\n]*)\|", served, re.M)}


def training_ops_of_docs():
    with open("docs/ops.md", encoding="utf-8") as page:
        return re.findall(r"^\| `(\w+)` \|", page.read().partition(TRAINING)[2], re.M)


def reasons(path):
    with open(path, encoding="utf-8") as f:
        return dict(line.rstrip("\n").split(": ", 1) for line in f if line.strip() and not line.startswith("#"))


def stem(name):
    name = SAME.get(name, name)
    for ending in TWIN_ENDINGS:
        if name.endswith(ending):
            return name[:-len(ending)]
    return name


def check_ops():
    ops, listed = ops_of_docs(), reasons(PRIMITIVES)
    for op, defined in ops.items():
        if defined == "primitive" and not listed.get(op):
            yield f"{PRIMITIVES}: {op} is defined by no others; say why, or define it"
    for op in listed:
        if op not in ops:
            yield f"{PRIMITIVES}: there is no op {op}"
        elif ops[op] != "primitive":
            yield f"{PRIMITIVES}: {op} is defined by others"
    trained, listed = training_ops_of_docs(), reasons(TRAINING_PRIMITIVES)
    for op in trained:
        if not listed.get(op):
            yield f"{TRAINING_PRIMITIVES}: say why {op} is there"
        if op in ops:
            yield f"docs/ops.md: {op} is in both tables"
    for op in listed:
        if op not in trained:
            yield f"{TRAINING_PRIMITIVES}: there is no op {op}"
    by_stem = {}
    for op in sorted(ops):
        by_stem.setdefault(stem(op), []).append(op)
    for same in by_stem.values():
        if len(same) > 1:
            yield f"ops {' and '.join(same)} are twins"


def check_once():
    listed = subprocess.run(["git", "ls-files", "--cached", "--others", "--exclude-standard", *ROOMS], check=True, capture_output=True,
                            text=True).stdout.split()
    found = set()
    for path in listed:
        if not re.search(r"\.(h|cc)$", path) or not os.path.exists(path):
            continue
        with open(path, encoding="utf-8") as source:
            text = source.read()
        for pattern, homes, why in ONCE:
            for m in re.finditer(pattern, text, re.M):
                if homes.get(m[1]) == path:
                    found.add(m[1])
                else:
                    yield f"{path}:{text.count(chr(10), 0, m.start()) + 1}: {m[1]}: {why}"
    for _, homes, _ in ONCE:
        for name, path in homes.items():
            if name not in found:
                yield f".ci/check_house.py: {path} has no {name} any more"


def check_oracle():
    with open("engine/graph/evaluate.h", encoding="utf-8") as source:
        text = source.read()
    public = re.search(r"^class EvalContext {$(.*?)^ protected:$", text, re.M | re.S)
    if public is None or re.search(r"\b(Backend|Kernel)\b", re.sub(r"//.*", "", public[1])):
        yield "engine/graph/evaluate.h: EvalContext gives kernels to evaluate(), which is what they are held against"
    with open("engine/graph/op.h", encoding="utf-8") as source:
        if "Status (*evaluate)(EvalContext& ctx)" not in source.read():
            yield "engine/graph/op.h: evaluate() takes something else than an EvalContext"


def check_models():
    with open("engine/models/CMakeLists.txt", encoding="utf-8") as listed:
        names = re.search(r"^oar_registry\(models$(.*?)\)", listed.read(), re.M | re.S)[1].split()
    names.remove("mamba2")  # a kind of layer, too
    # As they are spelled in prose, too: "GPT-2", "Qwen3-Next". llama.cpp is a program.
    spelled = "|".join(re.sub(r"(?<=[a-z])(?=\d)", "[-_ ]?", name).replace("_", "[-_ .]?") for name in names)
    named = re.compile(rf"(?<![A-Za-z0-9_])(?:{spelled})(?![A-Za-z0-9_]|\.cpp)", re.I)
    lengths = []
    for path in sorted(glob.glob("engine/models/*.cc") + glob.glob("engine/models/*.h")):
        with open(path, encoding="utf-8") as source:
            lines = source.read().splitlines()
        if any(re.match(r"extern const Architecture architecture_", line) for line in lines):
            lengths.append(len(lines))
            if len(lines) > LONGEST:
                yield f"{path}: {len(lines)} lines; a file of an architecture has at most {LONGEST}"
            continue
        for number, line in enumerate(lines, 1):
            if m := named.search(line):
                yield f"{path}:{number}: {m[0]}: architectures share this file, so it names none"
    if not lengths:
        yield ".ci/check_house.py: engine/models has no architectures any more"
    elif statistics.median(lengths) > MEDIAN:
        yield f"engine/models: files of architectures have {statistics.median(lengths)} lines at the median, at most {MEDIAN} are allowed"


def code_lines(lines):
    return [line for line in lines if (text := line.strip()) and not text.startswith("//")]


def check_training():
    total = 0
    for path in glob.glob("train/*.cc") + glob.glob("train/*.h"):
        with open(path, encoding="utf-8") as source:
            total += len(code_lines(source))
    if total >= TRAINING_LINES:
        yield f"train/: {total} lines of code, less than {TRAINING_LINES} are allowed"
    lengths, gradient = [], r"^(?:Vals|std::vector<Val>) \w+\(const Pullback&[^;{]*\{(?:[^\n]*\}$|.*?^\}$)"
    for path in glob.glob("engine/ops/**/*.cc", recursive=True):
        with open(path, encoding="utf-8") as source:
            lengths += [len(code_lines(m[0].splitlines())) for m in re.finditer(gradient, source.read(), re.M | re.S)]
    if total == 0 or not lengths:
        yield ".ci/check_house.py: finds no training, or no gradients, any more"
    elif statistics.median(lengths) >= GRADIENT:
        yield f"engine/ops: gradients have {statistics.median(lengths)} lines at the median, less than {GRADIENT} are allowed"


def main():
    os.chdir(sys.argv[1] if len(sys.argv) > 1 else os.path.join(os.path.dirname(os.path.abspath(__file__)), ".."))
    findings = [*check_ops(), *check_once(), *check_oracle(), *check_models(), *check_training()]
    counted = f"{len(ops_of_docs())} ops, {len(reasons(PRIMITIVES))} of them primitive, {len(training_ops_of_docs())} of training"
    print("\n".join([*findings, f"{counted}, {len(findings)} findings"]))
    sys.exit(1 if findings else 0)


if __name__ == "__main__":
    main()
