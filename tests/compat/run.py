#!/usr/bin/env python3
"""Suites that others wrote, against a server of ours, black-box: what passed, what failed, what was left out and why.

    OAR_BIN=build/release/bin/oar python tests/compat/run.py schemathesis [--requests N]
    OAR_BIN=build/release/bin/oar python tests/compat/run.py pytest CHECKOUT/tests/some_suite [-- PYTEST-ARGUMENT...]

`schemathesis` (PyPI) makes requests of /openapi.json and wants no 5xx and no answer that the description does not have.
`pytest` runs the tests of a checkout that you point at: their code is no part of this repository. It finds the server in
OPENAI_BASE_URL and OAR_HTTP, OAR_GRPC; suites that start a server of their own are not for it. excluded.txt names tests that
are left out, each with a reason; they are counted. docs/compatibility.md has results.
"""
import os
import pathlib
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import xml.etree.ElementTree as xml

HERE = pathlib.Path(__file__).resolve().parent
OAR = os.environ.get("OAR_BIN", str(HERE.parents[1] / "build/release/bin/oar"))
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

    def __init__(self, folder):
        self.process = subprocess.Popen(
            [OAR, "serve", os.environ.get("OAR_MODEL", "demo"), "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--files",
             f"{folder}/files", "--shared-memory", "/oar-compat-", "--tool-parser", "hermes"],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
        self.http = self.grpc = None
        seen = []
        for line in self.process.stdout:
            seen.append(line)
            match = re.match(r"(http|grpc)\s+(?:http://)?(127\.0\.0\.1:\d+)", line)
            if match:
                setattr(self, match[1], match[2])
            if line.strip() == "ready":
                return
        raise SystemExit("the server did not start:\n" + "".join(seen))

    def end(self):
        """Ends it; False when it had ended by itself, or does not end in order."""
        alive = self.process.poll() is None
        self.process.send_signal(signal.SIGTERM)
        self.process.communicate(timeout=60)
        return alive and self.process.returncode == 0


def run_schemathesis(server, arguments):
    requests = int(arguments[arguments.index("--requests") + 1]) if "--requests" in arguments else 4000
    left_out = excluded("schemathesis")
    each = max(1, requests // 70)  # of an operation; most have as many
    command = [shutil.which("schemathesis") or str(pathlib.Path(sys.executable).with_name("schemathesis")), "run",
               f"http://{server.http}/openapi.json", "--checks", CHECKS, "--phases", "fuzzing", "-n", str(each),
               "--continue-on-failure", "--warnings", "off", "--suppress-health-check", "all", "--generation-database", "none"]
    for name in left_out:
        command += ["--exclude-name", name]
    done = subprocess.run(command, capture_output=True, text=True)
    print(done.stdout)
    cases = re.search(r"(\d+) generated(?:, (\d+) found)?", done.stdout)
    if cases is None:
        raise SystemExit(f"schemathesis did not run:\n{done.stderr}")
    print(f"schemathesis: {cases[1]} requests, {cases[2] or 0} findings, {len(left_out)} operations left out")
    return done.returncode == 0


def run_pytest(server, arguments):
    suite, more = arguments[0], arguments[2:] if arguments[1:2] == ["--"] else arguments[1:]
    left_out = excluded(pathlib.Path(suite).name)
    environment = {**os.environ, "OAR_HTTP": f"http://{server.http}", "OAR_GRPC": server.grpc,
                   "OPENAI_BASE_URL": f"http://{server.http}/v1", "OPENAI_API_KEY": os.environ.get("OPENAI_API_KEY", "none")}
    with tempfile.NamedTemporaryFile(suffix=".xml") as report:
        command = [sys.executable, "-m", "pytest", suite, "-q", f"--junit-xml={report.name}", *more]
        for test in left_out:
            command += ["--deselect", test]
        subprocess.run(command, env=environment)
        tree = xml.parse(report.name).getroot()
    totals = {name: sum(int(s.get(name, 0)) for s in tree.iter("testsuite")) for name in ("tests", "failures", "errors", "skipped")}
    failed = totals["failures"] + totals["errors"]
    ran = totals["tests"] - totals["skipped"]
    print(f"{suite}: {ran} ran, {ran - failed} passed, {totals['skipped']} skipped, {len(left_out)} left out")
    for case in tree.iter("testcase"):
        for fault in [*case.findall("failure"), *case.findall("error")]:
            print(f"  {case.get('classname')}::{case.get('name')}: {(fault.get('message') or '').splitlines()[:1]}")
    return failed == 0


def main():
    suites = {"schemathesis": run_schemathesis, "pytest": run_pytest}
    if len(sys.argv) < 2 or sys.argv[1] not in suites or (sys.argv[1] == "pytest" and len(sys.argv) < 3):
        raise SystemExit(__doc__)
    with tempfile.TemporaryDirectory() as folder:
        server = Server(folder)
        good = False
        try:
            good = suites[sys.argv[1]](server, sys.argv[2:])
        finally:
            if not server.end():
                good = False
                print("the server did not end in order")
    sys.exit(0 if good else 1)


if __name__ == "__main__":
    main()
