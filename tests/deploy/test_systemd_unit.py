#!/usr/bin/env python3
"""The systemd unit's filter of system calls, installed as systemd would, around a server that finds two NUMA nodes: it
calls nothing that the filter refuses, and where affinity is refused after all, it serves without. Needs libseccomp2 and
systemd-analyze, which knows the groups; the nodes are told by a preloaded library in place of /sys."""
import ctypes
import errno
import os
import re
import shutil
import signal
import subprocess
import tempfile
import unittest
import urllib.request

OAR = os.environ["OAR_BIN"]
ROOT = os.environ["OAR_SOURCE_DIR"]
UNIT = os.path.join(ROOT, "deploy/systemd/oar.service")
# <seccomp.h>
KILL_PROCESS, ALLOW, UNKNOWN_CALL = 0x80000000, 0x7FFF0000, -1

# Opens $OAR_TEST_NODES/... for /sys/devices/system/node/...; what the C++ library calls to open a file.
PRELOADED = r"""
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
FILE* fopen64(const char* path, const char* mode) {
  static FILE* (*real)(const char*, const char*);
  static const char kNodes[] = "/sys/devices/system/node";
  char other[4096];
  if (real == NULL) *(void**)&real = dlsym(RTLD_NEXT, "fopen64");
  if (strncmp(path, kNodes, sizeof kNodes - 1) == 0) {
    snprintf(other, sizeof other, "%s%s", getenv("OAR_TEST_NODES"), path + sizeof kNodes - 1);
    path = other;
  }
  return real(path, mode);
}
"""


def seccomp():
    try:
        library = ctypes.CDLL("libseccomp.so.2")
    except OSError:
        return None
    library.seccomp_init.restype = ctypes.c_void_p
    library.seccomp_init.argtypes = [ctypes.c_uint32]
    library.seccomp_rule_add.argtypes = [ctypes.c_void_p, ctypes.c_uint32, ctypes.c_int, ctypes.c_uint]
    library.seccomp_load.argtypes = [ctypes.c_void_p]
    return library


SECCOMP = seccomp()
MISSING = ("libseccomp2 is not installed" if SECCOMP is None else
           "systemd-analyze is not installed (apt-get install systemd)" if shutil.which("systemd-analyze") is None else
           "no C compiler" if shutil.which("cc") is None else
           "one processor has one node" if len(os.sched_getaffinity(0)) < 2 else None)


def groups():
    """Name -> members of each group of system calls, as systemd knows them."""
    out = subprocess.run(["systemd-analyze", "syscall-filter", "--no-pager"], capture_output=True, text=True, timeout=120, check=True)
    known, name = {}, None
    for line in re.sub(r"\x1b\[[0-9;]*m", "", out.stdout).splitlines():
        if line.startswith("@"):
            name = line.strip()
            known[name] = []
        elif name and (member := line.strip()) and not member.startswith("#"):
            known[name].append(member)
    return known


def allowed_calls():
    """What the unit's lines leave, in their order (systemd.exec(5)); systemd always adds @default."""
    known = groups()

    def members(name):
        return {m for inner in known[name] for m in members(inner)} if name.startswith("@") else {name}

    with open(UNIT, encoding="utf-8") as f:
        lines = re.findall(r"^SystemCallFilter=(~?)(.+)$", f.read(), re.M)
    allowed = members("@default")
    assert not lines[0][0], "the first line must say what is allowed"
    for refuses, names in lines:
        listed = {m for name in names.split() for m in members(name)}
        allowed = allowed - listed if refuses else allowed | listed
    return allowed


def refusal():
    with open(UNIT, encoding="utf-8") as f:
        name = re.search(r"^SystemCallErrorNumber=(\w+)$", f.read(), re.M)
    return KILL_PROCESS if name is None else 0x00050000 | getattr(errno, name[1])


def install(allowed, otherwise):
    """To be called in the process that becomes the server."""
    context = SECCOMP.seccomp_init(otherwise)
    for call in allowed:
        number = SECCOMP.seccomp_syscall_resolve_name(call.encode())
        if number != UNKNOWN_CALL and SECCOMP.seccomp_rule_add(context, ALLOW, number, 0) != 0 and number >= 0:
            os._exit(98)
    if SECCOMP.seccomp_load(context) != 0:
        os._exit(99)


