#!/usr/bin/env python3
"""mutants.py BUILD ROOT [--all] [--wide] [--only FILE...] [--count N] [--seed N] [--jobs N]: barriers, waits, fences, commits, arrivals,
bounds tests and masks of kernels/cuda, each removed in turn; bounds of loops, counts of waits and strides, each moved by one. That is
so of the files in WIDE, which are all today. Of new ones loops, fences, statements over several lines and some strides are left to
--wide until all of their mutants have been run, and so are strides that have a name of their own but in the files of COUNTED.

A mutant is one kernel file with one line changed, compiled as the traced tests have it and run by the tests of its family.
All of a file are compiled together, and the environment says which one runs. It is found when the tests fail; one that
passes must be in EQUIVALENT with the reason. BUILD has test_cuda_emulated.
"""
import argparse
import concurrent.futures
import itertools
import os
import pathlib
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time

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
                          ("attention_codes.cu", "cuda: quantized caches*,cuda: rows beside*,cuda emulated: heads are*")],
    "attention_tiles.h": [("attention.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: paged*,cuda: tiles of rows and heads are*,cuda: a row of*,cuda: many rows*"),
                          ("attention_codes.cu", "cuda: tiles of rows and heads over*,cuda: rows beside*,cuda emulated: heads of many rows*")],
    "attention_dense.cu": ("attention_dense.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: attention of*,cuda: attention within*"),
    "attention_quant.cu": ("attention_quant.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: quantized caches*,cuda: what is not*"),
    "attention_codes.cu": ("attention_codes.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: quantized caches*,cuda: tiles of rows and heads over*"),
    "quantized_pages.h": ("attention_quant.cu", "cuda: quantized caches*"),
    "conv.h": ("conv.cu", "cuda: convolutions of every*"),
    "conv.cu": ("conv.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: convolutions of every*"),
    "rounded_conv.h": ("rounded_conv.cu", "cuda: convolutions of rounded operands against*,cuda: rounded operands*"),
    "rounded_conv.cu": ("rounded_conv.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: convolutions of rounded operands against*,cuda: rounded operands*"),
    "device.h": [("attention.cu", "cuda: paged*,cuda: tiles of rows and heads are*,cuda cost: decode attention*"),
                 ("rounded_conv.cu", "cuda: convolutions of rounded operands against*,cuda: rounded operands*")],
    "math.h": ("elementwise.cu", "cuda: unary*,cuda: gates*"),
    "element_rows.h": ("elementwise.cu", "cuda: elementwise ops*,cuda: a softplus*,cuda emulated: elements of*"),
    "elementwise.cu": ("elementwise.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: unary*,cuda: binary*,cuda: gates*,cuda: elementwise ops behind*,cuda: a softplus*,cuda emulated: elements of*"),
    "gather.cu": ("gather.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: gathers*"),
    "hadamard.cu": ("hadamard.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: hadamard*"),
    "hadamard_run.h": [("hadamard.cu", "cuda: hadamard*"), ("heads.cu", "cuda: heads rotated*")],
    "heads.cu": ("heads.cu", "cuda: heads *,cuda: parts of keys*,cuda emulated: pages come*,cuda emulated: columns*"),
    "held_elements.cu": ("held_elements.cu", "cuda: a mixture*,cuda emulated: experts*,cuda: products and the norms*,cuda: elementwise ops*,cuda: gates*,cuda: norms behind*,cuda: a choice*,cuda: more elementwise*,cuda: a row by itself*,cuda: a softplus*"),
    "held_launches.cu": ("held_launches.cu", "cuda: elementwise ops*,cuda: gates*,cuda: norms behind*,cuda: a choice*,cuda: more elementwise*,cuda: a row by itself*,cuda: elementwise ops behind*,cuda: a softplus*,cuda: rotations of heads*,cuda emulated: elements of*,cuda: heads *,cuda: parts of keys*,cuda: what no append*,cuda: a mixture*,cuda: products times*,cuda: products and the norms*,cuda: norms that*,cuda: what is no norm*,cuda: products behind*,cuda: products of heads*,cuda order: products of experts and of heads*,cuda order: products of several*,cuda: combining*,cuda emulated: heads *,cuda emulated: pages come*,cuda emulated: rows *,cuda emulated: products *,cuda emulated: columns*,cuda emulated: experts*"),
    "held_launches.h": ("held_launches.cu", "cuda: products and the norms*,cuda: products behind*,cuda emulated: rows of*,cuda emulated: products follow*"),
    "kv_pages.h": [("attention.cu", "cuda: paged*,cuda: heads that*,cuda: tiles of rows and heads are*"), ("heads.cu", "cuda: heads *,cuda emulated: pages come*")],
    "kv_store.h": [("attention.cu", "cuda: paged*"), ("attention_quant.cu", "cuda: quantized caches*"), ("heads.cu", "cuda: heads *")],
    "last_block.h": [("attention.cu", "cuda emulated: spans of*"), ("heads.cu", "cuda emulated: pages come*"), ("matmul_bf16.cu", "cuda emulated: products follow*")],
    "lora.cu": ("lora.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: adapters against*"),
    "matmul.cu": ("matmul.cu", "cuda: elementwise ops*,cuda: gates*,cuda: norms behind*,cuda: a choice*,cuda: more elementwise*,cuda: a row by itself*,cuda: nothing to do*,cuda: sizes that*,cuda: products of bf16*,cuda: products of experts*,cuda: products of heads*,cuda: products and the norms*,cuda: products behind*,cuda: a mixture*,cuda emulated: experts*"),
    "matmul_tensor.h": [("matmul_bf16.cu", "cuda: elementwise ops*,cuda: gates*,cuda: norms behind*,cuda: a choice*,cuda: more elementwise*,cuda: a row by itself*,cuda: products of bf16*,cuda: products behind*,cuda: products of heads*,cuda: a mixture*,cuda: sums*,cuda emulated: products *,cuda emulated: experts*"), ("matmul_blocks.cu", "cuda: products of experts*")],
    "matmul_library.cu": ("matmul_library.cu", "cuda libraries: products of prompts*,cuda libraries: a row*,cuda libraries: what cuBLASLt does*,cuda libraries: weights of e4m3_g128*"),
    "matmul_wgmma_codes.cu": ("matmul_wgmma_codes.cu", "cuda products of warp groups with*"),
    "wgmma_tile.h": ("matmul_wgmma.cu", "cuda products of warp groups*"),
    "matmul_wgmma.cu": ("matmul_wgmma.cu", "cuda products of warp groups*"),
    "narrow.cu": ("narrow.cu", "cuda: rows that are made*,cuda: of rows that are made*,cuda libraries: products of prompts*,cuda libraries: a row*,cuda products of warp groups with*"),
    "matmul_codes.cu": ("matmul_codes.cu", "cuda: products of bf16*,cuda: products of experts*,cuda: products behind*,cuda products of warp groups with*"),
    "matmul_blocks.cu": ("matmul_blocks.cu", "cuda: products of bf16*,cuda: products of experts*,cuda: products behind*,cuda: products with*"),
    "bf16_weights.h": ("matmul_bf16.cu", "cuda: products of bf16*,cuda: products behind*,cuda: sums*"),
    "code_weights.h": ("matmul_codes.cu", "cuda: products of bf16*,cuda: products of experts*,cuda: products behind*,cuda products of warp groups with*"),
    "block_weights.h": ("matmul_blocks.cu", "cuda: products of bf16*,cuda: products of experts*,cuda: products behind*,cuda: products with*"),
    "matmul_mixed.h": ("matmul_mixed.cu", "cuda order: products of several*"),
    "matmul_mixed.cu": ("matmul_mixed.cu", "cuda: products of every format*,cuda: a mixture*,cuda order: products of several*,cuda emulated: products *,cuda emulated: experts*"),
    "matmul_bf16.cu": ("matmul_bf16.cu", "cuda: products of bf16*,cuda: products behind*,cuda: sums*"),
    "matmul_tiles.h": [("matmul_bf16.cu", "cuda: elementwise ops*,cuda: gates*,cuda: norms behind*,cuda: a choice*,cuda: more elementwise*,cuda: a row by itself*,cuda: nothing to do*,cuda: sizes that*,cuda: products of bf16*,cuda: products of experts*,cuda: products of heads*,cuda: products and the norms*,cuda: products behind*,cuda: a mixture*,cuda emulated: rows of*,cuda emulated: products *,cuda emulated: experts*"),
                       ("matmul_formats.cu", "cuda: products of bf16*")],
    "matmul_formats.h": ("matmul_formats.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: products with*,cuda: products of bf16*,cuda: products of experts*,cuda emulated: products *,cuda emulated: experts*"),
    "matmul_formats.cu": ("matmul_formats.cu", "cuda: products behind*,cuda: a mixture*,cuda emulated: products follow*,cuda emulated: experts*"),
    "embedding_formats.h": ("embedding.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: embeddings*"),
    "moe.cu": ("moe.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: routes*,cuda: combining*,cuda emulated: rows of few*"),
    "norm.cu": ("norm.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: rms_norm*,cuda: layer_norm*"),
    "norm_rows.h": [("norm.cu", "cuda: rms_norm*,cuda: layer_norm*"), ("matmul_bf16.cu", "cuda: products and the norms*,cuda emulated: rows of*")],
    "pack.h": ("pool.cu", "cuda: convolutions of channels*"),
    "pool.cu": ("pool.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: convolutions of channels*"),
    "quantize.cu": ("quantize.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: quantization*"),
    "quantized_conv.cu": ("quantized_conv.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: layers of 8-bit*,cuda: functions behind*"),
    "recurrent.cu": ("recurrent.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: recurrent layers*"),
    "quantize_page.h": [("attention_quant.cu", "cuda: quantized caches*,cuda: what is not*"), ("heads.cu", "cuda: heads *,cuda emulated: pages come*")],
    "reduce.cu": ("reduce.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: reductions*"),
    "resize.cu": ("resize.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: interpolation*"),
    "route_rows.h": [("moe.cu", "cuda: routes*"), ("matmul_bf16.cu", "cuda emulated: experts are chosen*")],
    "rope.cu": ("rope.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: rotations*"),
    "rope_head.h": [("rope.cu", "cuda: rotations*"), ("heads.cu", "cuda: heads rotated*")],
    "sampling.cu": ("sampling.cu", "cuda: nothing to do*,cuda: draw*"),
    "sequences.h": [("attention.cu", "cuda: paged*"), ("state.cu", "cuda: causal*,cuda: state*")],
    "strided_copy.cu": ("strided_copy.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: boxes*"),
    "team.h": [("hadamard.cu", "cuda: hadamard*"), ("heads.cu", "cuda: heads *,cuda emulated: pages come*"), ("attention_quant.cu", "cuda: quantized caches*")],
    "tensor_map.cu": ("tensor_map.cu", "emulated device: descriptions of tensors*,cuda products of warp groups*"),
    "softmax.cu": ("softmax.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: softmax*"),
    "state.cu": ("state.cu", "cuda: nothing to do*,cuda: sizes that*,cuda: causal*,cuda: state*"),
}
# Of these files nothing runs on a device; other tests hold them.
HOST_FILES = {
    "cost.cu": "the model of time, held to the counters by cost_test.cc",
    "cost_layers.cu": "the same",
    "kernels.cu": "tables of kernels, and the search in them",
    "conv_library.cu": "plans of cuDNN, held by cudnn_test.cc",
    "conv_library.h": "the same",
    "counters.cu": "memory of a stream's counters",
    "occupancy.h": "the model of a multiprocessor, held by cost_test.cc",
}
OF_CONDITION = r"(?:[^=,?()<>!]|[<>!=]=|[<>!](?!=))"
# What, the line, and what becomes of it; {} is true for the mutant alone.
RULES = [
    ("without the barrier", re.compile(r"^(\s*|.*\{ )((?:__sync(?:threads|warp)|__threadfence|\w+::meet)\(\);)((?: \})?(?:\s*//.*)?)$"),
     r"\1if (!{}) \2\3"),
    ("without the fence", re.compile(r"^(\s*)((?:fence_proxy_async|wgmma_fence)\(\);)$"), r"\1if (!{}) \2"),
    ("without the commit", re.compile(r"^(\s*)((?:copy_async|wgmma)_commit\(\);)$"), r"\1if (!{}) \2"),
    ("without the wait", re.compile(r"^(\s*(?:if \([^;]*\) )?)((?:(?:wait_for_\w+|mbarrier_wait)\([^;]*|wait\(|(?:copy_async_wait|wgmma_wait)<\d+>\()\);)$"),
     r"\1if (!{}) \2"),
    ("without the arrival", re.compile(r"^(\s*(?:if \([^;]*\) )?)(mbarrier_arrive\w*\([^;]*\);)$"), r"\1if (!{}) \2"),
    ("waiting for one group less", re.compile(r"^(\s*)((?:copy_async_wait|wgmma_wait)<\d+)>\(\);$"), r"\1if ({}) \2 + 1>(); else \2>();"),
    ("waiting for the other phase", re.compile(r"^(\s*(?:if \([^;]*\) )?mbarrier_wait\([^;]*?, )(static_cast<[^;]* & 1)\);$"),
     r"\1(\2) ^ ({} ? 1u : 0u));"),
    ("with one arrival more", re.compile(r"^(\s*mbarrier_init\([^;]*, [^;]*)\);$"), r"\1 + ({} ? 1 : 0));"),
    ("with 16 bytes more", re.compile(r"^(\s*mbarrier_arrive_expect\([^;]*, [^;]*)\);$"), r"\1 + ({} ? 16 : 0));"),
]
MASK = ("without the mask", re.compile(
    rf"^((?:[^/\"]|/(?!/))*?(?:(?<![<>=!])[=,(] |\breturn |^\s+(?!\s|return\b)))({OF_CONDITION}*(?:\([^()]*\))?{OF_CONDITION}*) \? "
    r"(.* : (?:0u?|0\.f|-1|-INFINITY|NAN|nullptr|make_\w*\(.*\))[,;)].*)$"), r"\1{} || (\2) ? \3")
