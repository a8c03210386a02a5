#!/usr/bin/env python3
"""Triton's `tritonclient` (gRPC and HTTP) and `openai` against `oar serve` with a model repository.

    OAR=build/release/bin/oar python tests/server/test_tensor_clients.py

Writes a repository of small ONNX models and a tiny random encoder into a temporary folder, serves it on free ports, and
ends the server with SIGTERM. Needs numpy, onnx, openai, tritonclient[grpc]; the HTTP part also tritonclient[http].
"""
import base64
import json
import os
import queue
import re
import signal
import subprocess
import sys
import tempfile
import threading
import unittest
from pathlib import Path

import numpy as np
import onnx
import openai
import tritonclient.grpc as grpcclient
from onnx import TensorProto, helper
from tritonclient.utils import InferenceServerException

try:
    import tritonclient.http as httpclient
except (ImportError, RuntimeError):  # what the package raises without its extra
    httpclient = None

OAR = os.environ.get("OAR", "build/release/bin/oar")
ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/golden"))
TYPES = {"FP32": (TensorProto.FLOAT, np.float32), "FP64": (TensorProto.DOUBLE, np.float64), "FP16": (TensorProto.FLOAT16, np.float16),
         "INT8": (TensorProto.INT8, np.int8), "INT16": (TensorProto.INT16, np.int16), "INT32": (TensorProto.INT32, np.int32),
         "INT64": (TensorProto.INT64, np.int64), "UINT8": (TensorProto.UINT8, np.uint8), "UINT16": (TensorProto.UINT16, np.uint16),
         "UINT32": (TensorProto.UINT32, np.uint32), "UINT64": (TensorProto.UINT64, np.uint64), "BOOL": (TensorProto.BOOL, np.bool_),
         "BYTES": (TensorProto.STRING, np.object_)}


def write_model(path, nodes, inputs, outputs, constants=()):
    path.parent.mkdir(parents=True, exist_ok=True)
    graph = helper.make_graph(nodes, "g", [helper.make_tensor_value_info(n, t, s) for n, t, s in inputs],
                              [helper.make_tensor_value_info(n, t, s) for n, t, s in outputs], constants)
    onnx.save(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8), str(path))


def write_encoder(folder):
    from safetensors.numpy import save_file
    from tiny_weights import tiny_weights
    golden = json.loads((ROOT / "tests/golden/encoders/bert.json").read_text())
    folder.mkdir(parents=True)
    (folder / "config.json").write_text(json.dumps(golden["config"]))
    seed = int(golden["weight_seed"], 16)
    save_file({t["name"]: tiny_weights(t["name"], tuple(t["shape"]), seed) for t in golden["tensors"]},
              str(folder / "model.safetensors"))
    (folder / "vocab.txt").write_text("\n".join(["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"] + [f"w{k}" for k in range(5, 96)]))
    return golden


def write_repository(folder):
    shape = ["batch", 3]
    for version, factor in ((1, 1.0), (2, 2.0)):
        write_model(folder / f"scale/{version}/model.onnx", [helper.make_node("Mul", ["x", "f"], ["y"])],
                    [("x", TensorProto.FLOAT, shape)], [("y", TensorProto.FLOAT, shape)],
                    [helper.make_tensor("f", TensorProto.FLOAT, [1], [factor])])
    (folder / "scale/config.pbtxt").write_text(
        'name: "scale"\nmax_batch_size: 16\ninput { name: "x" data_type: TYPE_FP32 dims: [ 3 ] }\n'
        "version_policy { all {} }\ndynamic_batching { max_queue_delay_microseconds: 2000 }\n")
    for name, (kind, _) in TYPES.items():
        write_model(folder / f"same_{name}/1/model.onnx", [helper.make_node("Identity", ["x"], ["y"])],
                    [("x", kind, shape)], [("y", kind, shape)])
    try:
        return write_encoder(folder / "encoder")
    except ImportError:  # no safetensors: the encoder's tests are skipped
        return None


def values(name, shape, seed=0):
    rng = np.random.default_rng(seed)
    kind = TYPES[name][1]
    if name == "BYTES":
        return np.array([bytes(rng.integers(0, 256, n).astype(np.uint8)) for n in range(int(np.prod(shape)))], np.object_).reshape(shape)
    if name == "BOOL":
        return rng.integers(0, 2, shape).astype(kind)
    if np.issubdtype(kind, np.integer):
        info = np.iinfo(kind)
        return rng.integers(info.min, info.max, shape, kind, endpoint=True)
    return rng.standard_normal(shape).astype(kind)


