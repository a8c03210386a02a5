"""For pytest -p: takes the place of what Triton's tests of its protocols share, whose classes count runs in unittest's own way."""
import sys
import types
import unittest

sys.modules["test_util"] = types.SimpleNamespace(TestResultCollector=unittest.TestCase)
