#!/usr/bin/env python3
"""kernels_test.py OBJECTS...: one line a kernel of kernels/cuda: registers, stack (spills lie there), wide accesses, and how many of a
loop's instructions are those of tensor cores.

Objects of nvcc hold ELF files of the device's code, which is read here: .nv.info says what a kernel needs, and .text is
16 bytes an instruction. No GPU and no disassembler is needed.
"""
import collections
import ctypes
import pathlib
import re
import struct
import sys
import unittest

MOST_BYTES = 1 << 30  # of device code; what is no frame says more
OBJECTS = [pathlib.Path(p) for p in sys.argv[1:] if p.endswith(".o")]
# What a kernel may need and must have: most registers, instructions at least. None has a stack, so none spills. Names are
# searched in mangled ones, so a line of a template stands for all of its kernels that no line before it has. "loop": the part
# of the loop's instructions that are those of tensor cores, at least.
KERNELS = [
    # name, registers, instructions
    (r"dense_attention_kernelI.*Li4E", 80, {"LDG128": 2}),
    (r"dense_attention_kernelI.*Li1E", 80, {}),
    (r"attention_kernelI.*Lb1EEELi20E", 168, {"LDG128": 1}),  # keys that hold values, three blocks a multiprocessor
    (r"attention_kernelI.*KvTypeE0E", 96, {"LDG128": 2}),  # two loads are a key's eight dims
    (r"attention_kernelI.*KvTypeE[12]E", 96, {"LDG128": 1}),
    (r"attention_kernelI.*QuantizedPages", 96, {"LDG128": 1}),
    (r"tile_kernelI.*Bf16StepsILi4E", 240, {"HMMA": 192, "LDS128": 48, "loop": 0.049}),  # two blocks a multiprocessor
    (r"tile_kernelI.*Bf16StepsILi3E", 208, {"HMMA": 144, "LDS128": 36, "loop": 0.044}),
    (r"tile_kernelI.*Bf16StepsILi[12]E", 176, {"HMMA": 48, "LDS128": 12, "loop": 0.026}),
    (r"tile_kernelI.*CodeStepsILi4E", 255, {"HMMA": 192, "LDS128": 48, "STS128": 16, "loop": 0.034}),
    (r"tile_kernelI.*CodeStepsILi3E", 248, {"HMMA": 144, "LDS128": 36, "STS128": 16, "loop": 0.029}),
    (r"tile_kernelI.*CodeStepsILi[12]E", 216, {"HMMA": 48, "LDS128": 12, "STS128": 16, "loop": 0.013}),
    (r"wgmma_product_of_codesILb1E", 168, {"LDS128": 8, "STG64": 32, "loop": 0.017}),
    (r"wgmma_product_of_codesILb0E", 168, {"LDG128": 8, "STG64": 32, "loop": 0.025}),
    (r"narrow_codes_kernelILb1E", 40, {"LDG128": 2}),
    (r"narrow_codes_kernelILb0E", 40, {}),
    (r"wgmma_product", 96, {"LDG64": 64, "STG64": 32, "loop": 0.043}),
    (r"span_kernelI.*Bf16Cache", 168, {"LDG128": 8, "HMMA": 32, "LDS128": 4, "loop": 0.035}),
    (r"span_kernelI.*CodeCache", 168, {"LDG128": 8, "LDG32": 8, "HMMA": 32, "LDS128": 4, "loop": 0.0066}),
    (r"split_kernelI.*KvTypeE0E", 128, {"LDG128": 2}),
    (r"split_kernelI.*KvTypeE[12]E", 128, {"LDG128": 1}),
    (r"split_kernelI.*QuantizedPages", 128, {"LDG128": 1}),
    (r"append_kernelI", 32, {}),
    (r"lora_down_kernelIfLb1E", 64, {"LDG128": 2}),
    (r"lora_down_kernelItLb1E", 64, {"LDG128": 1, "LDG64": 1}),
    (r"lora_down_kernelI", 80, {}),
    (r"lora_up_kernelI", 80, {}),
    (r"made_rows_kernelILb1E.*RmsNormArgs", 48, {"LDG128": 5, "STG128": 2}),
    (r"made_rows_kernelILb1E.*SwiGluArgs", 48, {"LDG128": 3, "STG128": 1}),
    (r"made_rows_kernelI", 48, {}),
    (r"rows_kernel", 32, {}),
    (r"quantize_kernel", 48, {"LDG128": 2}),
    (r"tensor_product_of_manyI.*Bf16RowsILb1E", 200, {"LDG128": 8, "HMMA": 64, "LDS128": 32, "loop": 0.32}),  # one block a multiprocessor
    (r"tensor_product_of_manyI.*Bf16RowsILb0E", 200, {"HMMA": 64, "LDS128": 32, "loop": 0.16}),
    (r"tensor_product_of_manyI.*BlocksI.*ELb1EEEv", 248, {"LDG128": 2, "HMMA": 64, "LDS128": 32, "loop": 0.115}),
    (r"tensor_product_of_manyI.*BlocksI.*ELb0EEEv", 248, {"HMMA": 64, "LDS128": 32, "loop": 0.115}),
    (r"tensor_productI.*BlocksI.*ELb1EEEv", 176, {"LDG128": 3, "HMMA": 16, "LDS128": 8, "loop": 0.0083}),
    (r"tensor_productI.*BlocksI.*ELb0EEEv", 176, {"HMMA": 16, "loop": 0.0082}),
    (r"tensor_product_of_manyI.*CodesI.*ELb1EEEv", 248, {"LDG128": 4, "HMMA": 64, "LDS128": 32, "loop": 0.18}),
    (r"tensor_product_of_manyI.*CodesI.*ELb0EEEv", 248, {"HMMA": 64, "LDS128": 32, "loop": 0.18}),
    (r"tensor_productsI.*Bf16RowsILb1EEELb1E", 128, {"LDG128": 9, "HMMA": 16, "LDS128": 8, "loop": 0.0124}),  # of heads and experts, too
    (r"tensor_productsI.*Bf16RowsI", 128, {"LDG128": 9, "HMMA": 16, "LDS128": 8, "loop": 0.013}),
    (r"tensor_productsI.*(Codes|Blocks)I", 192, {"LDG128": 3, "HMMA": 16, "LDS128": 8, "loop": 0.0083}),
    (r"tensor_productI.*Bf16RowsILb1E", 128, {"LDG128": 9, "HMMA": 16, "LDS128": 8, "loop": 0.013}),
    (r"tensor_productI.*Bf16RowsILb0E", 128, {"HMMA": 16, "loop": 0.0093}),
    (r"tensor_productI.*CodesI.*4CodeE0E.*ELb1EEEv", 168, {"LDG128": 3, "HMMA": 16, "LDS128": 8, "loop": 0.011}),
    (r"tensor_productI.*CodesI.*4CodeE[12]E.*ELb1EEEv", 176, {"LDG128": 5, "HMMA": 16, "LDS128": 8, "loop": 0.012}),
    (r"tensor_productI.*CodesI.*ELb0EEEv", 168, {"HMMA": 16, "loop": 0.011}),
    (r"mixed_products", 200, {"LDG128": 44, "HMMA": 320, "LDS128": 160, "loop": 0.0043}),  # of every format
    (r"general_product", 64, {}),
    (r"embedding_kernel", 64, {}),
    (r"narrow_kernelILb1E", 40, {"LDG128": 4, "STG128": 1}),
    (r"narrow_kernelILb0E", 48, {"STG128": 1}),
    (r"rms_norm_kernelILb1E", 40, {"LDG128": 4, "STG128": 2}),
    (r"rms_norm_kernelILb0E", 40, {}),
    (r"layer_norm_kernelILb1E", 40, {"LDG128": 4, "STG128": 2}),
    (r"layer_norm_kernelILb0E", 40, {}),
    (r"heads_kernelI.*PageCodes", 72, {"LDG128": 2}),  # of few rows
    (r"heads_kernelI", 48, {}),
    (r"rope_kernel", 56, {}),  # of several calls
    (r"softmax_kernel", 40, {}),
    (r"panels_to_rows", 32, {"LDG128": 1, "STG128": 1}),
    (r"quantized_depthwise_kernel", 40, {}),
    (r"quantized_kernelIL.*GatherE0ELi4E", 168, {"IMMA": 16, "LDS32": 8, "loop": 0.012}),  # three blocks a multiprocessor
    (r"quantized_kernelIL.*GatherE0ELi1E", 128, {"IMMA": 4, "LDS32": 8, "loop": 0.0032}),
    (r"quantized_kernelIL.*GatherE1ELi4E", 168, {"IMMA": 16, "LDS32": 8, "loop": 0.0034}),  # channels that are no words
    (r"quantized_kernelIL.*GatherE1ELi1E", 128, {"IMMA": 4, "LDS32": 8, "loop": 0.00085}),
    (r"quantized_kernelIL.*GatherE2ELi4E", 168, {"IMMA": 16, "LDS32": 8, "loop": 0.0035}),  # planes
    (r"quantized_kernelIL.*GatherE2ELi1E", 128, {"IMMA": 4, "LDS32": 8, "loop": 0.00085}),
    (r"to_codes_kernelILi4E", 40, {"LDG128": 1, "STG32": 1}),
    (r"to_codes_kernelILi1E", 40, {}),
    (r"to_values_kernelILi4E", 40, {"STG128": 1}),
    (r"integers_kernelILi4E", 32, {"LDG128": 1, "STG128": 1}),
    (r"(to_values|integers)_kernelILi1E", 40, {}),
    (r"reach_kernel", 40, {}),
    (r"recurrent_kernel", 64, {"LDS128": 2}),
    (r"rounded_kernelI.*ILi2ELi8ELi4EEELb1E", 208, {"LDG128": 4, "HMMA": 32, "loop": 0.046}),  # one block a multiprocessor
    (r"rounded_kernelI.*ILi2ELi8ELi4EEELb0E", 176, {"HMMA": 32, "loop": 0.018}),
    (r"rounded_kernelI.*ILi1ELi4ELi4EEELb1E", 104, {"LDG128": 2, "HMMA": 8, "loop": 0.017}),  # two
    (r"rounded_kernelI.*ILi1ELi4ELi4EEELb0E", 104, {"HMMA": 8, "loop": 0.0078}),
    (r"rounded_kernelI.*Lb1E", 64, {"LDG128": 2, "HMMA": 2, "loop": 0.0056}),
    (r"rounded_kernelI.*Lb0E", 64, {"HMMA": 2, "loop": 0.0031}),
    (r"conv_kernelILi4ELi4E", 104, {}),
    (r"conv_kernelI", 80, {}),
    (r"(depthwise|pool|resize)_kernelILi4E", 48, {"LDG128": 1, "STG128": 1}),
    (r"(depthwise|pool|resize)_kernelILi1E", 40, {}),
    (r"reduce_kernel", 40, {}),
    (r"strided_copy_kernelI5uint4", 48, {"LDG128": 1, "STG128": 1}),
    (r"strided_copy_kernel", 48, {}),
    (r"hadamard_kernel", 32, {}),
    (r"gather_kernelI6float4", 24, {"LDG128": 1, "STG128": 1}),
    (r"gather_kernelIf", 24, {}),
    (r"sine_kernelILi4", 32, {"LDG128": 1, "STG128": 1}),
    (r"sine_kernelILi1", 32, {}),
    (r"(unary|activate)_kernelILi4", 32, {"LDG128": 1, "STG128": 1}),
    (r"(binary|swiglu)_kernelILi4", 40, {"LDG128": 2, "STG128": 1}),
    (r"(unary|activate|binary|swiglu)_kernelILi1", 32, {}),
    (r"elements_kernel", 32, {}),  # of few elements
    (r"causal_conv_kernel", 56, {}),
    (r"state_scan_kernel", 80, {}),
    (r"sample_kernel", 96, {}),
    (r"feed_kernel", 24, {}),
    (r"choose_kernel", 40, {}),
    (r"sort_kernel", 40, {}),
    (r"combine_kernel", 40, {}),
    (r"combine_norm_kernelILb1E", 48, {"LDG128": 4, "STG128": 3}),
    (r"combine_norm_kernelILb0E", 48, {}),
]
OPCODES = {0x981: "LDG", 0x381: "LDG", 0x986: "STG", 0x386: "STG", 0x984: "LDS", 0x988: "STS", 0x388: "STS"}
TENSOR = {0x23c: "HMMA", 0x237: "IMMA", 0x9f0: "HGMMA", 0x9f3: "QGMMA"}
OPCODES |= TENSOR
BRANCH = 0x947
WIDTHS = ["8", "8", "16", "16", "32", "64", "128", "?"]


