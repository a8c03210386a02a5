#!/usr/bin/env python3
"""fault_test.py OAR: an error that sticks to the emulated CUDA device ends what runs on it, with the error named."""
import os
import signal
import subprocess
import sys
import unittest

OAR = sys.argv[1]
NAMED = ("a launch fails, as OAR_CUDA_EMULATED asks", "cudaErrorLaunchFailure")


def words(command):
    return [OAR, command, "demo", "--device", "cuda_emulated", "--max-context", "64"]


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

    def test_without_a_fault_nothing_is_said(self):
        done = subprocess.run([*words("generate"), "--prompt", "O", "--max-tokens", "2"], text=True, capture_output=True, timeout=300,
                              check=False)
        self.assertEqual(done.returncode, 0, done.stderr)
        for word in NAMED:
            self.assertNotIn(word, done.stderr)

    def test_what_cannot_be_asked_for(self):
        done = subprocess.run([*words("generate"), "--prompt", "O"], text=True, capture_output=True, timeout=300, check=False,
                              env={**os.environ, "OAR_CUDA_EMULATED": "devices=3"})
        self.assertEqual(done.returncode, -signal.SIGABRT)
        self.assertIn('OAR_CUDA_EMULATED has "devices=3"', done.stderr)


if __name__ == "__main__":
    unittest.main(argv=sys.argv[:1])
