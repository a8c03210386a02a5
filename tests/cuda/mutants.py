#!/usr/bin/env python3
"""mutants.py BUILD ROOT [--all] [--only FILE...] [--count N] [--seed N] [--jobs N]: barriers, fences, bounds tests and masks of kernels/cuda, each
removed in turn, and counts of waits and strides, each moved by one.

A mutant is one kernel file with one line changed, compiled as the traced tests have it and run by the tests of its family.
All of a file are compiled together, and the environment says which one runs. It is found when the tests fail; one that
passes must be in EQUIVALENT with the reason. BUILD has test_cuda_emulated.
"""
import argparse
import concurrent.futures
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading

# File, the .cu that is compiled for it, tests that must find its mutants (emulated and traced). A header may have several:
# one that finds a mutant is enough.
FILES = {
    "attention.cu": ("attention.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: paged*"),
    "attention_kernel.h": ("attention.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: paged*,cuda: many *"),
    "attention_split.h": [("attention.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: paged*,cuda: heads that*,cuda: many *,cuda emulated: spans of*"),
                          ("attention_quant.cu", "cuda: quantized caches*,cuda emulated: heads are*")],
    "attention_tensor.h": [("attention.cu", "cuda: paged*,cuda: tiles of rows and heads are*,cuda: a row of*,cuda: heads that*"),
                           ("attention_codes.cu", "cuda: quantized caches*,cuda: rows beside*")],
    "attention_spans.h": [("attention.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: paged*,cuda: tiles of rows and heads are*,cuda: a row of*,cuda: many rows*"),
                          ("attention_codes.cu", "cuda: quantized caches*,cuda: rows beside*")],
    "attention_tiles.h": [("attention.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: paged*,cuda: tiles of rows and heads are*,cuda: a row of*,cuda: many rows*"),
                          ("attention_codes.cu", "cuda: tiles of rows and heads over*,cuda: rows beside*,cuda emulated: heads of many rows*")],
    "attention_dense.cu": ("attention_dense.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: attention of*,cuda: attention within*"),
    "attention_quant.cu": ("attention_quant.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: quantized caches*,cuda: what is not*"),
    "attention_codes.cu": ("attention_codes.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: quantized caches*,cuda: tiles of rows and heads over*"),
    "quantized_pages.h": ("attention_quant.cu", "cuda: quantized caches*"),
    "conv.cu": ("conv.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: convolutions of every*"),
    "rounded_conv.cu": ("rounded_conv.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: convolutions of rounded operands against*,cuda: rounded operands*"),
    "math.h": ("elementwise.cu", "cuda: unary*,cuda: gates*"),
    "elementwise.cu": ("elementwise.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: unary*,cuda: binary*,cuda: gates*"),
    "gather.cu": ("gather.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: gathers*"),
    "hadamard.cu": ("hadamard.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: hadamard*"),
    "hadamard_run.h": [("hadamard.cu", "cuda: hadamard*"), ("heads.cu", "cuda: heads rotated*")],
    "heads.cu": ("heads.cu", "cuda: heads *,cuda emulated: pages come*"),
    "held_launches.cu": ("held_launches.cu", "cuda: heads *,cuda: products and the norms*,cuda: norms that*,cuda: what is no norm*,cuda: products behind*,cuda: combining*,cuda emulated: heads *,cuda emulated: pages come*,cuda emulated: rows *,cuda emulated: products follow*"),
    "kv_store.h": [("attention.cu", "cuda: paged*"), ("attention_quant.cu", "cuda: quantized caches*"), ("heads.cu", "cuda: heads *")],
    "last_block.h": [("attention.cu", "cuda emulated: spans of*"), ("heads.cu", "cuda emulated: pages come*"), ("matmul_bf16.cu", "cuda emulated: products follow*")],
    "lora.cu": ("lora.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: adapters against*"),
    "matmul.cu": ("matmul.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: products of bf16*,cuda: products of experts*,cuda: products and the norms*,cuda: products behind*"),
    "matmul_tensor.h": [("matmul_bf16.cu", "cuda: products of bf16*,cuda: products behind*,cuda: sums*,cuda emulated: products follow*"), ("matmul_blocks.cu", "cuda: products of experts*")],
    "matmul_library.cu": ("matmul_library.cu", "cuda libraries: products of prompts*,cuda libraries: a row*,cuda libraries: what cuBLASLt does*,cuda libraries: weights of e4m3_g128*"),
    "matmul_wgmma_codes.cu": ("matmul_wgmma_codes.cu", "cuda products of warp groups with*"),
    "wgmma_tile.h": ("matmul_wgmma.cu", "cuda products of warp groups*"),
    "matmul_wgmma.cu": ("matmul_wgmma.cu", "cuda products of warp groups*"),
    "narrow.cu": ("narrow.cu", "cuda: rows that are made*,cuda: of rows that are made*,cuda libraries: products of prompts*,cuda libraries: a row*,cuda products of warp groups with*"),
    "matmul_codes.cu": ("matmul_codes.cu", "cuda: products of bf16*,cuda: products of experts*,cuda: products behind*,cuda products of warp groups with*"),
    "matmul_blocks.cu": ("matmul_blocks.cu", "cuda: products of bf16*,cuda: products of experts*,cuda: products behind*"),
    "matmul_bf16.cu": ("matmul_bf16.cu", "cuda: products of bf16*,cuda: products behind*,cuda: sums*"),
    "matmul_tiles.h": ("matmul_bf16.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: products of bf16*,cuda: products of experts*,cuda: products and the norms*,cuda emulated: rows of*"),
    "matmul_formats.h": ("matmul_formats.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: products with*,cuda: products of bf16*,cuda: products of experts*"),
    "embedding_formats.h": ("embedding.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: embeddings*"),
    "moe.cu": ("moe.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: routes*,cuda: combining*,cuda emulated: rows of few*"),
    "norm.cu": ("norm.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: rms_norm*,cuda: layer_norm*"),
    "norm_rows.h": [("norm.cu", "cuda: rms_norm*,cuda: layer_norm*"), ("matmul_bf16.cu", "cuda: products and the norms*,cuda emulated: rows of*")],
    "pool.cu": ("pool.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: convolutions of channels*"),
    "quantize.cu": ("quantize.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: quantization*"),
    "quantized_conv.cu": ("quantized_conv.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: layers of 8-bit*,cuda: functions behind*"),
    "recurrent.cu": ("recurrent.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: recurrent layers*"),
    "quantize_page.h": [("attention_quant.cu", "cuda: quantized caches*,cuda: what is not*"), ("heads.cu", "cuda: heads *,cuda emulated: pages come*")],
    "reduce.cu": ("reduce.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: reductions*"),
    "resize.cu": ("resize.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: interpolation*"),
    "rope.cu": ("rope.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: rotations*"),
    "rope_head.h": [("rope.cu", "cuda: rotations*"), ("heads.cu", "cuda: heads rotated*")],
    "sampling.cu": ("sampling.cu", "cuda: nothing to do*,cuda: draw*"),
    "sequences.h": [("attention.cu", "cuda: paged*"), ("state.cu", "cuda: causal*,cuda: state*")],
    "strided_copy.cu": ("strided_copy.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: boxes*"),
    "softmax.cu": ("softmax.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: softmax*"),
    "state.cu": ("state.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: causal*,cuda: state*"),
}
OF_CONDITION = r"(?:[^=,?()<>!]|[<>!=]=|[<>!](?!=))"
# What, the line, and what becomes of it; {} is true for the mutant alone.
RULES = [
    ("without the barrier", re.compile(r"^(\s*)(__(?:sync(?:threads|warp)|threadfence)\(\);)$"), r"\1if (!{}) \2"),
    ("without the wait", re.compile(r"^(\s*)(wait_for_\w+\([^;]*\);)$"), r"\1if (!{}) \2"),
    ("without the test", re.compile(r"^(\s*)(if \(.*\) (?:return|break|continue)\b[^;]*;)$"), r"\1if (!{}) \2"),
    ("without the condition", re.compile(r"^(\s*)if \((?!.*constexpr)([^;]*)\) \{$"), r"\1if ({} || (\2)) {{"),
    ("without the condition of", re.compile(
        r"^(\s*)if \((?!constexpr)((?:(?!\) (?:return|break|continue)\b)[^;])*?)\) (?!return|break|continue)(?=[\w*])([^;{?]*;)$"),
     r"\1if ({} || (\2)) \3"),
    ("waiting for one group less", re.compile(r"^(\s*)((?:copy_async_wait|wgmma_wait)<\d+)>\(\);$"), r"\1if ({}) \2 + 1>(); else \2>();"),
    ("waiting for the other phase", re.compile(r"^(\s*(?:if \([^;]*\) )?mbarrier_wait\([^;]*?, )(static_cast<[^;]* & 1)\);$"),
     r"\1(\2) ^ ({} ? 1u : 0u));"),
    ("with one arrival more", re.compile(r"^(\s*mbarrier_init\([^;]*, [^;]*)\);$"), r"\1 + ({} ? 1 : 0));"),
    ("with 16 bytes more", re.compile(r"^(\s*mbarrier_arrive_expect\([^;]*, [^;]*)\);$"), r"\1 + ({} ? 16 : 0));"),
    ("without the mask", re.compile(
        rf"^((?:[^/\"]|/(?!/))*?(?:(?<![<>=!])[=,(] |\breturn |^\s+(?!\s|return\b)))({OF_CONDITION}*(?:\([^()]*\))?{OF_CONDITION}*) \? (.* : (?:0|0\.f|make_\w*\(.*\))[,;)].*)$"),
     r"\1{} || (\2) ? \3"),
]
# A stride, of rows in global or shared memory; each is one element more where it is used. Sizes of memory stay as they are.
STRIDE = re.compile(r"(?<=\* )((?:\w+\.)?ld_?\w*|k\w*(?:Stride|RowFloats)|k(?:X|W|Key|Value)Row|(?:\w+\.)?row_floats|stride)\b(?! *[<(])")
NO_STRIDE = re.compile(r"constexpr (?!\()|\btake<|^\s*//|size_t|sizeof\(")
# In front of a file with mutants. By an instruction, of which the sanitizer's calls do not know.
IS_MUTANT = """#pragma once
#include <cstdlib>
extern "C" { [[gnu::used, gnu::visibility("hidden")]] int oar_mutant; }
[[gnu::constructor]] static void choose_mutant() { oar_mutant = std::atoi(std::getenv("OAR_MUTANT")); }
[[gnu::always_inline]] static inline bool is_mutant(int number) {
  int chosen;
  asm("movl oar_mutant(%%rip), %0" : "=r"(chosen));
  return chosen == number;
}
"""
MOST_SECONDS = 120  # of the processor, for a mutant's tests: ten times what the slowest family takes, so it hangs
# File and line as it stands, with the rule in front where others of the line are found, or "first: " where others like it are:
# why nobody can tell.
SAME_VALUE = "every lane writes the same value"
NOT_USED = "what comes of it is not looked at"
SAME_BITS = "blocks of another number of heads give the same bits"
NO_ERROR = "no launch whose sizes were checked fails on the emulated device"
EQUIVALENT = {
    ("conv.cu", "if (tile.filters == kSide) return run<4, 1>(a, pixels, filters, stream);"): "tiles of another shape give the same bits",
    ("conv.cu", "if (tile.pixels == kSide) return run<1, 4>(a, pixels, filters, stream);"): "tiles of another shape give the same bits",
    ("rounded_conv.cu", "if (tile.pixels == FewPixels::kPixels) return run<kTo, FewPixels>(a, pixels, wide, stream);"):
        "tiles of another shape give the same bits",
    ("rounded_conv.cu", "if (tile.pixels == ManyPixels::kPixels) return run<kTo, ManyPixels>(a, pixels, wide, stream);"):
        "tiles of another shape give the same bits",
    ("rounded_conv.cu", "if (more) store_gathered(step + 1);"): "nobody reads what comes behind the last step",
    ("quantize.cu", "if (error != 0) return {error};"): NO_ERROR,
    ("quantized_conv.cu", "if (kOfRun && of_run.w_zeros != nullptr) {"): NOT_USED,
    ("recurrent.cu", "if (!a.linear_before_reset) {"): NOT_USED,
    ("matmul_library.cu", 'if (error != 0) return said({error}, "a weight\'s rows");'): NO_ERROR,
    ("matmul_library.cu", 'if (error != 0) return said({error}, "rounding rows to e4m3");'): NO_ERROR,
    ("strided_copy.cu", "if (widen(a)) return run<uint4>(a, stream);"): "elements of another size give the same bits",
    ("strided_copy.cu", "if (i >= n) return;"): "threads past the end write again what others write",
    ("quantize_page.h", "if (thread == 0) memcpy(head + layout.mu_scale, &scale, sizeof scale);"): SAME_VALUE,
    ("attention_quant.cu", "if (tensor) return attend_codes(a.common, pages, keys, values, scratch, stream, then);"):
        "the general kernel is as exact",
    ("held_launches.cu", "if (chains[i]->rotates()) add(chains[i]->rope);"): "a step that is missing has no rows, which meet nothing",
    ("held_launches.cu", "if (chains[i]->transforms()) add(chains[i]->hadamard);"): "a step that is missing has no rows, which meet nothing",
    ("held_launches.cu", "first: if (const CudaStatus status = release(); !status.ok()) return status;"): NO_ERROR,
    ("held_launches.cu", "if (kernel.with_heads != nullptr && count_ > 0) {"): "what is no append does not read as one of these heads",
    ("held_launches.cu", "if (!status.ok()) return status;"): NO_ERROR,
    ("held_launches.cu", "if (kernel.family != KernelFamily::kMatmul && kernel.family != KernelFamily::kGatedMatmul) return false;"):
        "what is no product has none with norms",
    ("rope_head.h", "if (a.norm_w != nullptr) {"): NOT_USED,
    ("attention_split.h", "if (first > pos || first + kWarp <= from) continue;"): NOT_USED,
    ("attention_split.h", "const float old = g < heads ? shrinks[g * kSteps + step] : 0.f;"): NOT_USED,
    ("attention_split.h", "if (d0 >= DV) break;"): NOT_USED,
    ("attention_kernel.h", "if (d0 >= DV) break;"): NOT_USED,
    ("attention_split.h", "if (g >= heads) break;"): NOT_USED,
    ("attention_split.h", "if (spans <= 0) return 0;"): "no rows are split then",
    ("attention_split.h", "if (group == 1) return launch_split<Cache, 1, kDims>(a, cache, scratch, stream, then);"): SAME_BITS,
    ("attention_split.h", "if (group == 2) return launch_split<Cache, 2, kDims>(a, cache, scratch, stream, then);"): SAME_BITS,
    ("attention_split.h", "if (group > 4) return launch_split<Cache, 8, kDims>(a, cache, scratch, stream, then);"): SAME_BITS,
    ("lora.cu", "if (rank > 0) {"): "rows to which nothing is added are stored as they were",
    ("lora.cu", "if (error != 0) return error;"): NO_ERROR,
    ("attention_tiles.h", "if (error != 0) return error;"): NO_ERROR,
    ("quantized_pages.h", "if (keys == KvCode::kInt4Mean) s.minimum = kv_mean_minimum(s.scale);"):
        "other codes have a minimum of their own, which replaces it, or none",
    ("quantized_pages.h", "if (layout.value_nibbles) s.value.y = f16_at(bytes + layout.value_minima, p);"): NOT_USED,
    ("matmul_tiles.h", "without the condition of: if (combines && !p.combine_aligned) combine_rows<false>(p.combine);"):
        "the same sums again, or those of no rows",
    ("matmul.cu", "if (!norms.empty()) {"): "nobody counts with these counters then",
    ("matmul.cu", "if (steps.combine) {"): "nobody counts with these counters then",
    ("matmul_formats.h", "if (has_output()) {"): NOT_USED,
    ("matmul_formats.h", "if (first <= last) {"): "a word that is read then is not stored",
    ("matmul_formats.h", "if (part != 0 || lane() >= 8) return;"): "other lanes have no bytes left, other warps have the same ones",
    ("matmul_formats.h", "if (tile.index < 0) return finish_rows<true>(p, tile, ws);"):
        "no row is stored, the weight in front of the first has no outputs, and rows are finished behind it too",
    ("sampling.cu", "if (!as_it_is) {"): "a row to which nothing is added is copied as it is",
    ("sampling.cu", "if (row.logprobs >= 0) {"): NOT_USED,
    ("matmul_wgmma.cu", "without the condition of: if (i >= kStages) mbarrier_wait(empty + s, static_cast<uint32_t>(i / kStages - 1) & 1);"):
        "the phase in front of the first has ended",
    ("attention_tensor.h", "if (aligned) return store_dims(to, half, o);"): "narrower stores give the same bits",
    ("attention_spans.h", "if (within(first)) {"): "a step that is not seen has no scores",
    ("attention_tiles.h", "const int warp_from = has_pairs ? from_of(warp_first) : 0,"): NOT_USED,
    ("attention_tiles.h", "const int all_from = has_pairs ? from_of(warp_last) : 0, all_to = has_pairs ? position_of(warp_first) : -1;"): NOT_USED,
    ("attention_tiles.h", "sight.from[half] = there ? from_of(pair) : 0;"): "a pair that is not there sees nothing, from wherever on",
    ("attention_tiles.h", "if (first + kStep <= to) steps.start(step_of(first + kStep), first + kStep);"):
        "zeros come behind the last step, and nobody reads them",
    ("attention_tiles.h", "copy_async_wait<0>();"): "the last group is empty",
    ("attention_tiles.h", "if (tile.end == 0) return;"): "a block without pairs stores nothing",
    ("attention_tiles.h", "if (steps.key_minima()) {"): NOT_USED,
    ("attention_tiles.h", "if (!steps.key_minima()) continue;"): "minima of codes that have none are zeros",
    ("attention_tiles.h", "if (steps.value_minima()) minima[j] = steps.factors(Factor::kValueMinimum, 8 * j + 2 * t);"):
        "minima of codes that have none are zeros",
    ("attention_tiles.h", "if (steps.value_minima()) {"): "minima of codes that have none are zeros",
    ("attention_tiles.h", "if (first <= warp_to && first + kStep > warp_from) {"): "a step that no pair sees changes no sum",
    ("attention_tiles.h", "if (edge) {"): "masks of what all pairs see hide nothing",
    ("attention_tiles.h", "if (__ballot_sync(kAllLanes, not_finite(v.upper) || not_finite(v.lower)) != 0) {"):
        "values of each pair by itself give the same bits, only later",
    ("attention_spans.h", "first: if (!within(first)) continue;"): "weights of what is not seen are zeros",
    ("attention_tiles.h", "if (in_tiles(a)) {"): "tiles give rows the bits of spans",
    ("matmul_wgmma_codes.cu", "without the condition of: if (i >= kStages) mbarrier_wait(empty + s, static_cast<uint32_t>(i / kStages - 1) & 1);"):
        "the phase in front of the first has ended",
    ("matmul_wgmma_codes.cu", "if (made.ok()) {"): "no map whose sizes were checked fails on the emulated device",
    ("matmul_wgmma_codes.cu", "if (made.ok() && of_groups) {"): "a map that nobody reads",
    ("matmul_wgmma_codes.cu", "if (!made.ok()) return made;"): "no map whose sizes were checked fails on the emulated device",
    ("matmul_codes.cu", "if (f.name == name) return &f;"): "formats without codes take the general kernel, which is as exact",
    ("matmul_codes.cu", "if (const CodeFormat* f = find(kFormats, format)) return f->chain;"): "steps of their own give the same bits",
    ("last_block.h", "if (polls) {"): "all lanes of a warp wait for one count",
    ("wgmma_tile.h", "if (status.ok()) return {};"): "the message of a success is not looked at",
    ("matmul_library.cu", "if (status.ok()) return {};"): "the message of a success is not looked at",
    ("matmul_library.cu", "if (lt == nullptr) return nullptr;"): "the fake always has a handle",
    ("matmul_library.cu", "if (error != 0) return said({error}, \"rounding rows to bf16\");"): NO_ERROR,
    ("matmul_tensor.h", "if (first == 0 && k == begin) wait();"): "it waits again for what has finished",
    ("matmul_tensor.h", "if (tile.begin >= tile.end) return;"): "no row is stored, and no warp has outputs of the weight in front of the first",
}