# A loop: what it begins with, its variable, comparison, bound, what else ends it, and its step.
LOOP = re.compile(r"^(\s*.*?\bfor \(([^;:]*); (\w+) ([<>]=?) )([^;&]+?)((?: && [^;]*)?; ([^;]*?)\)(?=\s*(?:\{|$|//|\w|\*|\+).*$).*)$")
OF_THREAD = re.compile(r"\b(?:lane|warp|thread)\(\)|\bthread\b|(?:thread|block)Idx|\b(?:its_)?warp\b|\bunit\b")
OF_CONSTANTS = re.compile(r"[\s\d*/+()-]*(?:(?:\w+::)*k[A-Z]\w*[\s\d*/+()-]*)*")
# A stride, of rows in global or shared memory; each is one element more where it is used. Sizes of memory stay as they are.
STRIDE = re.compile(r"(?<=\* )((?:\w+\.)?(?:ld_?\w*|max_blocks|block_bytes|inner|stride_\w|(?:y|gates)_[tbd]|(?:row|border)_floats)"
                    r"|k\w*(?:Stride|RowFloats)|k(?:X|W|Key|Value)Row|kPanel|kSide|stride"
                    r"|(?:\w+\.)?[A-Z][A-Zkv]?(?= \+ (?!\d)|\]|\) \* ))\b(?! *[<(])")
