#!/usr/bin/env python3
"""Half an hour of everything at once, before a server that must neither fail nor grow.

    tests/bench/soak.py [--oar build/release/bin/oar] [--minutes 30] [--clients 4] [--threads 1]

Two copies of the default model behind one server: schemas, tools, adapters loaded, used and unloaded, the second model unloaded
and loaded again, its keys read again on SIGHUP, prompts of any length, clients that leave at every moment. Bounds: no unexpected
error; greedy text of the first model is the same every time; the mean resident memory of the last third of the run is at most
0.3 MB above the middle third's; no page of the cache is held at the end. Counts, so any machine will do. Standard library only.
Exits with 1 when a bound does not hold.
"""
import argparse
import collections
import http.client
import json
import os
import pathlib
import random
import re
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time

ROOT = pathlib.Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "support"))
from tiny_adapter import write_adapter  # noqa: E402

GROWTH = 0.3e6  # bytes
KEY, ADMIN = "soak-key", "soak-admin"
SCHEMA = {"type": "object", "additionalProperties": False, "required": ["name", "tags", "age"],
          "properties": {"name": {"type": "string", "maxLength": 12}, "age": {"type": "integer", "minimum": 0, "maximum": 150},
                         "tags": {"type": "array", "items": {"enum": ["a", "b", "c"]}, "maxItems": 4}}}
TOOL = {"type": "function", "function": {"name": "weather", "strict": True, "parameters": {
    "type": "object", "properties": {"city": {"enum": ["Oslo", "Rome"]}}, "required": ["city"], "additionalProperties": False}}}


class Unexpected(Exception):
    pass


def ask(port, method, path, body=None, key=KEY, timeout=120):
    """Status and body; the connection is its own."""
    c = http.client.HTTPConnection("127.0.0.1", port, timeout=timeout)
    try:
        headers = {"authorization": f"Bearer {key}", "content-type": "application/json"}
        c.request(method, path, None if body is None else json.dumps(body), headers)
        r = c.getresponse()
        return r.status, r.read().decode()
    finally:
        c.close()


def expect(got, *statuses):
    if got[0] not in statuses:
        raise Unexpected(f"status {got[0]}: {got[1][:200]}")
    return got


