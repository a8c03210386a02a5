#!/usr/bin/env python3
"""Suites that others wrote, against servers of ours, black-box: what passed, what failed, what was left out and why.

    OAR_BIN=build/release/bin/oar python tests/compat/run.py schemathesis [--requests N] [--processes N] [--seed N]
    OAR_BIN=build/release/bin/oar python tests/compat/run.py pytest CHECKOUT/tests/some_suite [-- PYTEST-ARGUMENT...]
    OAR_BIN=build/release/bin/oar python tests/compat/run.py llama.cpp CHECKOUT --model stories260K.gguf [-- PYTEST-ARGUMENT...]
    OAR_BIN=build/release/bin/oar python tests/compat/run.py vllm CHECKOUT [-- PYTEST-ARGUMENT...]
    OAR_BIN=build/release/bin/oar python tests/compat/run.py sglang CHECKOUT [-- PYTEST-ARGUMENT...]
    OAR_BIN=build/release/bin/oar python tests/compat/run.py triton CHECKOUT [-- PYTEST-ARGUMENT...]
    OAR_BIN=build/release/bin/oar python tests/compat/run.py triton-qa CHECKOUT [-- PYTEST-ARGUMENT...]
    OAR_BIN=build/release/bin/oar python tests/compat/run.py sdks [-- PYTEST-ARGUMENT...]
    python tests/compat/run.py sum FOLDER

`schemathesis` (PyPI) makes requests of /openapi.json and wants no 5xx and no answer that the description does not have; `--requests 100000
--processes 2` is some hours.
`pytest` runs the tests of a checkout that you point at: their code is no part of this repository. It finds the server in
OPENAI_BASE_URL and OAR_HTTP, OAR_GRPC. `llama.cpp`, `vllm`, `sglang` and `triton` (its OpenAI frontend) run the tests of those servers,
which start a server of their own: llama_server.py, vllm_server.py, sglang_server.py and triton_server.py stand in for it. `triton-qa` runs
L0_http and L0_grpc of the same checkout, whose clients look for ports 8000 and 8001. `sdks` makes the calls of client libraries from PyPI (test_sdks.py).
With COMPAT_KEEP=FOLDER a suite leaves its report there, and `sum` counts what is in it. Stand-ins that can chat are made once
(talker.py, some minutes; kept in build/compat, or COMPAT_TALKERS).
excluded.txt names tests that are left out, each with a reason; they are counted. docs/compatibility.md has results.
"""
import collections
import hashlib
import json
import os
import pathlib
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time

import stand_ins
import talker

HERE = pathlib.Path(__file__).resolve().parent
OAR = str(pathlib.Path(os.environ.get("OAR_BIN", HERE.parents[1] / "build/release/bin/oar")).resolve())
REASONS = {"another server's model", "private API", "wording", "removed feature", "hardware"}
CHECKS = "not_a_server_error,status_code_conformance,content_type_conformance,response_schema_conformance"


def excluded(suite):
    """{test: reason} of excluded.txt."""
    out = {}
    for line in (HERE / "excluded.txt").read_text(encoding="utf-8").splitlines():
        if not line or line.startswith("#"):
            continue
        of, test, reason = line.split("\t")
        if reason not in REASONS:
            raise SystemExit(f"excluded.txt: {reason!r} is none of the five reasons")
        if of == suite:
            out[test] = reason
    return out


