#!/usr/bin/env python3
"""fault_test.py OAR: an error that sticks to the emulated CUDA device ends what runs on it, with the error named; a second device
does all that the first does."""
import os
import signal
import subprocess
import sys
import unittest

OAR = sys.argv[1]
NAMED = ("a launch fails, as OAR_CUDA_EMULATED asks", "cudaErrorLaunchFailure")


def words(command, device="cuda_emulated"):
    return [OAR, command, "demo", "--device", device, "--max-context", "64"]


class Faults(unittest.TestCase):
    def check_named(self, text):
        for word in NAMED:
            self.assertIn(word, text)

    def test_a_program_ends_with_the_error(self):
        for launch in (3, 60):  # of the first step, and of one that generates
            with self.subTest(launch=launch):
                done = subprocess.run([*words("generate"), "--prompt", "O", "--max-tokens", "8"], text=True, capture_output=True,
                                      timeout=300, check=False, env={**os.environ, "OAR_CUDA_EMULATED": f"fail_launch={launch}"})
                self.assertEqual(done.returncode, 1, done.stderr)
                self.check_named(done.stderr)

    def test_a_server_drains_and_exits_with_an_error(self):
        if "OAR_SERVER=OFF" in subprocess.run([OAR, "version"], text=True, capture_output=True, check=True).stdout:
            self.skipTest("no server in this build")
        served = subprocess.run([*words("serve"), "--http", "127.0.0.1:0", "--grpc", ""], text=True, stdout=subprocess.PIPE,
                                stderr=subprocess.STDOUT, timeout=300, check=False,
                                env={**os.environ, "OAR_CUDA_EMULATED": "fail_launch=5"})
        self.assertEqual(served.returncode, 1, served.stdout)
        self.check_named(served.stdout)

    def test_without_a_fault_both_devices_say_the_same(self):
        # A call that is made for the other device is refused (emulation/runtime.cc).
        texts = []
        for device in ("cuda_emulated:0", "cuda_emulated:1"):
            done = subprocess.run([*words("generate", device), "--prompt", "O", "--max-tokens", "4", "--temperature", "0"], text=True,
                                  capture_output=True, timeout=300, check=False, env={**os.environ, "OAR_CUDA_EMULATED": "devices=2"})
            self.assertEqual(done.returncode, 0, done.stderr)
            for word in NAMED:
                self.assertNotIn(word, done.stderr)
            texts.append(done.stdout)
        self.assertNotEqual(texts[0], "")
        self.assertEqual(*texts)

    def test_what_cannot_be_asked_for(self):
        done = subprocess.run([*words("generate"), "--prompt", "O"], text=True, capture_output=True, timeout=300, check=False,
                              env={**os.environ, "OAR_CUDA_EMULATED": "devices=3"})
        self.assertEqual(done.returncode, -signal.SIGABRT)
        self.assertIn('OAR_CUDA_EMULATED has "devices=3"', done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