def ways(name):
    """The pairs of FILES."""
    value = FILES[name]
    return value if isinstance(value, list) else [value]


class Mutant:
    def __init__(self, name, number, what, line, changed, first):
        self.name, self.number, self.what, self.line, self.first = name, number, what, line.strip(), first
        self.changed = changed  # the line, with {} where it asks whether it is this one

    def __str__(self):
        return f"{self.name}:{self.number} {self.what}: {self.line}"

    def keys(self):
        """Under which EQUIVALENT may have it."""
        keys = [(self.name, self.line), (self.name, f"{self.what}: {self.line}")]
        return keys + [(self.name, f"first: {self.line}")] if self.first else keys

    def equivalent(self):
        return any(key in EQUIVALENT for key in self.keys())


def mutants(root):
    for name in FILES:
        lines = (root / "kernels/cuda" / name).read_text(encoding="utf-8").splitlines()
        for number, line in enumerate(lines):
            for what, pattern, replacement in RULES:
                if pattern.match(line) and not (what == "without the condition" and any(
                        re.match(r"\s*\} else", later) for later in lines[number + 1:number + 12])):
                    changed = pattern.sub(lambda m, r=replacement: m.expand(r.replace("{{", "{").replace("{}", "is_mutant(@)")), line)
                    yield Mutant(name, number + 1, what, line, changed, line.strip() not in map(str.strip, lines[:number]))
            for m in STRIDE.finditer(line) if not NO_STRIDE.search(line) else ():
                changed = f"{line[:m.start()]}({m[1]} + (is_mutant(@) ? 1 : 0)){line[m.end():]}"
                yield Mutant(name, number + 1, f"with {m[1]} one more", line, changed, False)