class Server:
    """`oar serve` of MODEL (the embedded one when OAR_MODEL is not set) on free ports, with everything switched on."""

    def __init__(self, folder, model=None, options=()):
        self.process = subprocess.Popen(
            [OAR, "serve", model or os.environ.get("OAR_MODEL", "demo"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0",
             "--files", f"{folder}/files", "--shared-memory", "/oar-compat-", *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.http = self.grpc = None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            match = re.match(r"(http|grpc)\s+(?:http://)?(127\.0\.0\.1:\d+)", line)
            if match:
                setattr(self, match[1], match[2])
            if line.strip() == "ready":
                threading.Thread(target=self.process.stdout.read, daemon=True).start()  # so that it never waits to be read
                return
        raise SystemExit("the server did not start:\n" + "".join(seen))

    def end(self):
        """Ends it; False when it had ended by itself, or does not end in order."""
        alive = self.process.poll() is None
        self.process.send_signal(signal.SIGTERM)
        self.process.wait(timeout=60)
        if alive and self.process.returncode == 0:
            return True
        print("the server did not end in order")
        return False


def schemathesis_round(server, folder, seed, left_out, each):
    """Starts one round: each operation is asked up to so many times."""
    command = [shutil.which("schemathesis") or str(pathlib.Path(sys.executable).with_name("schemathesis")), "run",
               f"http://{server.http}/openapi.json", "--checks", CHECKS, "--phases", "fuzzing", "-n", str(each),
               "--seed", str(seed), "--continue-on-failure", "--warnings", "off", "--suppress-health-check", "all",
               "--generation-database", "none", "--request-timeout", "300"]
    for name in left_out:
        command += ["--exclude-name", name]
    log = tempfile.TemporaryFile("w+")
    return log, subprocess.Popen(command, stdout=log, stderr=subprocess.STDOUT, cwd=folder)  # it leaves notes there


def run_schemathesis(folder, arguments):
    def number(option, otherwise):
        return int(arguments[arguments.index(option) + 1]) if option in arguments else otherwise

    wanted, processes, seed = number("--requests", 4000), number("--processes", 1), number("--seed", 1)
    left_out = excluded("schemathesis")
    # Most operations take as many requests as they are given; rounds of few let a long run be stopped, and begun again by its seed.
    each = min(50, max(1, wanted // 70 // processes))
    # Some requests want as many tokens as there is room for.
    servers = [Server(f"{folder}/{i}", options=["--tool-parser", "hermes", "--max-context", "256"]) for i in range(processes)]
    running, asked, findings, good = {}, 0, 0, True

    def collect(server):
        nonlocal asked, findings, good
        of, (log, process) = running.pop(server)
        log.seek(0)
        text = log.read()
        cases = re.search(r"(\d+) generated(?:, (\d+) found)?", text)
        if cases is None:
            raise SystemExit(f"schemathesis did not run:\n{text}")
        errors = re.search(r"(\d+) errored", text)
        asked, findings = asked + int(cases[1]), findings + int(cases[2] or 0) + int(errors[1] if errors else 0)
        if process.returncode != 0:
            good = False
            print(text)
        print(f"seed {of}: {cases[1]} requests, {cases[2] or 0} findings; {asked} of {wanted}", flush=True)

    while asked < wanted or running:
        for server in servers:
            if server in running and running[server][1][1].poll() is not None:
                collect(server)
            if server not in running and asked < wanted:
                running[server] = seed, schemathesis_round(server, folder, seed, left_out, each)
                seed += 1
        time.sleep(0.2)
    ended = all([server.end() for server in servers])
    print(f"schemathesis: {asked} requests, {findings} findings, {len(left_out)} operations left out")
    return good and ended


def counts(result):
    """What remains of a suite when those left out are not counted, and what it is with them."""
    passed, out = result["passed"], sum(result["excluded"].values())
    ran = passed + len(result["failed"])
    return (f"{passed} passed of {ran} that ran ({100 * passed / max(1, ran):.1f} %), {out} left out "
            f"({100 * out / max(1, ran + out):.0f} %; {100 * passed / max(1, ran + out):.1f} % passed of both)")


def run_sum(_, arguments):
    """The counts of reports that COMPAT_KEEP=FOLDER kept, and of all of them together."""
    whole = {"passed": 0, "failed": {}, "excluded": {"all": 0}}
    for path in sorted(pathlib.Path(arguments[0]).glob("*.json")):
        result = json.loads(path.read_text(encoding="utf-8"))
        print(f"{path.stem}: {counts(result)}")
        whole["passed"] += result["passed"]
        whole["failed"].update({f"{path.stem} {test}": why for test, why in result["failed"].items()})
        whole["excluded"]["all"] += sum(result["excluded"].values())
    print(f"in sum: {counts(whole)}")
    return True


def pytest_run(suite, folder, arguments, plugins=(), environment=None, cwd=None):
    """Runs pytest and prints the counts; whether all that ran passed."""
    report, notes = pathlib.Path(folder, "report.json"), pathlib.Path(folder, "notes")
    left_out = "\n".join(f"{test}\t{reason}" for test, reason in excluded(suite).items())
    environment = {**os.environ, "OAR_BIN": OAR, "COMPAT_REPORT": str(report), "COMPAT_NOTES": str(notes),
                   "COMPAT_EXCLUDED": left_out, **(environment or {}),
                   "PYTHONPATH": os.pathsep.join([str(HERE), *filter(None, [os.environ.get("PYTHONPATH")])])}
    command = [sys.executable, "-m", "pytest", "-q", "--tb=short",
               "--continue-on-collection-errors", "-p", "no:cacheprovider", "-W", "ignore::DeprecationWarning"]
    for plugin in ("report_plugin", *plugins):
        command += ["-p", plugin]
    if cwd:  # else tests are named from wherever the checkout has a file that pytest reads
        command += ["--rootdir", str(pathlib.Path(cwd).resolve())]
    subprocess.run([*command, *arguments], env=environment, cwd=cwd)
    result = json.loads(report.read_text(encoding="utf-8"))
    if os.environ.get("COMPAT_KEEP"):
        pathlib.Path(os.environ["COMPAT_KEEP"]).mkdir(parents=True, exist_ok=True)
        shutil.copy(report, pathlib.Path(os.environ["COMPAT_KEEP"], suite + ".json"))
    print(f"\n{suite}: {counts(result)}, {result['skipped']} skipped by the suite")
    for reason, count in sorted(result["excluded"].items()):
        print(f"  left out, {reason}: {count}")
    for test, why in result["failed"].items():
        print(f"  failed: {test}: {why}")
    for test in result["unused"] if "--" not in sys.argv else []:
        print(f"  excluded.txt names a test that was not there: {test}")
    if notes.exists():
        for text, count in collections.Counter(notes.read_text(encoding="utf-8").splitlines()).most_common():
            print(f"  {count} x {text}")
    return not result["failed"]


def split(arguments, suite):
    """What stands before "--", and what pytest gets: what is behind it, or else `suite`."""
    if "--" not in arguments:
        return arguments, list(suite)
    at = arguments.index("--")
    return arguments[:at], arguments[at + 1:]


def run_pytest(folder, arguments):
    own, more = split(arguments, [])
    server = Server(folder, options=["--tool-parser", "hermes"])
    good = pytest_run(pathlib.Path(own[0]).name, folder, [own[0], *more], environment={
        "OAR_HTTP": f"http://{server.http}", "OAR_GRPC": server.grpc, "OPENAI_BASE_URL": f"http://{server.http}/v1",
        "OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "none")})
    return server.end() and good


def run_llama(folder, arguments):
    own, tests = split(arguments, ["-m", "not slow", "unit"])
    checkout = pathlib.Path(own[0])
    if (checkout / "tools/server/tests").is_dir():
        checkout = checkout / "tools/server/tests"
    if "--model" not in own:
        raise SystemExit("give --model FILE.gguf: the model stories260K")
    # llama.cpp lets a model go beyond the context it was made for, and its tests do.
    model = stand_ins.with_context(own[own.index("--model") + 1], pathlib.Path(folder, "stories260K.gguf"), 16384)
    gap = stand_ins.with_gap_tokens(model, pathlib.Path(folder, "infill.gguf"))
    known = {"ggml-org/test-model-stories260K": model, "ggml-org/test-model-stories260K-infill": gap, "router": model,
             "ggml-org/models:bert-bge-small/ggml-model-f16.gguf": stand_ins.write_encoder(f"{folder}/bge"),
             "ggml-org/models:jina-reranker-v1-tiny-en/ggml-model-f16.gguf": stand_ins.write_encoder(f"{folder}/jina", True)}
    with socket.socket() as s:
        s.bind(("127.0.0.1", 0))
        port = s.getsockname()[1]
    return pytest_run("llama.cpp", folder, tests, ["llama_plugin"], {
        "LLAMA_SERVER_BIN_PATH": str(HERE / "llama_server.py"), "PORT": str(port),
        "COMPAT_MODELS": "\n".join(f"{name}={path}" for name, path in known.items())}, cwd=checkout)


def talkers():
    """The stand-ins of talker.py, made once for each version of it."""
    source = (HERE / "talker.py").read_bytes()
    kept = pathlib.Path(os.environ.get("COMPAT_TALKERS", HERE.parents[1] / "build/compat")) / hashlib.sha256(source).hexdigest()[:12]
    os.environ["OAR_BIN"] = OAR
    return talker.write_talkers(kept)


def run_vllm(folder, arguments):
    own, tests = split(arguments, ["tests/entrypoints/openai"])
    checkout = pathlib.Path(own[0]).resolve()
    if "--" not in arguments:  # a test that starts no server is none of a server
        tests = [str(p.relative_to(checkout)) for p in sorted((checkout / "tests/entrypoints/openai").rglob("test_*.py"))
                 if "RemoteOpenAIServer(" in p.read_text(encoding="utf-8")]
    adapter = stand_ins.write_adapter(f"{folder}/adapter", HERE.parents[1] / "configs/demo/config.json")
    known = {"typeof/zephyr-7b-beta-lora": adapter, "charent/self_cognition_Alice": adapter}
    for name, path in talkers().items():  # tests name tokens up to 5000, and ask for longer contexts
        known[name] = stand_ins.with_vocabulary(stand_ins.with_positions(path, f"{folder}/{name}-long", 8192), f"{folder}/{name}", 8192)
    known["*"] = known["talker"]
    return pytest_run("vllm", folder, ["--confcutdir", str(checkout / "tests/entrypoints"), *tests], ["black_box", "vllm_server"], {
        "COMPAT_CHECKOUT": str(checkout),
        "COMPAT_MODELS": "\n".join(f"{name}={path}" for name, path in known.items())}, cwd=checkout)


def run_sglang(folder, arguments):
    own, tests = split(arguments, ["test/registered/openai_server"])
    checkout = pathlib.Path(own[0]).resolve()
    ranker = stand_ins.write_encoder(f"{folder}/ranker", True)
    long = stand_ins.with_positions(talkers()["talker"], f"{folder}/long", 8192)  # tests ask for 2048 tokens
    return pytest_run("sglang", folder, ["--confcutdir", str(checkout / "test"), *tests], ["black_box", "sglang_server"], {
        "COMPAT_CHECKOUT": str(checkout), "COMPAT_MODELS": f"cross-encoder/ms-marco-MiniLM-L6-v2={ranker}\n*={long}"}, cwd=checkout)


def run_triton(folder, arguments):
    own, tests = split(arguments, ["tests"])
    checkout = pathlib.Path(own[0]).resolve()
    if (checkout / "python/openai").is_dir():
        checkout = checkout / "python/openai"
    encoder = stand_ins.write_encoder(f"{folder}/bert")
    return pytest_run("triton", folder, ["--confcutdir", str(checkout), *tests], ["black_box", "triton_server"], {
        "COMPAT_CHECKOUT": str(checkout), "COMPAT_MODELS": f"all-MiniLM-L6-v2={encoder}\n*={talkers()['talker']}", "TEST_BACKEND": "vllm",
        "TEST_MODEL": "llama-3.1-8b-instruct", "TEST_MODEL_REPOSITORY": str(checkout / "tests/vllm_models")}, cwd=checkout)


def run_triton_qa(folder, arguments):
    own, tests = split(arguments, ["L0_http/http_test.py", "L0_http/generate_endpoint_test.py", "L0_http/python_http_aio_test.py",
                                   "L0_grpc/python_grpc_aio_test.py", "L0_grpc/python_unit_test.py"])
    checkout = pathlib.Path(own[0]).resolve()
    if (checkout / "qa").is_dir():
        checkout = checkout / "qa"
    return pytest_run("triton-qa", folder, tests, ["triton_qa"], {"COMPAT_REPOSITORY": stand_ins.write_tensor_models(f"{folder}/models")},
                      cwd=checkout)


def run_sdks(folder, arguments):
    tests = split(arguments, [])[1]
    server = Server(folder, str(talkers()["talker"]), ["--name", "demo", "--reasoning-parser", "none"])
    encoder = Server(f"{folder}/encoder", stand_ins.write_encoder(f"{folder}/bert"))
    good = pytest_run("sdks", folder, [str(HERE / "test_sdks.py"), *tests],
                      environment={"OAR_HTTP": f"http://{server.http}", "OAR_ENCODER": f"http://{encoder.http}"})
    return all([server.end(), encoder.end(), good])


SUITES = {"schemathesis": (run_schemathesis, 0), "pytest": (run_pytest, 1), "llama.cpp": (run_llama, 1), "vllm": (run_vllm, 1),
          "sglang": (run_sglang, 1), "triton": (run_triton, 1),
          "triton-qa": (run_triton_qa, 1), "sdks": (run_sdks, 0), "sum": (run_sum, 1)}


def main():
    name, arguments = (sys.argv + [""])[1], sys.argv[2:]
    if name not in SUITES or len(arguments) < SUITES[name][1]:
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        good = SUITES[name][0](folder, arguments)
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