# The same of rows that are counted by another name or a constant.
COUNTED_STRIDE = re.compile(r"(?<= \* )((?:\w+\.)?(?:top_k|experts|cols|spans|heads|filters)(?= \+ (?!\d)|\]|, |;)|k[A-Z]\w*(?= \+ (?!\d|k)|\]|, )"
                            r"|(?:\w+\.)?[A-Z][A-Zkv]?(?=, (?!\d)))\b(?! *[<(])")
NO_STRIDE = re.compile(r"constexpr (?!\()|\btake<|^\s*//|^\s*k[A-Z]\w* = |size_t|sizeof\(")
# Files of which the mutants of all rules have been run. Of others only those of these kinds and lines are tried, or all with --wide:
# what nobody has run yet may survive.
WIDE = {
    "attention.cu", "attention_codes.cu", "attention_dense.cu", "attention_kernel.h", "attention_quant.cu", "attention_spans.h",
    "attention_split.h", "attention_tensor.h", "attention_tiles.h", "bf16_weights.h", "block_weights.h", "code_weights.h",
    "conv.cu", "conv.h", "device.h", "element_rows.h", "elementwise.cu", "embedding_formats.h", "gather.cu", "hadamard.cu", "hadamard_run.h",
    "heads.cu", "held_elements.cu", "held_launches.cu", "kv_pages.h", "kv_store.h", "last_block.h", "lora.cu", "math.h", "matmul.cu",
    "matmul_bf16.cu", "matmul_blocks.cu", "matmul_codes.cu", "matmul_formats.cu", "matmul_formats.h", "matmul_library.cu",
    "matmul_mixed.cu", "matmul_mixed.h", "matmul_tensor.h", "matmul_tiles.h", "matmul_wgmma.cu", "matmul_wgmma_codes.cu",
    "moe.cu", "narrow.cu", "norm.cu", "norm_rows.h", "pack.h", "pool.cu", "quantize.cu", "quantize_page.h", "quantized_conv.cu",
    "quantized_pages.h", "recurrent.cu", "reduce.cu", "resize.cu", "rope.cu", "rope_head.h", "rounded_conv.cu",
    "rounded_conv.h", "route_rows.h", "sampling.cu", "sequences.h", "softmax.cu", "state.cu", "strided_copy.cu", "team.h",
    "tensor_map.cu", "wgmma_tile.h",
}
# Files of which those of COUNTED_STRIDE have been run.
COUNTED = {"attention_spans.h", "attention_split.h", "conv.cu", "moe.cu", "norm_rows.h", "pack.h", "pool.cu", "route_rows.h",
           "sampling.cu"}