class Served(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.golden = write_repository(Path(cls.folder.name))
        cls.server = subprocess.Popen([OAR, "serve", cls.folder.name, "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
                                       "--model-control", "explicit", "--shared-memory", "/oar-clients-"],
                                      stdout=subprocess.PIPE, text=True)
        text = ""
        for line in cls.server.stdout:
            text += line
            if line.startswith("ready"):
                break
        cls.http = re.search(r"^http +http://(\S+)", text, re.M).group(1)
        cls.grpc = re.search(r"^grpc +(\S+)", text, re.M).group(1)
        threading.Thread(target=cls.server.stdout.read, daemon=True).start()

    @classmethod
    def tearDownClass(cls):
        cls.server.send_signal(signal.SIGTERM)
        status = cls.server.wait(30)
        cls.folder.cleanup()
        assert status == 0, f"the server ended with status {status}"

    def client(self, module):
        return module.InferenceServerClient(self.http if module is httpclient else self.grpc)

    def infer(self, module, client, model, x, datatype, binary=True, **options):
        tensor = module.InferInput("x", list(x.shape), datatype)
        if module is httpclient:
            tensor.set_data_from_numpy(x, binary_data=binary)
            options["outputs"] = [module.InferRequestedOutput("y", binary_data=binary)]
        else:
            tensor.set_data_from_numpy(x)
        return client.infer(model, [tensor], **options).as_numpy("y")

    def modules(self):
        return [grpcclient] + ([httpclient] if httpclient else [])

    def test_every_datatype(self):
        for module in self.modules():
            client = self.client(module)
            for name in TYPES:
                with self.subTest(module=module.__name__, datatype=name):
                    x = values(name, (2, 3))
                    got = self.infer(module, client, "same_" + name, x, name)
                    self.assertEqual(got.dtype, x.dtype)
                    np.testing.assert_array_equal(got, x)

    @unittest.skipUnless(httpclient, "no tritonclient[http]")
    def test_json_tensors(self):
        client = self.client(httpclient)
        for name in TYPES:
            if name in ("BYTES", "FP16"):  # the client sends text for BYTES, and FP16 as binary only
                continue
            with self.subTest(datatype=name):
                x = values(name, (2, 3))
                got = self.infer(httpclient, client, "same_" + name, x, name, binary=False)
                # Decimal doubles are read to within a unit in the last place; everything narrower exactly.
                (np.testing.assert_allclose if name == "FP64" else np.testing.assert_array_equal)(
                    got, x, **({"rtol": 2.3e-16} if name == "FP64" else {}))

    def test_metadata_config_index(self):
        for module in self.modules():
            with self.subTest(module=module.__name__):
                client = self.client(module)
                self.assertTrue(client.is_server_live() and client.is_server_ready() and client.is_model_ready("scale", "2"))
                as_json = {} if module is httpclient else {"as_json": True}
                self.assertEqual(client.get_model_metadata("scale", **as_json)["versions"], ["1", "2"])
                config = client.get_model_config("scale", **as_json)
                self.assertEqual(config.get("config", config)["max_batch_size"], 16)
                index = client.get_model_repository_index(**as_json)
                names = [m["name"] for m in (index["models"] if isinstance(index, dict) else index)]
                self.assertEqual(names.count("scale"), 2)

    def test_versions_and_errors(self):
        for module in self.modules():
            with self.subTest(module=module.__name__):
                client = self.client(module)
                x = values("FP32", (4, 3))
                np.testing.assert_array_equal(self.infer(module, client, "scale", x, "FP32"), 2 * x)
                np.testing.assert_array_equal(self.infer(module, client, "scale", x, "FP32", model_version="1"), x)
                for bad, kind, message in ((values("FP32", (4, 5)), "FP32", r"FP32 \[4, 5\].*FP32 \[-1, 3\]"),
                                           (values("FP32", (17, 3)), "FP32", "1 to 16 rows"),
                                           (values("INT32", (1, 3)), "INT32", "INT32"),
                                           (values("FP32", (3,)), "FP32", r"FP32 \[3\]")):
                    with self.assertRaisesRegex(InferenceServerException, message):
                        self.infer(module, client, "scale", bad, kind)

    def test_many_clients_share_batches(self):
        errors = []

        def work(seed):
            client = self.client(grpcclient)
            for i in range(20):
                x = values("FP32", (1 + i % 3, 3), seed * 100 + i)
                if not np.array_equal(self.infer(grpcclient, client, "scale", x, "FP32"), 2 * x):
                    errors.append((seed, i))

        threads = [threading.Thread(target=work, args=(n,)) for n in range(12)]
        for t in threads:
            t.start()
        for t in threads:
            t.join()
        self.assertEqual(errors, [])
        stats = self.client(grpcclient).get_inference_statistics("scale", "2", as_json=True)["model_stats"][0]
        self.assertLess(int(stats["execution_count"]), int(stats["inference_stats"]["success"]["count"]))
        self.assertTrue(any(int(b["batch_size"]) > 3 for b in stats["batch_stats"]))

    def test_stream(self):
        client, answers = self.client(grpcclient), queue.Queue()
        client.start_stream(lambda result, error: answers.put((result, error)))
        for i in range(10):
            tensor = grpcclient.InferInput("x", [1, 3], "FP32")
            tensor.set_data_from_numpy(np.full((1, 3), i, np.float32))
            client.async_stream_infer("scale", [tensor], request_id=str(i))
        got = {}
        for _ in range(10):
            result, error = answers.get(timeout=120)
            self.assertIsNone(error)
            got[result.get_response().id] = result.as_numpy("y")[0, 0]
        client.stop_stream()
        self.assertEqual(got, {str(i): 2.0 * i for i in range(10)})

    def test_load_and_unload(self):
        for module in self.modules():
            with self.subTest(module=module.__name__):
                client = self.client(module)
                client.unload_model("same_INT8")
                self.assertFalse(client.is_model_ready("same_INT8"))
                with self.assertRaisesRegex(InferenceServerException, "unloaded"):
                    self.infer(module, client, "same_INT8", values("INT8", (1, 3)), "INT8")
                client.load_model("same_INT8", config='{"max_batch_size": 2}')
                with self.assertRaisesRegex(InferenceServerException, "1 to 2 rows"):
                    self.infer(module, client, "same_INT8", values("INT8", (3, 3)), "INT8")
                client.load_model("same_INT8")

    def test_shared_memory(self):
        try:
            import tritonclient.utils.shared_memory as shm
        except ImportError as e:
            self.skipTest(f"no tritonclient.utils.shared_memory: {e}")
        x = values("FP32", (2, 3))
        for module in self.modules():
            with self.subTest(module=module.__name__):
                client = self.client(module)
                region = shm.create_shared_memory_region("region", f"/oar-clients-{os.getpid()}", 2 * x.nbytes)
                try:
                    shm.set_shared_memory_region(region, [x])
                    client.register_system_shared_memory("region", f"/oar-clients-{os.getpid()}", 2 * x.nbytes)
                    status = client.get_system_shared_memory_status(**({} if module is httpclient else {"as_json": True}))
                    self.assertIn("region", json.dumps(status))
                    tensor = module.InferInput("x", list(x.shape), "FP32")
                    tensor.set_shared_memory("region", x.nbytes)
                    output = module.InferRequestedOutput("y")
                    output.set_shared_memory("region", x.nbytes, offset=x.nbytes)
                    result = client.infer("scale", [tensor], outputs=[output])
                    self.assertIn("shared_memory_region", str(result.get_output("y")))
                    np.testing.assert_array_equal(shm.get_contents_as_numpy(region, np.float32, (4, 3))[2:], 2 * x)
                    with self.assertRaisesRegex(InferenceServerException, "prefix"):
                        client.register_system_shared_memory("other", "/other", 8)
                    tensor.set_shared_memory("region", x.nbytes, offset=x.nbytes + 4)
                    with self.assertRaisesRegex(InferenceServerException, "beyond"):
                        client.infer("scale", [tensor])
                    with self.assertRaisesRegex(InferenceServerException, "CUDA"):
                        client.register_cuda_shared_memory("region", b"", 0, 8)
                    self.assertFalse(client.get_cuda_shared_memory_status(**({} if module is httpclient else {"as_json": True})))
                    client.unregister_cuda_shared_memory()
                finally:
                    client.unregister_system_shared_memory()
                    shm.destroy_shared_memory_region(region)

    def test_settings(self):
        for module in self.modules():
            with self.subTest(module=module.__name__):
                client = self.client(module)
                as_json = {} if module is httpclient else {"as_json": True}
                client.update_log_settings({"log_info": False})
                self.assertIn("ISO8601", json.dumps(client.get_log_settings(**as_json)))
                client.update_log_settings({"log_info": True})
                with self.assertRaisesRegex(InferenceServerException, "log_file"):
                    client.update_log_settings({"log_file": "x"})
                client.update_trace_settings("scale", {"trace_rate": "7"})
                self.assertIn('"7"', json.dumps(client.get_trace_settings("scale", **as_json)))
                client.update_trace_settings("scale", {"trace_rate": None})
                self.assertNotIn('"7"', json.dumps(client.get_trace_settings("scale", **as_json)))
                with self.assertRaisesRegex(InferenceServerException, "--trace"):
                    client.update_trace_settings(settings={"trace_level": ["TIMESTAMPS"]})

    def test_embeddings(self):
        if self.golden is None:
            self.skipTest("no safetensors")
        client = openai.OpenAI(base_url=f"http://{self.http}/v1", api_key="none")
        cases = self.golden["cases"]
        ids = [c["ids"] for c in cases if not any(c["types"])] + [cases[0]["ids"]]
        for encoding in ("float", "base64"):
            answer = client.embeddings.create(model="encoder", input=ids, encoding_format=encoding)
            self.assertEqual(answer.usage.prompt_tokens, sum(map(len, ids)))
            for row in answer.data:
                v = row.embedding
                if isinstance(v, str):
                    v = np.frombuffer(base64.b64decode(v), "<f4")
                self.assertEqual(len(v), 32)
                self.assertAlmostEqual(float(np.linalg.norm(v)), 1, places=5)
        text = client.embeddings.create(model="encoder", input=["w5 w6", "w7"])
        self.assertEqual([d.index for d in text.data], [0, 1])
        with self.assertRaises(openai.BadRequestError) as refused:
            client.embeddings.create(model="encoder", input="w5 " * 60)
        self.assertIn("at most 40", refused.exception.message)
        with self.assertRaises(openai.NotFoundError):
            client.embeddings.create(model="nowhere", input="w5")


if __name__ == "__main__":
    unittest.main(verbosity=2)