def sections(elf):
    start, = struct.unpack_from("<Q", elf, 40)
    size, count, names = struct.unpack_from("<HHH", elf, 58)
    headers = [struct.unpack_from("<IIQQQQ", elf, start + i * size) for i in range(count)]
    for name, kind, _, _, offset, length in headers:
        at = headers[names][4] + name
        yield elf[at:elf.index(b"\0", at)].decode(), elf[offset:offset + length] if kind != 8 else b""


def unpacked(data, at):
    """The frame of zstd there, by the library of the compiler's own packages; nothing where there is none."""
    zstd = ctypes.CDLL("libzstd.so.1")
    zstd.ZSTD_getFrameContentSize.restype = ctypes.c_ulonglong
    zstd.ZSTD_findFrameCompressedSize.restype = zstd.ZSTD_decompress.restype = ctypes.c_size_t
    rest = data[at:]
    size = zstd.ZSTD_getFrameContentSize(rest, ctypes.c_size_t(len(rest)))
    packed = zstd.ZSTD_findFrameCompressedSize(rest, ctypes.c_size_t(len(rest)))
    if size > MOST_BYTES or zstd.ZSTD_isError(ctypes.c_size_t(packed)):
        return b""
    out = ctypes.create_string_buffer(size)
    done = zstd.ZSTD_decompress(out, ctypes.c_size_t(size), rest, ctypes.c_size_t(packed))
    return out.raw if done == size else b""