FIRST_KINDS = {
    "without the barrier": r"\s*__(?:sync(?:threads|warp)|threadfence)\(\);$",
    "without the wait": r"\s*wait_for_\w+\([^;]*\);$",
    "without the test": r"\s*if \(.*\) (?:return|break|continue)\b[^;]*;$",
    "without the condition": r"\s*if \((?!.*constexpr)[^;]*\) (?:\{|(?!return|break|continue)(?=[\w*])[^;{?]*;)$",
    "without the mask": r".* : (?:0|0\.f|make_\w*\(.*\))[,;)].*$",
    "with one arrival more": "", "with 16 bytes more": "", "waiting for one group less": "", "waiting for the other phase": "",
    "one more": r"with (?:(?:\w+\.)?(?:ld_?\w*|row_floats)|k\w*(?:Stride|RowFloats)|k(?:X|W|Key|Value)Row|stride) one more",
}
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
DRAWN_OF_A_FILE = 5
MOST_SECONDS = 120  # of the processor, for tests without a mutant; with one ten times what they took, so it hangs
# File and line as it stands, with the rule in front where others of the line are found, or "first: " where others like it are:
# why nobody can tell.
SAME_VALUE = "every lane writes the same value"
NOT_USED = "what comes of it is not looked at"
NOT_STORED = "sums of rows that a tile lacks are not stored"
NOT_READ = "where nothing is seen nothing is copied, from wherever"
HALF_PANEL = "half of 17 is half of 16"
OF_ONE_PAGE = "a panel's positions lie in one page, and the query's own page has no codes"
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
    ("quantized_conv.cu", "[[maybe_unused]] int32_t* const of_windows = kOfRun ? shared.take<int32_t>(kThreads) : nullptr;"): NOT_USED,
    ("recurrent.cu", "if (!a.linear_before_reset) {"): NOT_USED,
    ("recurrent.cu", "without the condition: if (kCell == RecurrentCell::kLstm) more[k] = a.c0 != nullptr ? a.c0[state + k] : 0.f;"):
        NOT_USED,
    ("hadamard_run.h", "for (int i = thread; i < block / 2; i += kThreads) {"): "the other buffer is made anew before it is read",
    ("matmul_library.cu", 'if (error != 0) return said({error}, "a weight\'s rows");'): NO_ERROR,
    ("matmul_library.cu", 'if (error != 0) return said({error}, "rounding rows to e4m3");'): NO_ERROR,
    ("strided_copy.cu", "if (widen(a)) return run<uint4>(a, stream);"): "elements of another size give the same bits",
    ("strided_copy.cu", "if (i >= n) return;"): "threads past the end write again what others write",
    ("quantize_page.h", "if (thread == 0) memcpy(head + layout.mu_scale, &scale, sizeof scale);"): SAME_VALUE,
    ("attention_quant.cu", "if (tensor) return attend_codes(a.common, pages, keys, values, scratch, stream, then);"):
        "the general kernel is as exact",
    ("held_elements.cu", "if (kernel.family == KernelFamily::kSwiGlu && (last.experts || holds_rows_)) return false;"):
        "a gate among elementwise ops has the bits of one that a second layer takes, in the same launch",
    ("held_launches.cu", "if (chains[i]->rotates()) add(chains[i]->rope);"): "a step that is missing has no rows, which meet nothing",
    ("held_launches.cu", "if (chains[i]->transforms()) add(chains[i]->hadamard);"): "a step that is missing has no rows, which meet nothing",
    ("held_launches.cu", "first: if (const CudaStatus status = release(); !status.ok()) return status;"): NO_ERROR,
    ("held_launches.cu", "if (kernel.with_heads != nullptr && count_ > 0) {"): "what is no append does not read as one of these heads",
    ("held_launches.cu", "if (!status.ok()) return status;"): NO_ERROR,
    ("held_launches.cu", "if (kernel.family == KernelFamily::kMoeRoute && products_count_ > 0 && !rows_ && !gate_) {"):
        "what is no route does not read as one of these rows",
    ("held_launches.cu", "kernel.family == KernelFamily::kRmsNorm ? static_cast<const RmsNormArgs*>(args) : nullptr;"):
        "what is no norm does not read as one of these rows",
    ("held_launches.cu", "if (bool joined = false; holds) {"): "what is not held has other rows than a head that is, or none",
    ("held_launches.cu", "if (kernel.family != KernelFamily::kMatmul && kernel.family != KernelFamily::kGatedMatmul) return false;"):
        "what is no product has none with norms",
    ("rope_head.h", "if (a.norm_w != nullptr) {"): NOT_USED,
    ("attention_split.h", "first: if (first > pos || first + kWarp <= from) continue;"): NOT_USED,
    ("attention_split.h", "if (g >= heads) break;"): NOT_USED,
    ("attention_split.h", "const float old = g < heads ? shrinks[g * kSteps + step] : 0.f;"): NOT_USED,
    ("attention_split.h", "if (d0 >= DV) break;"): NOT_USED,
    ("attention_kernel.h", "if (d0 >= DV) break;"): NOT_USED,
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
    ("matmul_tiles.h", "without the condition: if (combines && !p.combine_aligned) combine_rows<false>(p.combine);"):
        "the same sums again, or those of no rows",
    ("matmul.cu", "return next < a.segments + a.experts * a.segments_per_expert && first->bias != nullptr && next->bias != nullptr ? next->bias - first->bias : 0;"):
        "the difference to no bias makes none of it again, and behind the last one nobody uses it",
    ("matmul_blocks.cu", "if (i % kGroup != 0) continue;"): "the scale of a group is written again",
    ("matmul.cu", "if (!norms.empty()) {"): "nobody counts with these counters then",
    ("matmul.cu", "if (steps.combine) {"): "nobody counts with these counters then",
    ("matmul_formats.h", "if (has_output()) {"): NOT_USED,
    ("matmul_formats.h", "for (int unit = thread; unit < kTileOutputs * (kElems > 1 ? turns : blocks); unit += kGeneralThreads) {"):
        "a unit further is of no row or no block, which is asked behind it",
    ("matmul_formats.h", "if (first <= last) {"): "a word that is read then is not stored",
    ("matmul_formats.h", "if (part != 0 || lane() >= 8) return;"): "other lanes have no bytes left, other warps have the same ones",
    ("sampling.cu", "for (int l = 0; l < kWarp; ++l) {"): "the last lane is what is left behind all others",
    ("wgmma_tile.h", "if (n < p.n)"): "a pair of which no output is there stores nothing",
    ("sampling.cu", "if (!as_it_is) {"): "a row to which nothing is added is copied as it is",
    ("sampling.cu", "if (row.logprobs >= 0) {"): NOT_USED,
    ("matmul_wgmma.cu", "without the condition: if (i >= kStages) mbarrier_wait(empty + s, static_cast<uint32_t>(i / kStages - 1) & 1);"):
        "the phase in front of the first has ended",
    ("attention_tensor.h", "if (aligned) return store_dims(to, half, o);"): "narrower stores give the same bits",
    ("attention_spans.h", "with a.B one more: const int64_t whole = rows / most + 2 * a.B, blocks = whole < rows ? whole : rows;"):
        "blocks behind the last rows do nothing",
    ("attention_spans.h", "if (within(first)) {"): "a step that is not seen has no scores",
    ("attention_tiles.h", "const int warp_from = has_pairs ? from_of(warp_first) : 0,"): NOT_USED,
    ("attention_tiles.h", "const int all_from = has_pairs ? from_of(warp_last) : 0, all_to = has_pairs ? position_of(warp_first) : -1;"): NOT_USED,
    ("attention_tiles.h", "warp_to = has_pairs ? position_of(warp_last) : -1;"): NOT_USED,
    ("attention_tiles.h", "sight.pos[half] = there ? position_of(pair) : -1;"): "nothing is stored of a pair that is not there",
    ("attention_tiles.h", "without the mask: seen ? head + page.key(p0 + position, chunk * kKeyDims) : nullptr, seen);"): NOT_READ,
    ("attention_tiles.h", "without the mask: seen ? head + page.value(p0 + 2 * pair, d) : nullptr, seen);"): NOT_READ,
    ("attention_tiles.h", "with kPanel one more: copy_async16(value_place(panel * kPanel / 2 + pair, d),"): HALF_PANEL,
    ("attention_split.h", "for (int i = thread; i < kHeads * D; i += kAttentionThreads) {"):
        "behind the queries lies a place that nobody reads, or weights that are not there yet",
    ("attention_spans.h", "without the condition: if (edge && rows.count > 1 && __ballot_sync(kAllLanes, not_finite(v[i].upper) || not_finite(v[i].lower)) != 0) {"):
        "of numbers that are finite each pair has the same sums by itself",
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
    ("matmul_wgmma_codes.cu", "without the condition: if (i >= kStages) mbarrier_wait(empty + s, static_cast<uint32_t>(i / kStages - 1) & 1);"):
        "the phase in front of the first has ended",
    ("resize.cu", "const int64_t n = a.outer * a.rows.out * a.cols.out * a.inner;"): "threads past the last element do nothing",
    ("matmul_wgmma_codes.cu", "if (made.ok())"): "no map whose sizes were checked fails on the emulated device",
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
    ("matmul_tensor.h", "without the condition: if (k == of.own * kProductSpan) wait();"): "it waits again for what has finished",
    ("matmul_formats.h", "without the condition: if (k0 == 0) wait();"): "it waits again for what has finished",
    ("matmul_tensor.h", "for (int i = lane(); i < kRowStride / 2; i += kWarp) {"): "behind the elements of a row lie some that only keep banks apart",
    ("matmul_tensor.h", "for (int r = static_cast<int>(tile.end - tile.begin); r < kTileRows; ++r) {"): NOT_STORED,
    ("matmul_tensor.h", "for (int r = warp(); r < kManyRows; r += kTensorWarps) {"): NOT_STORED,
    ("attention_codes.cu", "return factor(at, pages_.layout.key_scales, kKeyMinima ? pages_.layout.key_minima : -1);"): NOT_USED,
    ("attention_codes.cu", "with kPanel one more: if (!coded(first + panel * kPanel)) continue;"): OF_ONE_PAGE,
    ("attention_codes.cu", "with kPanel one more: if (coded(first + panel * kPanel) && has(which))"): OF_ONE_PAGE,
    ("attention_codes.cu", "const int d = i % (kD / 4) * 4, pair = panel * kPanel / 2 + i / (kD / 4) * 2;"): HALF_PANEL,
    ("attention_codes.cu", "const int d = i % (kD / 4) * 4, pair = panel * kPanel / 2 + i / (kD / 4) * 4;"): HALF_PANEL,
    ("matmul_tensor.h", "if (tile.begin >= tile.end) return;"): "no row is stored, and no warp has outputs of the weight in front of the first",
}


