#!/usr/bin/env python3
"""Triton's `tritonclient[grpc]` against a running server.

    OAR_HTTP=http://127.0.0.1:8000 OAR_GRPC=127.0.0.1:8001 [OAR_API_KEY=...] python tests/server/test_triton_client.py

The model is the first that GET /v1/models lists. Its tensors are those of Triton's vLLM backend: inputs text_input
BYTES [1], stream BOOL [1], sampling_parameters BYTES [1] (JSON), exclude_input_in_output BOOL [1]; output text_output
BYTES [1]; responses of a stream carry the parameter triton_final_response.
"""
import json
import os
import queue
import time
import unittest
import urllib.request

import grpc
import numpy as np
import tritonclient.grpc as triton
from tritonclient.grpc import service_pb2
from tritonclient.utils import InferenceServerException

HTTP = os.environ.get("OAR_HTTP", "http://127.0.0.1:8000").rstrip("/")
GRPC = os.environ.get("OAR_GRPC", "127.0.0.1:8001")
KEY = os.environ.get("OAR_API_KEY", "")
TIMEOUT = float(os.environ.get("OAR_TEST_TIMEOUT", "60"))
HEADERS = {"authorization": "Bearer " + KEY} if KEY else None
PROMPT = "Once upon a time, there was"


def first_model():
    request = urllib.request.Request(HTTP + "/v1/models", headers=HEADERS or {})
    with urllib.request.urlopen(request, timeout=TIMEOUT) as response:
        return json.load(response)["data"][0]["id"]


def bytes_input(name, text):
    tensor = triton.InferInput(name, [1], "BYTES")
    tensor.set_data_from_numpy(np.array([text.encode() if isinstance(text, str) else text], dtype=np.object_))
    return tensor


def bool_input(name, value):
    tensor = triton.InferInput(name, [1], "BOOL")
    tensor.set_data_from_numpy(np.array([value], dtype=bool))
    return tensor


def inputs(prompt=PROMPT, stream=None, exclude=True, **sampling):
    sampling = {"temperature": 0, "max_tokens": 12, **sampling}
    tensors = [bytes_input("text_input", prompt), bytes_input("sampling_parameters", json.dumps(sampling))]
    if stream is not None:
        tensors.append(bool_input("stream", stream))
    if exclude is not None:
        tensors.append(bool_input("exclude_input_in_output", exclude))
    return tensors


def text_of(result):
    array = result.as_numpy("text_output")
    assert array.shape == (1,), array.shape
    return array[0].decode()