class Soak:
    def __init__(self, port, process, folder):
        self.port, self.process, self.folder = port, process, folder
        self.end = threading.Event()
        self.counts, self.errors = collections.Counter(), collections.Counter()
        self.lock = threading.Lock()
        self.fixed = None

    # ---- what a client does; each raises Unexpected

    def text(self, r):
        body = {"model": "first", "prompt": "ROMEO:", "max_tokens": 24, "temperature": 0}
        answer = json.loads(expect(ask(self.port, "POST", "/v1/completions", body), 200)[1])["choices"][0]["text"]
        with self.lock:
            self.fixed = self.fixed or answer
        if answer != self.fixed:
            raise Unexpected(f"another text: {answer!r}")

    def prompt(self, r):
        body = {"model": r.choice(["first", "second"]), "prompt": "word " * r.randrange(1, 1500), "n": r.randrange(1, 4),
                "max_tokens": r.randrange(1, 40), "temperature": r.random() * 2, "stop": ["\n\n"]}
        self.of_either(ask(self.port, "POST", "/v1/completions", body), body["model"])

    def schema(self, r):
        body = {"model": "first", "messages": [{"role": "user", "content": f"Describe number {r.randrange(1000)}."}],
                "max_tokens": 200, "temperature": r.random(),
                "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": SCHEMA}}}
        choice = json.loads(expect(ask(self.port, "POST", "/v1/chat/completions", body), 200)[1])["choices"][0]
        if choice["finish_reason"] != "stop":
            return
        value = json.loads(choice["message"]["content"])
        if sorted(value) != ["age", "name", "tags"] or not 0 <= value["age"] <= 150:
            raise Unexpected(f"not of the schema: {value}")

    def regex(self, r):
        want = r.choice(["[a-z]{3,9}@[a-z]{2,8}\\.org", f"{r.randrange(40)}(a|b|c){{1,4}}"])  # few enough for the cache of grammars, which is bounded
        body = {"model": "first", "prompt": "x", "max_tokens": 64, "regex": want}
        choice = json.loads(expect(ask(self.port, "POST", "/v1/completions", body), 200)[1])["choices"][0]
        if choice["finish_reason"] == "stop" and not re.fullmatch(want, choice["text"]):
            raise Unexpected(f"{choice['text']!r} is not {want}")

    def tools(self, r):
        body = {"model": "first", "messages": [{"role": "user", "content": "Rain?"}], "tools": [TOOL], "tool_choice": "required",
                "max_tokens": 120, "temperature": r.random()}
        message = json.loads(expect(ask(self.port, "POST", "/v1/chat/completions", body), 200)[1])["choices"][0]
        for call in message["message"].get("tool_calls") or []:
            if message["finish_reason"] == "tool_calls":
                if json.loads(call["function"]["arguments"])["city"] not in ("Oslo", "Rome"):
                    raise Unexpected(f"a wrong call: {call}")

    def wrong(self, r):
        body = {"model": "first", "prompt": "x", **r.choice([{"temperature": -1}, {"grammar": "root ::= ("}, {"nonsense": 1},
                                                             {"max_tokens": 10**6}])}
        expect(ask(self.port, "POST", "/v1/completions", body), 400)

    def leave(self, r):
        """A stream whose client goes away: at once, or after some bytes."""
        c = http.client.HTTPConnection("127.0.0.1", self.port, timeout=120)
        body = {"model": "first", "prompt": "word " * r.randrange(1, 400), "max_tokens": 400, "stream": True, "ignore_eos": True}
        c.request("POST", "/v1/completions", json.dumps(body),
                  {"authorization": f"Bearer {KEY}", "content-type": "application/json"})
        if r.random() < 0.7:
            answer = c.getresponse()
            if answer.status != 200:
                raise Unexpected(f"status {answer.status} of a stream")
            answer.read1(r.randrange(1, 4000))
        c.close()

    def adapter(self, r):
        name = f"a{r.randrange(10**9)}"
        load = {"lora_name": name, "lora_path": str(self.folder / "adapter"), "base_model_name": "first"}
        if expect(ask(self.port, "POST", "/v1/load_lora_adapter", load, ADMIN), 200, 429)[0] == 429:
            return  # every slot is held
        body = {"model": name, "prompt": "ROMEO:", "max_tokens": 16, "temperature": 0}
        expect(ask(self.port, "POST", "/v1/completions", body), 200)
        expect(ask(self.port, "POST", "/v1/unload_lora_adapter", {"lora_name": name}, ADMIN), 200)
        expect(ask(self.port, "POST", "/v1/completions", body), 404)

    def of_either(self, got, model):
        expect(got, *((200,) if model == "first" else (200, 404, 503)))  # the second comes and goes

    # ---- beside them

    def client(self, seed):
        r = random.Random(seed)
        kinds = [self.text, self.prompt, self.schema, self.regex, self.tools, self.wrong, self.leave, self.leave, self.adapter]
        while not self.end.is_set():
            self.attempt(r.choice(kinds), r)

    def attempt(self, what, *arguments):
        try:
            what(*arguments)
            error = None
        except Unexpected as e:
            error = str(e)
        except (OSError, http.client.HTTPException, ValueError, KeyError) as e:
            error = f"{type(e).__name__}: {e}"
        with self.lock:
            self.counts[what.__name__] += 1
            if error is not None:
                self.errors[f"{what.__name__}: {error}"] += 1

    def reload(self):
        expect(ask(self.port, "POST", "/v2/repository/models/second/unload", None, ADMIN), 200)
        expect(ask(self.port, "POST", "/v2/repository/models/second/load", None, ADMIN), 200)
        # In one go: a file that is empty for a moment revokes every key for that moment.
        (self.folder / "keys.new").write_text(f"{KEY}\nother-{random.random()}\n", encoding="utf-8")
        os.replace(self.folder / "keys.new", self.folder / "keys")
        self.process.send_signal(signal.SIGHUP)

    def reloads(self):
        while not self.end.wait(20):
            self.attempt(self.reload)

    def resident(self):
        status = pathlib.Path(f"/proc/{self.process.pid}/status").read_text(encoding="utf-8")
        return int(re.search(r"VmRSS:\s+(\d+) kB", status).group(1)) * 1024

    def pages(self):
        """Share of each model's cache in use, requests and steps aside."""
        text = expect(ask(self.port, "GET", "/metrics"), 200)[1]
        return [float(v) for v in re.findall(r"^vllm:kv_cache_usage_perc\{[^}]*\} (\S+)$", text, re.M)]