def ways(name):
    """The pairs of FILES."""
    value = FILES.get(name, [])
    return value if isinstance(value, list) else [value]


class Mutant:
    def __init__(self, name, first, last, what, line, changed, is_first=False, raw=None, counted=False):
        self.name, self.number, self.last, self.what, self.first = name, first, last, what, is_first
        self.line, self.raw = line.strip(), line if raw is None else raw
        self.changed = changed  # these lines as one, with @ where it asks whether it is this one
        self.id, self.ways, self.counted = None, ways(name), counted

    def __str__(self):
        return f"{self.name}:{self.number} {self.what}: {self.line}"

    def keys(self):
        """Under which EQUIVALENT may have it."""
        keys = [(self.name, self.line), (self.name, f"{self.what}: {self.line}")]
        return keys + [(self.name, f"first: {self.line}")] if self.first else keys

    def equivalent(self):
        return any(key in EQUIVALENT for key in self.keys())

    def settled(self):
        """Whether all of its kind have been run in its file."""
        if self.counted and self.name not in COUNTED:
            return False
        stride = self.what.endswith(" one more")
        kind, text = ("one more", self.what) if stride else (self.what, self.raw)
        return self.name in WIDE or (self.number == self.last and kind in FIRST_KINDS and re.match(FIRST_KINDS[kind], text) is not None)

    def beside(self, other):
        return self.ways == other.ways and (self.last < other.number or other.last < self.number)


