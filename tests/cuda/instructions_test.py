#!/usr/bin/env python3
"""instructions_test.py NVCC ROOT: nvcc makes the expected instructions of the vocabulary's words (device.h, hopper.h, wgmma.h,
mma_rounded.h), without spills.

The assembler's own report is read, so no GPU and no disassembler is needed.
"""
import pathlib
import re
import subprocess
import sys
import tempfile
import unittest

NVCC, ROOT = sys.argv[1], pathlib.Path(sys.argv[2])
# Of each kernel: its instructions, and the most registers that it may take.
KERNELS = {
    "reads_box": (["mbarrier.init.shared::cta.b64", "mbarrier.arrive.expect_tx.shared::cta.b64",
                   "mbarrier.try_wait.parity.shared::cta.b64", "fence.proxy.async.shared::cta",
                   "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
                   "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes",
                   "createpolicy.fractional.L2::evict_first.b64",
                   "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint",
                   "cp.async.bulk.tensor.3d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.L2::cache_hint"], 32),
    "sums_boxes": (["mbarrier.arrive.shared::cta.b64",
                    "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes"], 40),
    "writes_box": (["cp.async.bulk.tensor.2d.global.shared::cta.tile.bulk_group",
                    "cp.async.bulk.tensor.3d.global.shared::cta.tile.bulk_group",
                    "cp.async.bulk.commit_group", "cp.async.bulk.wait_group"], 32),
    "exchanges": (["%cluster_ctarank", "barrier.cluster.arrive.release.aligned", "barrier.cluster.wait.acquire.aligned",
                   "mapa.u64"], 24),
    "sums_shared_boxes": (["fence.mbarrier_init.release.cluster", "mapa.shared::cluster.u32",
                           "mbarrier.arrive.release.cluster.shared::cluster.b64",
                           "mbarrier.try_wait.parity.acquire.cluster.shared::cta.b64",
                           "cp.async.bulk.tensor.2d.shared::cluster.global.tile.mbarrier::complete_tx::bytes.multicast::cluster"], 40),
    "multiplies_group": (["wgmma.fence.sync.aligned", "wgmma.commit_group.sync.aligned", "wgmma.wait_group.sync.aligned",
                          "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16",
                          "wgmma.mma_async.sync.aligned.m64n64k32.f32.e4m3.e4m3",
                          "wgmma.mma_async.sync.aligned.m64n64k32.s32.s8.s8"], 64),
    "loads_matrices": (["griddepcontrol.wait", "griddepcontrol.launch_dependents", "cp.async.cg.shared.global",
                        "cp.async.commit_group", "cp.async.wait_group", "ldmatrix.sync.aligned.m8n8.x4.shared.b16",
                        "ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16"], 32),
    "repeats_products": (["wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16",
                          "wgmma.mma_async.sync.aligned.m64n128k32.f32.e4m3.e4m3"], 96),
    "multiplies_fragments": (["mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
                              "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
                              "mma.sync.aligned.m16n8k8.row.col.f32.tf32.tf32.f32",
                              "mma.sync.aligned.m16n8k32.row.col.f32.e4m3.e4m3.f32",
                              "mma.sync.aligned.m16n8k32.row.col.s32.s8.s8.s32"], 64),
    "rounds_operands": (["cvt.rna.tf32.f32", "cvt.rn.f16x2.f32"], 24),
}


class Instructions(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.ptx = cls.report = ""
        for name in ("box_kernels.cc", "cluster_kernels.cc", "rounding_kernels.cc", "wgmma_kernels.cc"):
            with tempfile.TemporaryDirectory() as folder:
                ptx, cubin = f"{folder}/k.ptx", f"{folder}/k.cubin"
                source = ["-std=c++20", "-arch=sm_90a", "-Werror", "all-warnings", "-I", str(ROOT), "-x", "cu",
                          str(ROOT / "tests/cuda" / name)]
                cls.run_tool(NVCC, *source, "-ptx", "-o", ptx)
                # From PTX on: ptxas takes every instruction for sm_90a, and says what they need.
                cls.report += cls.run_tool(NVCC, "-arch=sm_90a", "-cubin", "-Xptxas", "-v", ptx, "-o", cubin)
                cls.ptx += pathlib.Path(ptx).read_text(encoding="utf-8")

    @staticmethod
    def run_tool(*command):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise AssertionError(" ".join(command) + "\n" + done.stderr)
        return done.stdout + done.stderr

    def test_instructions(self):
        bodies = {name: body for name in KERNELS for body in self.ptx.split(".entry ")[1:] if name in body.split("(")[0]}
        for name, (instructions, _) in KERNELS.items():
            for instruction in instructions:
                with self.subTest(kernel=name, instruction=instruction):
                    self.assertIn(instruction, bodies[name])

    def test_registers_and_stack(self):
        for name, (_, most) in KERNELS.items():
            said = re.search(name + r"\w*' for 'sm_90a'.*?(\d+) bytes stack frame, (\d+) bytes spill stores, "
                             r"(\d+) bytes spill loads.*?Used (\d+) registers", self.report, re.S)
            with self.subTest(kernel=name, report=self.report):
                self.assertIsNotNone(said)
                self.assertEqual(said.groups()[:3], ("0", "0", "0"))
                self.assertLessEqual(int(said[4]), most)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