class TritonTest(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.model = first_model()

    def setUp(self):
        self.client = triton.InferenceServerClient(GRPC)
        self.addCleanup(self.client.close)

    def infer(self, tensors=None, model=None, **options):
        return self.client.infer(model or self.model, tensors if tensors is not None else inputs(), headers=HEADERS,
                                 client_timeout=TIMEOUT, **options)

    def assert_fails(self, code, call, *words):
        with self.assertRaises(InferenceServerException) as caught:
            call()
        self.assertEqual(caught.exception.status(), f"StatusCode.{code}", str(caught.exception))
        for word in words:
            self.assertIn(word, caught.exception.message())


class Health(TritonTest):
    def test_live_and_ready(self):
        self.assertTrue(self.client.is_server_live(headers=HEADERS))
        self.assertTrue(self.client.is_server_ready(headers=HEADERS))
        self.assertTrue(self.client.is_model_ready(self.model, headers=HEADERS))

    def test_unknown_model_is_not_ready(self):
        try:
            self.assertFalse(self.client.is_model_ready("no-such-model", headers=HEADERS))
        except InferenceServerException as e:
            self.assertEqual(e.status(), "StatusCode.NOT_FOUND")

    def test_standard_health_service(self):
        # grpc.health.v1: HealthCheckRequest is empty, HealthCheckResponse{status: SERVING} is 08 01.
        with grpc.insecure_channel(GRPC) as channel:
            check = channel.unary_unary("/grpc.health.v1.Health/Check", request_serializer=bytes, response_deserializer=bytes)
            self.assertEqual(check(b"", timeout=TIMEOUT), b"\x08\x01")


class Metadata(TritonTest):
    def test_server(self):
        m = self.client.get_server_metadata(headers=HEADERS)
        self.assertTrue(m.name)
        self.assertTrue(m.version)

    def test_model(self):
        m = self.client.get_model_metadata(self.model, headers=HEADERS)
        self.assertEqual(m.name, self.model)
        self.assertEqual({(t.name, t.datatype) for t in m.inputs} & {("text_input", "BYTES"), ("stream", "BOOL"),
                                                                     ("sampling_parameters", "BYTES"), ("exclude_input_in_output", "BOOL")},
                         {("text_input", "BYTES"), ("stream", "BOOL"), ("sampling_parameters", "BYTES"),
                          ("exclude_input_in_output", "BOOL")})
        self.assertIn(("text_output", "BYTES"), {(t.name, t.datatype) for t in m.outputs})

    def test_config_says_decoupled(self):
        config = self.client.get_model_config(self.model, headers=HEADERS).config
        self.assertEqual(config.name, self.model)
        self.assertTrue(config.model_transaction_policy.decoupled)

    def test_statistics_count(self):
        def count():
            return self.client.get_inference_statistics(self.model, headers=HEADERS).model_stats[0].inference_count

        before = count()
        self.infer()
        deadline = time.time() + 5
        while count() <= before and time.time() < deadline:
            time.sleep(0.05)
        self.assertGreater(count(), before)

    def test_repository_index(self):
        index = self.client.get_model_repository_index(headers=HEADERS)
        self.assertIn(self.model, {m.name for m in index.models})

    def test_unknown_model(self):
        self.assert_fails("NOT_FOUND", lambda: self.client.get_model_metadata("no-such-model", headers=HEADERS), "no-such-model")


class Infer(TritonTest):
    def test_answer(self):
        result = self.infer(request_id="r-1")
        response = result.get_response()
        self.assertEqual((response.model_name, response.id), (self.model, "r-1"))
        self.assertEqual(response.outputs[0].datatype, "BYTES")
        self.assertIsInstance(text_of(result), str)

    def test_greedy_repeats_itself(self):
        self.assertEqual(text_of(self.infer()), text_of(self.infer()))

    def test_input_comes_first_unless_excluded(self):
        answer = text_of(self.infer())
        self.assertEqual(text_of(self.infer(inputs(exclude=False))), PROMPT + answer)
        self.assertEqual(text_of(self.infer(inputs(exclude=None))), PROMPT + answer)

    def test_request_parameters(self):
        short = self.infer([bytes_input("text_input", PROMPT), bool_input("exclude_input_in_output", True)],
                           parameters={"max_tokens": 3, "temperature": 0})
        long = self.infer([bytes_input("text_input", PROMPT), bool_input("exclude_input_in_output", True)],
                          parameters={"max_tokens": 12, "temperature": 0.0})
        self.assertTrue(text_of(long).startswith(text_of(short).rstrip("\ufffd")), (text_of(short), text_of(long)))

    def test_typed_contents(self):
        # The same tensors in `contents` instead of raw bytes.
        request = service_pb2.ModelInferRequest(model_name=self.model)
        for name, text in (("text_input", PROMPT), ("sampling_parameters", '{"temperature": 0, "max_tokens": 12}')):
            tensor = request.inputs.add(name=name, datatype="BYTES", shape=[1])
            tensor.contents.bytes_contents.append(text.encode())
        tensor = request.inputs.add(name="exclude_input_in_output", datatype="BOOL", shape=[1])
        tensor.contents.bool_contents.append(True)
        with grpc.insecure_channel(GRPC) as channel:
            infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer",
                                        request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                                        response_deserializer=service_pb2.ModelInferResponse.FromString)
            response = infer(request, timeout=TIMEOUT, metadata=list(HEADERS.items()) if HEADERS else None)
        self.assertEqual(text_of(triton.InferResult(response)), text_of(self.infer()))

    def test_requested_output(self):
        result = self.infer(outputs=[triton.InferRequestedOutput("text_output")])
        self.assertEqual(text_of(result), text_of(self.infer()))

    def test_strings_as_numbers(self):
        # Triton's own examples write sampling parameters as strings.
        r = self.infer(inputs(temperature="0", max_tokens="12"))
        self.assertEqual(text_of(r), text_of(self.infer()))

    def test_unicode(self):
        prompt = "Grüße, 世界 🙂"
        self.assertTrue(text_of(self.infer(inputs(prompt, exclude=False))).startswith(prompt))

    def test_async_infer(self):
        answers = queue.Queue()
        for _ in range(8):
            self.client.async_infer(self.model, inputs(), callback=lambda result, error: answers.put((result, error)),
                                    headers=HEADERS, client_timeout=TIMEOUT)
        expected = text_of(self.infer())
        for _ in range(8):
            result, error = answers.get(timeout=TIMEOUT)
            self.assertIsNone(error)
            self.assertEqual(text_of(result), expected)

    def test_cancel_async(self):
        answers = queue.Queue()
        call = self.client.async_infer(self.model, inputs(max_tokens=400, ignore_eos=True),
                                       callback=lambda result, error: answers.put((result, error)), headers=HEADERS)
        call.cancel()
        _, error = answers.get(timeout=TIMEOUT)
        if error is not None:  # it may have been quicker
            self.assertEqual(error.status(), "StatusCode.CANCELLED")
        self.assertTrue(text_of(self.infer()) is not None)

    def test_deadline(self):
        try:
            self.client.infer(self.model, inputs(max_tokens=400, ignore_eos=True), headers=HEADERS, client_timeout=0.001)
        except InferenceServerException as e:
            self.assertEqual(e.status(), "StatusCode.DEADLINE_EXCEEDED")
        self.assertTrue(self.client.is_server_ready(headers=HEADERS))