def of_this_compiler(lines):
    """Lines that nvcc alone sees, and the preprocessor's, are empty."""
    open_ifs, result = [], []  # of each `#if`: whether its lines are hidden, and those behind its `#else`
    for line in lines:
        directive = re.match(r"\s*#\s*(if\w*|el\w+|endif)\b(.*)", line)
        if directive is None:
            result.append("" if any(hidden for hidden, _ in open_ifs) or line.endswith("\\") else line)
            continue
        if directive[1].startswith("if"):
            of_nvcc, negated = "__CUDA" in directive[2], "!" in directive[2] or directive[1] == "ifndef"
            open_ifs.append((of_nvcc and not negated, of_nvcc and negated))
        elif directive[1] == "endif":
            open_ifs.pop()
        else:
            open_ifs[-1] = (open_ifs[-1][1], open_ifs[-1][1])
        result.append("")
    return result


def statement(lines, number):
    """The line and those behind it until its parentheses are closed, as one; and the last one's number."""
    text, depth, last = "", 0, number
    for last in range(number, min(number + 12, len(lines))):
        code = lines[last].split("//")[0].rstrip()
        text += code if last == number else " " + code.strip()
        depth += code.count("(") - code.count(")")
        if depth <= 0 and (not code or code[-1] in ";{},"):
            break
        if depth <= 0 and re.match(r"\s*(?:\} else )?if \(", text) and lines[last + 1].lstrip()[:1] not in ("?", ":", "&", "|"):
            break
    return text, last