class Workshop:
    """Programs with mutants, and their runs."""

    def __init__(self, build, root, folder, chosen):
        self.build, self.folder = build, folder
        commands = subprocess.run(["ninja", "-C", build, "-t", "commands", "test_cuda_emulated"], capture_output=True,
                                  text=True, check=True).stdout.splitlines()
        self.compile = {f: next(c for c in commands if c.endswith(f"kernels/cuda/{f}") and "kernels_traced" in c)
                        for f in {way[0] for name in FILES for way in ways(name)}}
        self.link = next(c for c in commands if "-o bin/test_cuda_emulated" in c)
        self.text = {name: (root / "kernels/cuda" / name).read_text(encoding="utf-8").splitlines() for name in FILES}
        self.together = {}  # of a file, and at most one of a line
        for m in chosen:
            m.group = (m.name, sum(o.number == m.number for o in chosen[:chosen.index(m)] if o.name == m.name))
            self.together.setdefault(m.group, []).append(m)
        self.programs, self.lock = {}, threading.Lock()

    def found(self, mutant):
        """Whether a test fails; None where no way compiles."""
        results = []
        for source, tests in ways(mutant.name):
            with self.lock:
                made = self.programs.setdefault((mutant.group, source), Program())
            with made.lock:
                if made.mutants is None:
                    made.mutants = self.make(made, mutant.group, source, self.folder / f"{len(self.programs)}-{source}")
            if mutant in made.mutants:
                results.append(self.found_by(made.path, tests, mutant))
                if results[-1]:
                    return True
        return False if results else None

    def make(self, program, group, source, folder):
        """Those of a group that compile, in a program."""
        name, all_of = group[0], list(self.together[group])
        (folder / "kernels/cuda").mkdir(parents=True)
        changed = folder / "kernels/cuda" / name
        (folder / "is_mutant.h").write_text(IS_MUTANT, encoding="utf-8")
        words = [w for w in shlex.split(self.compile[source]) if w not in ("-MD", "-Werror") and pathlib.Path(w).name != "ccache"]
        words[1:1] = ["-I", str(folder), "-include", str(folder / "is_mutant.h"), "-w"]
        if name == source:
            words[-1] = str(changed)
        obj, program.path = folder / "mutants.o", folder / "mutants"
        words[words.index("-o") + 1] = str(obj)
        for flag in ("-MT", "-MF"):
            at = words.index(flag)
            del words[at:at + 2]
        while all_of:
            lines = list(self.text[name])
            for m in all_of:
                lines[m.number - 1] = m.changed.replace("@", str(m.number))
            changed.write_text("\n".join(lines) + "\n", encoding="utf-8")
            run = subprocess.run(words, cwd=self.build, capture_output=True, text=True, check=False)
            if run.returncode == 0:
                break
            wrong = {int(n) for n in re.findall(rf"{re.escape(name)}:(\d+):", run.stderr)}
            left = [m for m in all_of if m.number not in wrong]
            if len(left) == len(all_of):
                raise RuntimeError(f"{name} does not compile: {run.stderr[-2000:]}")
            all_of = left
        if not all_of:
            return []
        link = self.link.replace("-o bin/test_cuda_emulated", f"-o {program.path}")
        link = link.replace("lib/liboar_cuda_kernels_traced.a", f"{obj} lib/liboar_cuda_kernels_traced.a", 1)
        subprocess.run(link, cwd=self.build, shell=True, check=True, capture_output=True)
        tests = next(way[1] for way in ways(name) if way[0] == source)
        for pattern in tests.split(","):
            listed = subprocess.run([program.path, pattern, "--list-test-names-only"], cwd=self.build, env=dict(os.environ, OAR_MUTANT="0"),
                                    capture_output=True, check=False)
            if not listed.stdout.strip():
                raise RuntimeError(f"{name}: no test is called {pattern}")
        if self.found_by(program.path, tests, None):
            raise RuntimeError(f"{name}: tests fail without a mutant: {tests}")
        return all_of

    def found_by(self, program, tests, mutant):
        environment = dict(os.environ, OAR_MUTANT=str(mutant.number if mutant is not None else 0))
        try:
            run = subprocess.run(["prlimit", f"--cpu={MOST_SECONDS}", program, tests, "--abort"], cwd=self.build, env=environment,
                                 capture_output=True, timeout=900, check=False)
        except subprocess.TimeoutExpired:  # it waits for ever without work
            return True
        return run.returncode != 0