class Stream(TritonTest):
    def setUp(self):
        super().setUp()
        self.answers = queue.Queue()
        self.client.start_stream(callback=lambda result, error: self.answers.put((result, error)), headers=HEADERS)
        self.addCleanup(self.client.stop_stream, cancel_requests=True)

    def send(self, tensors, **options):
        self.client.async_stream_infer(self.model, tensors, **options)

    def next(self):
        result, error = self.answers.get(timeout=TIMEOUT)
        if error is not None:
            raise error
        return result

    @staticmethod
    def is_final(result):
        parameters = result.get_response().parameters
        return "triton_final_response" in parameters and parameters["triton_final_response"].bool_param

    def collect(self, request_ids):
        """{request id: [texts]} until each id has seen its final response."""
        texts, open_ids = {i: [] for i in request_ids}, set(request_ids)
        while open_ids:
            result = self.next()
            request_id = result.get_response().id
            self.assertIn(request_id, open_ids, "a response after the final one")
            if result.get_response().outputs:
                texts[request_id].append(text_of(result))
            if self.is_final(result):
                open_ids.remove(request_id)
        return texts

    def test_pieces_make_the_answer(self):
        whole = text_of(self.infer())
        self.send(inputs(stream=True, exclude=None), request_id="a", enable_empty_final_response=True)
        pieces = self.collect(["a"])["a"]
        self.assertEqual("".join(pieces), whole)

    def test_without_streaming_one_response(self):
        self.send(inputs(stream=False), request_id="b", enable_empty_final_response=True)
        pieces = self.collect(["b"])["b"]
        self.assertEqual(pieces, [text_of(self.infer())])

    def test_interleaved_requests(self):
        prompts = {"1": PROMPT, "2": "The dog", "3": "A small boat"}
        alone = {i: text_of(self.infer(inputs(p))) for i, p in prompts.items()}
        for i, p in prompts.items():
            self.send(inputs(p, stream=True), request_id=i, enable_empty_final_response=True)
        for i, pieces in self.collect(list(prompts)).items():
            self.assertEqual("".join(pieces), alone[i])

    def test_error_leaves_the_stream_open(self):
        self.send(inputs(stream=True, temperature="hot"), request_id="bad")
        with self.assertRaises(InferenceServerException) as caught:
            self.next()
        self.assertIn("temperature", str(caught.exception))
        self.send(inputs(stream=True), request_id="good", enable_empty_final_response=True)
        self.assertEqual("".join(self.collect(["good"])["good"]), text_of(self.infer()))

    def test_cancel_mid_stream(self):
        self.send(inputs(stream=True, max_tokens=400, ignore_eos=True), request_id="c")
        self.next()
        self.client.stop_stream(cancel_requests=True)
        # A fresh client is served at once, and nothing of the cancelled request keeps the server busy.
        with triton.InferenceServerClient(GRPC) as other:
            other.infer(self.model, inputs(), headers=HEADERS, client_timeout=TIMEOUT)

    def test_stop_string(self):
        whole = text_of(self.infer(inputs(max_tokens=24)))
        if len(whole) < 8:
            self.skipTest("the model says too little")
        stop = whole[4:7]
        self.send(inputs(stream=True, max_tokens=24, stop=[stop]), request_id="s", enable_empty_final_response=True)
        self.assertEqual("".join(self.collect(["s"])["s"]), whole[:whole.index(stop)])