def closing(text, at):
    """Of the parenthesis at `at`."""
    depth = 0
    for i in range(at, len(text)):
        depth += (text[i] == "(") - (text[i] == ")")
        if depth == 0:
            return i
    return None


def without_condition(text):
    """What each `if` of a statement becomes: one that only leaves is never true, another always."""
    for found in re.finditer(r"\bif \(", text):
        end = closing(text, found.end() - 1)
        if end is None or text[:found.start()].lstrip().startswith("//"):
            continue
        condition, rest = text[found.end():end], text[end + 1:]
        if re.match(r"\s*(?:return|break|continue)\b", rest):
            if ";" in condition or re.match(r"(?:const|auto)\b", condition):
                yield "without the test", f"{text[:found.start()]}if (!is_mutant(@)) {text[found.start():]}"
            else:
                yield "without the test", f"{text[:found.end()]}!is_mutant(@) && ({condition})){rest}"
        else:
            made, _, condition = condition.rpartition("; ")
            yield "without the condition", f"{text[:found.end()]}{made + '; ' if made else ''}is_mutant(@) || ({condition})){rest}"


def other_turns(line, unrolled):
    """A loop's bound: one element further where threads share the elements, or without its last turn."""
    found = LOOP.match(line)
    if found is None or line.lstrip().startswith("//"):
        return None
    head, begin, _, comparison, bound, tail, step = found.groups()
    constant = OF_CONSTANTS.fullmatch(bound) is not None
    if constant and unrolled and step.startswith("++"):
        return None  # so many registers: no bounds test
    if comparison in (">", ">="):
        return "without the last turn", f"{head}({bound}) + (is_mutant(@) ? 1 : 0){tail}"
    if by := re.match(r"\w+ \*= (.*)", step):
        return "without the last turn", f"{head}({bound}) / (is_mutant(@) ? {by[1]} : 1){tail}"
    by = re.match(r"\w+ \+= ([^,]*)", step)
    if by is not None and OF_THREAD.search(begin):
        return ("without the last element", f"{head}({bound}) - (is_mutant(@) ? 1 : 0){tail}") if constant else (
            "one element further", f"{head}({bound}) + (is_mutant(@) ? 1 : 0){tail}")
    return "without the last turn", f"{head}({bound}) - (is_mutant(@) ? {by[1] if by is not None else 1} : 0){tail}"


def of_file(name, lines):
    """Its mutants."""
    lines = of_this_compiler(lines)
    seen, masked = set(), 0

    def replaced(pattern, replacement, text):
        return pattern.sub(lambda m: m.expand(replacement.replace("{}", "is_mutant(@)")), text)

    for number, line in enumerate(lines):
        is_first = line.strip() not in seen
        seen.add(line.strip())
        for what, pattern, replacement in RULES:
            if pattern.match(line):
                yield Mutant(name, number + 1, number + 1, what, line, replaced(pattern, replacement, line), is_first)
        what, pattern, replacement = MASK
        if number < masked or re.search(r"\bconstexpr (?!\()", line):
            pass
        elif pattern.match(line):
            yield Mutant(name, number + 1, number + 1, what, line, replaced(pattern, replacement, line), is_first)
        else:
            text, last = statement(lines, number)
            if last > number and " ? " in text and not any(map(pattern.match, lines[number:last + 1])) and pattern.match(text):
                masked = last + 1
                yield Mutant(name, number + 1, last + 1, what, text, replaced(pattern, replacement, text))
        if re.search(r"\bif \(", line):
            text, last = statement(lines, number)
            has_else = line.endswith("{") and any(re.match(r"\s*\} else", later) for later in lines[number + 1:number + 12])
            for what, changed in without_condition(text):
                yield Mutant(name, number + 1, last + 1, what, text, changed, is_first, "" if has_else else line)
        turns = other_turns(line, lines[number - 1].strip() == "#pragma unroll")
        if turns is not None:
            yield Mutant(name, number + 1, number + 1, turns[0], line, turns[1], is_first)
        strides = {m.start(): (m, counted) for counted, pattern in ((True, COUNTED_STRIDE), (False, STRIDE)) for m in pattern.finditer(line)}
        for m, counted in strides.values() if not NO_STRIDE.search(line) else ():
            changed = f"{line[:m.start()]}({m[1]} + (is_mutant(@) ? 1 : 0)){line[m.end():]}"
            yield Mutant(name, number + 1, number + 1, f"with {m[1]} one more", line, changed, counted=counted)


def mutants(root):
    """Of every file; and the names of those that have some and no entry."""
    every, without_entry = [], []
    for path in sorted((root / "kernels/cuda").glob("*")):
        if path.suffix not in (".cu", ".h") or path.name in HOST_FILES:
            continue
        found = list(of_file(path.name, path.read_text(encoding="utf-8").splitlines()))
        if found and path.name not in FILES:
            without_entry.append(f"{path.name} has {len(found)} mutants and no entry in FILES, as {found[0]}")
        every += found if path.name in FILES else []
    for number, mutant in enumerate(every):
        mutant.id = number + 1
    return every, without_entry