class Program:
    def __init__(self):
        self.path, self.mutants, self.lock = None, None, threading.Lock()


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", nargs="*", metavar="FILE", help="all mutants of these files")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    chosen = list(mutants(args.root))
    lines = {key for m in chosen for key in m.keys()}
    if stale := [entry for entry in EQUIVALENT if entry not in lines]:
        print(*(f"EQUIVALENT names no mutant: {name}: {line}" for name, line in stale), sep="\n")
        return 1
    if args.only:
        chosen = [m for m in chosen if m.name in args.only]
    elif not args.all:
        chosen = [m for m in chosen if not m.equivalent()]
        chosen = sorted(random.Random(args.seed).sample(chosen, min(args.count, len(chosen))), key=str)
    survivors, dead = [], 0
    with tempfile.TemporaryDirectory() as folder, concurrent.futures.ThreadPoolExecutor(args.jobs) as pool:
        shop = Workshop(args.build, args.root, pathlib.Path(folder), chosen)
        for mutant, found in zip(chosen, pool.map(shop.found, chosen)):
            dead += found is True
            if mutant.equivalent() and found:
                survivors.append(mutant)
                print("FOUND, though EQUIVALENT has it:", mutant, flush=True)
            elif found is False and not mutant.equivalent():
                survivors.append(mutant)
                print("NOT FOUND", mutant, flush=True)
            elif args.all or args.only:
                print("found" if found else "equivalent" if mutant.equivalent() else "does not compile", mutant, flush=True)
    print(f"{dead} of {len(chosen)} mutants found, {len(survivors)} not as they should be, the others are equivalent or do not compile")
    return 1 if survivors or dead == 0 else 0


if __name__ == "__main__":
    sys.exit(main())