def device_code(data):
    """The ELF files for compute capability 9.0 in an object file, packed ones (--compress-mode=size) and others."""
    at = 0
    while (at := data.find(b"\x28\xb5\x2f\xfd", at + 1)) >= 0:
        yield from device_code(b"\0" + unpacked(data, at))
    at = 0
    while (at := data.find(b"\x7fELF", at + 1)) >= 0:
        machine, = struct.unpack_from("<H", data, at + 18)
        flags, = struct.unpack_from("<I", data, at + 48)
        if machine == 190 and 90 in (flags & 0xff, flags >> 8 & 0xff):
            yield data[at:]


def loop_of_tensor_cores(code):
    """What part of a loop are instructions of tensor cores: of loops, which a branch goes back over, that have half as many as any."""
    is_tensor, loops = [], []
    for k in range(0, len(code), 16):
        low, high = struct.unpack_from("<QQ", code, k)
        is_tensor.append(low & 0xfff in TENSOR)
        if low & 0xfff != BRANCH:
            continue
        # Words of 4 bytes from the next instruction on: the lowest byte, then 48 bits.
        rest = low >> 34 | (high & 0x3ffff) << 30
        words = (rest - (rest >> 47 << 48)) * 256 + (low >> 16 & 0xff)
        if words < 0:
            loops.append((k // 16 + 1 + words // 4, k // 16 + 1))
    counts = [(sum(is_tensor[first:end]), end - first) for first, end in loops]
    most = max((n for n, _ in counts), default=0)
    return max((n / length for n, length in counts if 2 * n >= most), default=0)


def kernels_of(elf):
    parts = dict(sections(elf))
    found = collections.defaultdict(lambda: {"registers": 0, "stack": 0, "loop": 0, "instructions": collections.Counter()})

    def symbol(index):
        name, = struct.unpack_from("<I", parts[".symtab"], 24 * index)
        return parts[".strtab"][name:parts[".strtab"].index(b"\0", name)].decode()

    info, at = parts[".nv.info"], 0
    while at < len(info):  # form, attribute, size or value; form 4 has `size` bytes behind it
        form, attribute, size = struct.unpack_from("<BBH", info, at)
        if form == 4 and attribute in (0x2f, 0x11):  # registers, frame
            index, value = struct.unpack_from("<II", info, at + 4)
            found[symbol(index)]["registers" if attribute == 0x2f else "stack"] = value
        at += 4 + (size if form == 4 else 0)
    for name, code in parts.items():
        if not name.startswith(".text."):
            continue
        counts = found[name[6:]]["instructions"]
        found[name[6:]]["loop"] = loop_of_tensor_cores(code)
        for k in range(0, len(code), 16):
            low, high = struct.unpack_from("<QQ", code, k)
            word = OPCODES.get(low & 0xfff)
            if word is not None:
                counts[word if word in TENSOR.values() else word + WIDTHS[high >> 9 & 7]] += 1
    return {name: k for name, k in found.items() if k["registers"] > 0}


class Kernels(unittest.TestCase):
    def test_every_kernel_has_its_line(self):
        seen = set()
        for path in OBJECTS:
            for elf in device_code(path.read_bytes()):
                for name, kernel in kernels_of(elf).items():
                    with self.subTest(kernel=name, needs=kernel):
                        line = next((k for k in KERNELS if re.search(k[0], name)), None)
                        self.assertIsNotNone(line, "a kernel without a line in this table")
                        seen.add(line[0])
                        self.assertLessEqual(kernel["registers"], line[1])
                        self.assertEqual(kernel["stack"], 0)
                        for word, least in line[2].items():
                            self.assertGreaterEqual(kernel["loop"] if word == "loop" else kernel["instructions"][word], least)
                        # By tensor cores, so it says what part of its loop.
                        self.assertEqual("loop" in line[2], any(kernel["instructions"][word] for word in TENSOR.values()))
        if not seen:
            self.skipTest("no code for compute capability 9.0 in these objects")
        self.assertEqual(seen, {k[0] for k in KERNELS}, "lines of kernels that are gone")


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