def drawn(every, count, seed):
    """So many at random, a few of a file beside each other: those of a file are compiled once. Files are drawn by
    how many they have."""
    draw, left, out = random.Random(seed), list(every), []
    while left and len(out) < count:
        name = draw.choice(left).name
        of_its_file = [m for m in left if m.name == name]
        out += draw.sample(of_its_file, min(DRAWN_OF_A_FILE, len(of_its_file), count - len(out)))
        left = [m for m in left if m.name != name]
    return sorted(out, key=str)


class Workshop:
    """Programs with mutants, and their runs."""

    def __init__(self, build, root, folder, chosen):
        self.build, self.folder = build, folder
        commands = subprocess.run(["ninja", "-C", build, "-t", "commands", "test_cuda_emulated"], capture_output=True,
                                  text=True, check=True).stdout.splitlines()
        self.compile = {f: next(c for c in commands if c.endswith(f"kernels/cuda/{f}") and "kernels_traced" in c)
                        for f in {way[0] for m in chosen for way in m.ways}}
        self.link = next(c for c in commands if "-o bin/test_cuda_emulated" in c)
        self.text = {name: (root / "kernels/cuda" / name).read_text(encoding="utf-8").splitlines() for name in FILES}
        self.together = {}  # of a file, and none has lines of another
        for m in chosen:
            m.group = next(g for g in ((m.name, i) for i in itertools.count()) if all(map(m.beside, self.together.get(g, ()))))
            self.together.setdefault(m.group, []).append(m)
        self.programs, self.lock = {}, threading.Lock()

    def found(self, mutant):
        """Whether a test fails; None where no way compiles."""
        results = []
        for source, tests in mutant.ways:
            with self.lock:
                made = self.programs.setdefault((mutant.group, source), Program())
            with made.lock:
                if made.mutants is None:
                    made.mutants = self.make(made, mutant.group, source, tests, self.folder / f"{len(self.programs)}-{source}")
            if mutant in made.mutants:
                results.append(self.found_by(made, tests, mutant))
                if results[-1]:
                    return True
        return False if results else None

    def make(self, program, group, source, tests, folder):
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
                lines[m.number - 1:m.last] = [m.changed.replace("@", str(m.id))] + [""] * (m.last - m.number)
            changed.write_text("\n".join(lines) + "\n", encoding="utf-8")
            run = subprocess.run(words, cwd=self.build, capture_output=True, text=True, check=False)
            if run.returncode == 0:
                break
            wrong = {int(n) for n in re.findall(rf"{re.escape(name)}:(\d+):", run.stderr)}
            left = [m for m in all_of if wrong.isdisjoint(range(m.number, m.last + 1))]
            if len(left) == len(all_of):
                raise RuntimeError(f"{name} does not compile: {run.stderr[-2000:]}")
            all_of = left
        if not all_of:
            return []
        link = self.link.replace("-o bin/test_cuda_emulated", f"-o {program.path}")
        link = link.replace("lib/liboar_cuda_kernels_traced.a", f"{obj} lib/liboar_cuda_kernels_traced.a", 1)
        subprocess.run(link, cwd=self.build, shell=True, check=True, capture_output=True)
        for pattern in tests.split(","):
            listed = subprocess.run([program.path, pattern, "--list-test-names-only"], cwd=self.build, env=dict(os.environ, OAR_MUTANT="0"),
                                    capture_output=True, check=False)
            if not listed.stdout.strip():
                raise RuntimeError(f"{name}: no test is called {pattern}")
        started = time.monotonic()
        if self.found_by(program, tests, None):
            raise RuntimeError(f"{name}: tests fail without a mutant: {tests}")
        program.seconds = min(MOST_SECONDS, 5 + round(10 * (time.monotonic() - started)))
        return all_of

    def found_by(self, program, tests, mutant):
        environment = dict(os.environ, OAR_MUTANT=str(mutant.id if mutant is not None else 0))
        try:
            run = subprocess.run(["prlimit", f"--cpu={program.seconds}", program.path, tests, "--abort"], cwd=self.build, env=environment,
                                 capture_output=True, timeout=900, check=False)
        except subprocess.TimeoutExpired:  # it waits for ever without work
            return True
        return run.returncode != 0


class Program:
    def __init__(self):
        self.path, self.mutants, self.lock, self.seconds = None, None, threading.Lock(), MOST_SECONDS


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("build", type=pathlib.Path)
    parser.add_argument("root", type=pathlib.Path)
    parser.add_argument("--all", action="store_true")
    parser.add_argument("--only", nargs="*", metavar="FILE", help="all mutants of these files")
    parser.add_argument("--wide", action="store_true", help="by all rules, also of files that are not in WIDE")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--jobs", type=int, default=1)
    args = parser.parse_args()
    chosen, without_entry = mutants(args.root)
    if without_entry:
        print(*without_entry, sep="\n")
        return 1
    lines = {key for m in chosen for key in m.keys()}
    if stale := [entry for entry in EQUIVALENT if entry not in lines]:
        print(*(f"EQUIVALENT names no mutant: {name}: {line}" for name, line in stale), sep="\n")
        return 1
    if not args.wide:
        chosen = [m for m in chosen if m.settled()]
    if args.only:
        chosen = [m for m in chosen if m.name in args.only]
    elif not args.all:
        chosen = drawn([m for m in chosen if not m.equivalent()], args.count, args.seed)
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