class Errors(TritonTest):
    def test_unknown_model(self):
        self.assert_fails("NOT_FOUND", lambda: self.infer(model="no-such-model"), "no-such-model")

    def test_unknown_version(self):
        self.assert_fails("NOT_FOUND", lambda: self.infer(model_version="99"))

    def test_missing_input(self):
        self.assert_fails("INVALID_ARGUMENT", lambda: self.infer([bytes_input("sampling_parameters", "{}")]), "text_input")

    def test_unknown_input(self):
        self.assert_fails("INVALID_ARGUMENT", lambda: self.infer(inputs() + [bytes_input("nonsense", "x")]), "nonsense")

    def test_unknown_output(self):
        self.assert_fails("INVALID_ARGUMENT", lambda: self.infer(outputs=[triton.InferRequestedOutput("nonsense")]), "nonsense")

    def test_wrong_type(self):
        tensor = triton.InferInput("text_input", [1], "INT32")
        tensor.set_data_from_numpy(np.array([5], dtype=np.int32))
        self.assert_fails("INVALID_ARGUMENT", lambda: self.infer([tensor]), "text_input", "BYTES")

    def test_wrong_shape(self):
        tensor = triton.InferInput("text_input", [2], "BYTES")
        tensor.set_data_from_numpy(np.array([b"a", b"b"], dtype=np.object_))
        self.assert_fails("INVALID_ARGUMENT", lambda: self.infer([tensor]), "text_input")

    def test_bad_sampling_parameters(self):
        for text in ("{", "[]", "5", '{"temperature": "hot"}', '{"max_tokens": -1}', '{"top_p": 7}', '{"n": 1e99}'):
            with self.subTest(text=text):
                self.assert_fails("INVALID_ARGUMENT", lambda: self.infer([bytes_input("text_input", PROMPT),
                                                                          bytes_input("sampling_parameters", text)]))

    def test_bad_parameter(self):
        self.assert_fails("INVALID_ARGUMENT", lambda: self.infer([bytes_input("text_input", PROMPT)], parameters={"max_tokens": "many"}),
                          "max_tokens")

    def test_invalid_utf8(self):
        self.assert_fails("INVALID_ARGUMENT", lambda: self.infer([bytes_input("text_input", b"\xff\xfe\x00")]), "text_input")

    def test_stream_flag_in_unary_call(self):
        self.assert_fails("INVALID_ARGUMENT", lambda: self.infer(inputs(stream=True)), "stream")

    def test_too_long(self):
        self.assert_fails("OUT_OF_RANGE", lambda: self.infer(inputs("word " * 100_000)))

    def test_raw_bytes_that_lie(self):
        def call(change):
            request = service_pb2.ModelInferRequest(model_name=self.model)
            request.inputs.add(name="text_input", datatype="BYTES", shape=[1])
            change(request)
            with grpc.insecure_channel(GRPC) as channel:
                infer = channel.unary_unary("/inference.GRPCInferenceService/ModelInfer",
                                            request_serializer=service_pb2.ModelInferRequest.SerializeToString,
                                            response_deserializer=service_pb2.ModelInferResponse.FromString)
                with self.assertRaises(grpc.RpcError) as caught:
                    infer(request, timeout=TIMEOUT, metadata=list(HEADERS.items()) if HEADERS else None)
                self.assertEqual(caught.exception.code(), grpc.StatusCode.INVALID_ARGUMENT, caught.exception.details())

        call(lambda r: r.raw_input_contents.append(b"\xff\xff\xff\xff" + b"x"))  # length past the end
        call(lambda r: r.raw_input_contents.append(b"\x01"))  # no room for a length
        call(lambda r: r.raw_input_contents.append(b""))
        call(lambda r: r.raw_input_contents.extend([b"\x01\x00\x00\x00x"] * 2))  # more contents than inputs
        call(lambda r: r.raw_input_contents.append(b"\x01\x00\x00\x00xtrailing"))
        call(lambda r: (r.raw_input_contents.append(b"\x01\x00\x00\x00x"),
                        r.inputs[0].contents.bytes_contents.append(b"x")))  # raw and typed mixed
        call(lambda r: r.inputs[0].shape.append(2**62))
        call(lambda r: r.inputs[0].shape.__setitem__(0, -1))
        call(lambda r: None)  # no contents at all


if __name__ == "__main__":
    unittest.main(verbosity=2)