def start(arguments, folder):
    for name in ("first", "second"):
        shutil.copytree(ROOT / "configs" / "demo", folder / "models" / name)
    write_adapter(folder / "adapter", 0.2)
    (folder / "keys").write_text(f"{KEY}\n", encoding="utf-8")
    (folder / "admins").write_text(f"{ADMIN}\n", encoding="utf-8")
    command = [arguments.oar, "serve", str(folder / "models"), "--http", "127.0.0.1:0", "--grpc", "", "--threads",
               str(arguments.threads), "--max-loras", "3", "--model-control", "explicit", "--api-key-file", str(folder / "keys"), "--admin-key-file", str(folder / "admins"), "--tool-parser",
               "hermes", "--speculative", "ngram",
               "--memory", "100MiB"]  # small caches, but room for the second model beside one that still ends
    log = open(folder / "log", "w", encoding="utf-8")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    for line in process.stdout:
        found = re.search(r"http://[^:/ ]+:(\d+)", line)
        if found:
            threading.Thread(target=process.stdout.read, daemon=True).start()
            return process, int(found.group(1))
    sys.exit(f"the server did not start: {(folder / 'log').read_text(encoding='utf-8')}")


def main():
    p = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    p.add_argument("--oar", default=str(ROOT / "build/release/bin/oar"))
    p.add_argument("--minutes", type=float, default=30)
    p.add_argument("--clients", type=int, default=4)
    p.add_argument("--threads", type=int, default=1)
    arguments = p.parse_args()
    with tempfile.TemporaryDirectory() as name:
        folder = pathlib.Path(name)
        process, port = start(arguments, folder)
        soak = Soak(port, process, folder)
        threads = [threading.Thread(target=soak.client, args=(k,)) for k in range(arguments.clients)]
        threads.append(threading.Thread(target=soak.reloads))
        began, samples = time.monotonic(), []
        for t in threads:
            t.start()
        while (now := time.monotonic() - began) < arguments.minutes * 60 and process.poll() is None:
            samples.append((now, soak.resident()))
            time.sleep(2)
        soak.end.set()
        for t in threads:
            t.join()
        if process.poll() is not None:
            sys.exit(f"the server ended with {process.returncode}: {(folder / 'log').read_text(encoding='utf-8')[-2000:]}")
        for _ in range(60):  # who left is noticed with the next event
            pages = soak.pages()
            if not any(pages):
                break
            time.sleep(0.5)
        third = arguments.minutes * 20
        middle, last = (statistics.mean(b for t, b in samples if k * third <= t < (k + 1) * third) for k in (1, 2))
        process.terminate()
        ended = process.wait(timeout=120)
    print(f"{sum(soak.counts.values())} requests in {arguments.minutes:g} minutes: "
          + ", ".join(f"{n} {k}" for k, n in sorted(soak.counts.items())))
    for error, count in soak.errors.most_common(20):
        print(f"{count} x {error}")
    tenths = [[b for t, b in samples if k <= t / arguments.minutes / 6 < k + 1] for k in range(10)]
    print("resident by tenths of the time, MB: " + " ".join(f"{statistics.mean(b) / 1e6:.1f}" for b in tenths if b))
    print(f"resident: {middle / 1e6:.2f} MB in the middle third, {last / 1e6:.2f} MB in the last "
          f"({(last - middle) / 1e6:+.2f} MB; bound {GROWTH / 1e6:+.1f})")
    print(f"pages in use at the end: {pages}; the server's exit code: {ended}")
    good = not soak.errors and last <= middle + GROWTH and pages and not any(pages) and ended == 0
    print("held" if good else "NOT HELD")
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