@unittest.skipIf(MISSING, f"skipped: {MISSING}")
class SystemCalls(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        cls.temp = tempfile.TemporaryDirectory()
        processors = sorted(os.sched_getaffinity(0))
        cls.nodes = [processors[: len(processors) // 2], processors[len(processors) // 2:]]
        for path, text in [("online", "0-1"), *((f"node{k}/cpulist", ",".join(map(str, p))) for k, p in enumerate(cls.nodes))]:
            path = os.path.join(cls.temp.name, path)
            os.makedirs(os.path.dirname(path), exist_ok=True)
            with open(path, "w", encoding="utf-8") as f:
                f.write(text + "\n")
        source, cls.preloaded = cls.temp.name + "/nodes.c", cls.temp.name + "/nodes.so"
        with open(source, "w", encoding="utf-8") as f:
            f.write(PRELOADED)
        subprocess.run(["cc", "-shared", "-fPIC", "-o", cls.preloaded, source, "-ldl"], check=True, timeout=240)
        cls.allowed = allowed_calls()

    @classmethod
    def tearDownClass(cls):
        cls.temp.cleanup()

    def serve(self, allowed, otherwise):
        """Serves the default model under the filter, asks once, ends it: (exit status, its threads' processors)."""
        env = dict(os.environ, LD_PRELOAD=self.preloaded, OAR_TEST_NODES=self.temp.name)
        with tempfile.TemporaryFile("w+") as log:
            server = subprocess.Popen([OAR, "serve", "demo", "--http", "127.0.0.1:0", "--grpc", "127.0.0.1:0", "--threads", "2",
                                       "--memory", "512MiB"], stdout=subprocess.PIPE, stderr=log, text=True, env=env,
                                      preexec_fn=lambda: install(allowed, otherwise))
            url, ready, places = None, False, set()
            for line in server.stdout:
                if line.startswith("http "):
                    url = line.split()[1]
                if ready := line.startswith("ready"):
                    break
            if ready:
                body = b'{"model": "demo", "max_tokens": 4, "prompt": "Speak"}'
                request = urllib.request.Request(url + "/v1/completions", body, {"Content-Type": "application/json"})
                self.assertEqual(urllib.request.urlopen(request, timeout=120).status, 200)
                for task in os.listdir(f"/proc/{server.pid}/task"):
                    with open(f"/proc/{server.pid}/task/{task}/status", encoding="utf-8") as f:
                        places.add(re.search(r"^Cpus_allowed_list:\s*(\S+)$", f.read(), re.M)[1])
                server.send_signal(signal.SIGTERM)
            server.stdout.read()
            server.stdout.close()
            status = server.wait(timeout=120)
            log.seek(0)
            print(log.read() if status else "", end="")
        return status, places

    def test_the_filter_is_one(self):
        """A call that the unit refuses ends this process; one that it allows does not."""
        for call, ends in (("import os; os.nice(1)", True), ("pass", False)):
            done = subprocess.run(["python3", "-c", call], preexec_fn=lambda: install(self.allowed, KILL_PROCESS), timeout=120)
            self.assertEqual(done.returncode == -signal.SIGSYS, ends, done)

    def test_nothing_refused_is_called(self):
        status, places = self.serve(self.allowed, KILL_PROCESS)
        self.assertEqual(status, 0)
        # Workers of the second node stay there; that is what the call is for.
        self.assertTrue(any(set(self.nodes[1]) == self.processors(place) for place in places), places)

    def test_refused_affinity_is_no_end(self):
        self.assertNotEqual(refusal(), KILL_PROCESS)
        status, places = self.serve(self.allowed - {"sched_setaffinity"}, refusal())
        self.assertEqual(status, 0)
        self.assertEqual(len(places), 1, "without affinity all threads run everywhere")

    @staticmethod
    def processors(text):
        out = set()
        for part in text.split(","):
            first, _, last = part.partition("-")
            out |= set(range(int(first), int(last or first) + 1))
        return out


if __name__ == "__main__":
    unittest.main()
