#!/usr/bin/env python3
"""The OpenAI-compatible endpoint with Python's standard library alone: prints the answer as it comes, then the speed.

    python clients/python/stream_http.py [--url http://127.0.0.1:8000] "Speak, what news?"
    python clients/python/stream_http.py --ready        exit status 0 when the server is ready

A stream is a series of server-sent events: lines `data: {json}`, an empty line after each, `data: [DONE]` at the end.
"""
import argparse
import json
import os
import sys
import time
import urllib.error
import urllib.request


def request(url, body=None):
    message = urllib.request.Request(url, data=None if body is None else json.dumps(body).encode())
    message.add_header("Content-Type", "application/json")
    if key := os.environ.get("OAR_API_KEY"):
        message.add_header("Authorization", "Bearer " + key)
    return urllib.request.urlopen(message, timeout=60)


def events(stream):
    """The objects of the events until [DONE]."""
    for line in stream:
        if not line.startswith(b"data: "):
            continue
        if line.strip() == b"data: [DONE]":
            return
        yield json.loads(line[len(b"data: "):])
    raise EOFError("the stream ended before [DONE]")


def ask(arguments):
    with request(arguments.url + "/v1/models") as response:
        model = arguments.model or json.load(response)["data"][0]["id"]
    body = {"model": model, "messages": [{"role": "user", "content": arguments.prompt}], "stream": True,
            "stream_options": {"include_usage": True}, "max_tokens": arguments.max_tokens, "seed": arguments.seed}
    if arguments.temperature is not None:
        body["temperature"] = arguments.temperature
    start = time.perf_counter()
    first, usage = None, None
    with request(arguments.url + "/v1/chat/completions", body) as response:
        for event in events(response):
            if "error" in event:
                sys.exit("\nstream_http.py: " + event["error"]["message"])
            usage = event.get("usage") or usage
            for choice in event["choices"]:
                text, thoughts = choice["delta"].get("content"), choice["delta"].get("reasoning_content")
                if text or thoughts:
                    first = first or time.perf_counter()
                    print(thoughts or "", end="", flush=True, file=sys.stderr)
                    print(text or "", end="", flush=True)
    end = time.perf_counter()
    tokens = usage["completion_tokens"]
    if first is None:
        sys.exit("stream_http.py: the answer had no text")
    print(f"\n[{tokens} tokens; first after {(first - start) * 1000:.1f} ms, then "
          f"{(tokens - 1) / max(end - first, 1e-9):.1f} tokens/s]")


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("prompt", nargs="?", default="Speak, what news?")
    parser.add_argument("--url", default=os.environ.get("OAR_HTTP", "http://127.0.0.1:8000"))
    parser.add_argument("--model", help="default: the first the server lists")
    parser.add_argument("--max-tokens", type=int, default=128)
    parser.add_argument("--temperature", type=float, help="default: the model's own")
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--ready", action="store_true", help="only look whether the server is ready")
    arguments = parser.parse_args()
    arguments.url = arguments.url.rstrip("/")
    try:
        if arguments.ready:
            request(arguments.url + "/health/ready").close()
        else:
            ask(arguments)
    except urllib.error.HTTPError as error:
        sys.exit(f"stream_http.py: {error}: {error.read().decode(errors='replace')}")
    except (OSError, EOFError) as error:
        sys.exit(f"stream_http.py: {arguments.url}: {error}")


if __name__ == "__main__":
    main()
