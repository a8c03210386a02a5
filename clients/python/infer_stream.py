#!/usr/bin/env python3
"""Text in, text out over gRPC (Open Inference Protocol v2 with Triton's ModelStreamInfer), printed as it is generated.

    pip install "tritonclient[grpc]"
    python clients/python/infer_stream.py --model NAME [--url 127.0.0.1:8001] "Once upon a time"
"""
import argparse
import json
import os
import queue
import sys

import numpy as np
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException


def tensor(name, datatype, value):
    t = triton.InferInput(name, [1], datatype)
    t.set_data_from_numpy(np.array([value], dtype=np.object_ if datatype == "BYTES" else bool))
    return t


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt")
    parser.add_argument("--url", default=os.environ.get("OAR_GRPC", "127.0.0.1:8001"))
    parser.add_argument("--model", help="default: the first of the server's repository index")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, default=0.0)
    arguments = parser.parse_args()

    key = os.environ.get("OAR_API_KEY")
    headers = {"authorization": "Bearer " + key} if key else None
    answers = queue.Queue()
    try:
        with triton.InferenceServerClient(arguments.url) as client:
            model = arguments.model or client.get_model_repository_index(headers=headers).models[0].name
            sampling = {"max_tokens": arguments.max_tokens, "temperature": arguments.temperature}
            client.start_stream(callback=lambda result, error: answers.put((result, error)), headers=headers)
            client.async_stream_infer(model, [tensor("text_input", "BYTES", arguments.prompt.encode()),
                                              tensor("stream", "BOOL", True),
                                              tensor("sampling_parameters", "BYTES", json.dumps(sampling).encode())],
                                      enable_empty_final_response=True)
            while True:
                result, error = answers.get()
                if error is not None:
                    raise error
                response = result.get_response()
                if response.outputs:
                    print(result.as_numpy("text_output")[0].decode(), end="", flush=True)
                if response.parameters["triton_final_response"].bool_param:
                    break
            print()
    except InferenceServerException as e:
        sys.exit(f"infer_stream.py: {e}")


if __name__ == "__main__":
    main()
