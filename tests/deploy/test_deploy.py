#!/usr/bin/env python3
"""deploy/ against the server: every metric that a panel or an alert names is exported, every flag that a manifest passes
exists, selectors meet their pods, documents parse. Tools that are not installed are skipped by name."""
import glob
import hashlib
import http.server
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
import unittest
import urllib.request

try:
    import yaml
except ImportError:
    yaml = None

OAR = os.environ["OAR_BIN"]
ROOT = os.environ["OAR_SOURCE_DIR"]
DEPLOY = os.path.join(ROOT, "deploy")
sys.path.insert(0, os.path.join(ROOT, "tests/support"))
from tiny_onnx import write_onnx  # noqa: E402
# PromQL's own words and labels that look like names.
NOT_METRICS = {"histogram_quantile", "sum", "by", "le", "rate", "model_name", "model", "finished_reason", "code", "and",
               "job", "up", "label_values", "reason", "method"}


def read(*path):
    with open(os.path.join(DEPLOY, *path), encoding="utf-8") as f:
        return f.read()


def metrics_of(expression):
    bare = re.sub(r"\{[^}]*\}|\[[^\]]*\]|\"[^\"]*\"|\bby \([^)]*\)", " ", expression)
    return {m for m in re.findall(r"[A-Za-z_:][A-Za-z0-9_:]*", bare) if m not in NOT_METRICS}


def documents():
    """(path, document) of every YAML file."""
    for path in sorted(glob.glob(os.path.join(DEPLOY, "**/*.y*ml"), recursive=True)):
        with open(path, encoding="utf-8") as f:
            for document in yaml.safe_load_all(f):
                yield os.path.relpath(path, DEPLOY), document


class Metrics(unittest.TestCase):
    @classmethod
    def setUpClass(cls):
        # A language model and an ordinary one, each asked once, and one call over gRPC: then every metric is there.
        cls.repository = tempfile.TemporaryDirectory()
        os.makedirs(cls.repository.name + "/add/1")
        write_onnx(cls.repository.name + "/add/1/model.onnx")
        os.symlink(os.path.join(ROOT, "configs/demo"), cls.repository.name + "/demo")
        cls.server = subprocess.Popen([OAR, "serve", cls.repository.name, "--http", "127.0.0.1:0", "--grpc",
                                       "127.0.0.1:0", "--threads", "1", "--memory", "512MiB"],
                                      stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
        url = grpc = None
        for line in cls.server.stdout:
            if line.startswith("http "):
                url = line.split()[1]
            if line.startswith("grpc "):
                grpc = line.split()[1]
            if line.startswith("ready"):
                break
        one = {"shape": [1, 2], "datatype": "FP32", "data": [1.0, 2.0]}
        for path, body in (("/v1/chat/completions", {"model": "demo", "max_tokens": 2, "messages": [{"role": "user", "content": "Hail"}]}),
                           ("/v2/models/add/infer", {"inputs": [{"name": "x", **one}, {"name": "y", **one}]})):
            request = urllib.request.Request(url + path, json.dumps(body).encode(), {"Content-Type": "application/json"})
            urllib.request.urlopen(request, timeout=120).read()
        subprocess.run([os.path.join(os.path.dirname(OAR), "oar_grpc_client"), "--address", grpc, "--model", "demo", "--max-tokens", "2", "Hail"],
                       stdout=subprocess.DEVNULL, check=True, timeout=120)
        # A request is counted when its answer has been sent, which may be after the client has it.
        for _ in range(200):
            text = urllib.request.urlopen(url + "/metrics", timeout=10).read().decode()
            cls.exported = set(re.findall(r"^([A-Za-z_:][A-Za-z0-9_:]*)[ {]", text, re.M))
            if {"oar_http_requests_total", "oar_grpc_requests_total"} <= cls.exported:
                break
            time.sleep(0.05)

    @classmethod
    def tearDownClass(cls):
        cls.server.terminate()
        cls.server.wait(timeout=120)
        cls.server.stdout.close()
        cls.repository.cleanup()

    def check(self, where, expression):
        names = metrics_of(expression)
        self.assertTrue(names or "up{" in expression, f"{where}: no metric found in {expression}")
        self.assertEqual(names - self.exported, set(), f"{where}: {expression}")

    def test_every_panel(self):
        dashboard = json.loads(read("grafana", "oar.json"))
        self.assertEqual([p["title"] for p in dashboard["panels"] if p["type"] == "row"],
                         ["Language models", "Ordinary models", "HTTP and gRPC"])
        self.assertGreater(len(dashboard["panels"]), 20)
        for panel in dashboard["panels"]:
            for target in panel.get("targets", ()):
                self.check(panel["title"], target["expr"])
        for variable in dashboard["templating"]["list"]:
            self.check(variable["name"], variable["query"])

    def test_every_alert(self):
        expressions = re.findall(r"^\s+expr: (.+)$", read("compose", "alerts.yml"), re.M)
        self.assertGreaterEqual(len(expressions), 5)
        for expression in expressions:
            self.check("alerts.yml", expression)

    def test_the_check_would_notice(self):
        self.assertEqual(metrics_of('sum by (le) (rate(a:b_bucket{model="x"}[5m])) / no_such'), {"a:b_bucket", "no_such"})
        self.assertNotIn("no_such", self.exported)

    def test_configurations_start(self):
        """Each config map, as the server reads it: the model and the ports replaced, the rest as deployed."""
        for path in glob.glob(os.path.join(DEPLOY, "**/server.toml"), recursive=True):
            for spoilt in (False, True):
                with tempfile.NamedTemporaryFile("w", suffix=".toml") as f:
                    with open(path, encoding="utf-8") as original:
                        f.write(original.read() + ("drain-timeot = 3\n" if spoilt else ""))
                    f.flush()
                    server = subprocess.Popen([OAR, "serve", os.path.join(ROOT, "configs/demo"), "--config", f.name, "--http", "127.0.0.1:0",
                                               "--grpc", "127.0.0.1:0", "--metrics", "127.0.0.1:0"], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
                    ready = "ready\n" in iter(server.stdout.readline, "")
                    server.terminate()
                    complaint = server.communicate(timeout=120)[1]
                self.assertEqual(ready, not spoilt, path + complaint)
                self.assertEqual("unknown key 'drain-timeot'" in complaint, spoilt, complaint)

    def test_what_the_endpoint_picker_reads(self):
        for name in ("vllm:num_requests_waiting", "vllm:num_requests_running", "vllm:kv_cache_usage_perc", "vllm:cache_config_info"):
            self.assertIn(name, self.exported)


class Files(unittest.TestCase):
    def test_dashboard_is_what_its_script_writes(self):
        script = read("grafana", "make_dashboard.py")
        scope = {"__name__": "dashboard", "__file__": "make_dashboard.py"}
        exec(compile(script, "make_dashboard.py", "exec"), scope)
        self.assertEqual(json.loads(read("grafana", "oar.json")), scope["dashboard"]())

    def test_every_flag_exists(self):
        help_text = subprocess.run([OAR, "serve", "--help"], capture_output=True, text=True, timeout=120, check=True).stdout
        flags = set()
        for path in glob.glob(os.path.join(DEPLOY, "**/*"), recursive=True):
            name = os.path.basename(path)
            if os.path.isfile(path) and (name.startswith("Dockerfile") or name.endswith((".yaml", ".yml", ".service"))):
                with open(path, encoding="utf-8") as f:
                    for line in f:
                        if not line.lstrip().startswith("#") and ("serve" in line or "OAR_OPTIONS" in line):
                            flags |= set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", line))
        self.assertIn("--config", flags)
        for path in glob.glob(os.path.join(DEPLOY, "**/*.toml"), recursive=True):
            with open(path, encoding="utf-8") as f:
                keys = set(re.findall(r"^([^#\s=]+) *=", f.read(), re.M))
            self.assertIn("http", keys)
            flags |= {"--" + key for key in keys - {"model"}}
        self.assertIn("--http", flags)
        for flag in flags:
            self.assertIn(flag, help_text)

    def test_dockerfile_copies_what_exists(self):
        text = read("docker", "Dockerfile")
        self.assertIn("USER 65532:65532", text)
        self.assertIn("HEALTHCHECK", text)
        self.assertEqual(text.count("FROM ${BASE}"), 2)
        self.assertTrue(os.path.isdir(os.path.join(ROOT, "configs/demo")))
        packages = set(re.findall(r"(?<=\s)(lib[\w.+-]+-dev|g\+\+|cmake|ninja-build|protobuf-compiler[\w-]*|prometheus-cpp-dev)", text))
        with open(os.path.join(ROOT, ".ci/packages.sh"), encoding="utf-8") as f:
            known = f.read()
        for package in packages:
            self.assertIn(package, known)

    def test_both_images_behave_alike(self):
        """What a user meets is one: the last stages differ in the base and in what the GPU needs alone."""
        def last_stage(name):
            text = re.sub(r"\\\n\s*", " ", read("docker", name))
            lines = [line for line in text.splitlines() if line and not line.startswith("#")]
            start = max(i for i, line in enumerate(lines) if line.startswith("FROM "))
            return [line for line in lines[start:] if "NVIDIA_" not in line and "LD_LIBRARY_PATH" not in line]
        self.assertEqual(last_stage("Dockerfile"), last_stage("Dockerfile.cuda"))
        packages = [set(re.findall(r"(?<=\s)(lib[\w.+-]+-dev|g\+\+|cmake|ninja-build|protobuf-compiler[\w-]*|prometheus-cpp-dev)",
                                   read("docker", name))) for name in ("Dockerfile", "Dockerfile.cuda")]
        # Each release has a Boost of its own.
        self.assertEqual(packages[0] - {"libboost1.81-dev"}, packages[1] - {"libboost1.83-dev"})

    def test_dockerfiles_are_understood(self):
        """Every instruction carried out by the tool that builds them, on a base that is nearly empty: its shell does nothing
        and succeeds. What comes out says user, ports, command and health check."""
        obstacle = "buildah is not installed (apt-get install buildah)" if shutil.which("buildah") is None else \
            "no C compiler" if shutil.which("cc") is None else "not root" if os.getuid() != 0 else None
        if obstacle:
            self.skipTest("skipped: " + obstacle)
        with tempfile.TemporaryDirectory() as folder:
            def build(name, path, *options):
                return subprocess.run([*tool, "bud", "-q", "--format", "docker", "--isolation", "chroot", "--pull-never", *options,
                                       "-t", "localhost/" + name, "-f", path, context], capture_output=True, text=True, timeout=240, env=env)
            context, env = folder + "/context", dict(os.environ, TMPDIR=folder)
            tool = ["buildah", "--root", folder + "/root", "--runroot", folder + "/run", "--storage-driver", "vfs"]
            os.makedirs(context + "/base/bin")
            os.makedirs(context + "/base/out/usr/bin")
            with open(folder + "/sh.c", "w", encoding="utf-8") as f:
                f.write("int main(void) { return 0; }\n")
            subprocess.run(["cc", "-static", "-o", context + "/base/bin/sh", folder + "/sh.c"], check=True, timeout=240)
            for name, text in (("stub", "FROM scratch\nCOPY base/ /\n"), ("broken", "FROM localhost/stub\nHEALTHCHEK CMD true\n")):
                with open(f"{folder}/{name}", "w", encoding="utf-8") as f:
                    f.write(text)
            made = build("stub", folder + "/stub")
            if made.returncode != 0:
                self.skipTest("skipped: buildah cannot build here: " + made.stderr.strip().splitlines()[-1])
            self.assertIn("HEALTHCHEK", build("broken", folder + "/broken").stderr)
            seen = []
            for name in ("Dockerfile", "Dockerfile.cuda"):
                made = build("image", os.path.join(DEPLOY, "docker", name), "--build-arg", "BASE=localhost/stub", "--build-arg",
                             "BUILD_BASE=localhost/stub")
                self.assertEqual(made.returncode, 0, made.stderr)
                image = subprocess.run([*tool, "inspect", "--type", "image", "localhost/image"], capture_output=True, text=True,
                                       timeout=240, env=env, check=True).stdout
                config = json.loads(image)["Docker"]["config"]
                seen.append({key: config[key] for key in ("User", "ExposedPorts", "Entrypoint", "Cmd", "Healthcheck", "StopSignal")})
            self.assertEqual(seen[0], seen[1])
            self.assertEqual(seen[0]["User"], "65532:65532")
            self.assertEqual(set(seen[0]["ExposedPorts"]), {"8000/tcp", "8001/tcp"})
            self.assertEqual(seen[0]["Healthcheck"]["Test"], ["CMD", "/usr/bin/oar", "health"])

    @unittest.skipIf(yaml is None, "skipped: PyYAML is not installed")
    def test_documents_and_selectors(self):
        kinds = {}
        for path, document in documents():
            self.assertIsInstance(document, dict, path)
            if "kind" in document:
                kinds.setdefault(document["kind"], []).append(document)
        for kind in ("Deployment", "Service", "HorizontalPodAutoscaler", "PodDisruptionBudget", "Kustomization",
                     "ClusterServingRuntime", "InferenceService", "PersistentVolumeClaim"):
            self.assertIn(kind, kinds)
        for document in kinds["Kustomization"]:
            self.assertTrue(document["resources"])
        container = kinds["Deployment"][0]["spec"]["template"]["spec"]["containers"][0]
        ports = {p["name"] for p in container["ports"]}
        for port in kinds["Service"][0]["spec"]["ports"]:
            self.assertIn(port["targetPort"], ports)
        for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
            self.assertIn(container[probe]["httpGet"]["port"], ports)
        self.assertTrue(container["securityContext"]["readOnlyRootFilesystem"])
        self.assertEqual(kinds["HorizontalPodAutoscaler"][0]["spec"]["scaleTargetRef"]["name"],
                         kinds["Deployment"][0]["metadata"]["name"])
        runtime = kinds["ClusterServingRuntime"][0]
        self.assertEqual(kinds["InferenceService"][0]["spec"]["predictor"]["model"]["runtime"], runtime["metadata"]["name"])
        formats = {f["name"] for f in runtime["spec"]["supportedModelFormats"]}
        self.assertIn(kinds["InferenceService"][0]["spec"]["predictor"]["model"]["modelFormat"]["name"], formats)

    def test_kustomize_renders(self):
        tool = shutil.which("kustomize") or shutil.which("kubectl")
        if tool is None:
            self.skipTest("skipped: neither kustomize nor kubectl is installed")
        command = [tool, "build"] if tool.endswith("kustomize") else [tool, "kustomize"]
        for folder in ("kubernetes/base", *sorted(glob.glob("kubernetes/overlays/*", root_dir=DEPLOY))):
            out = subprocess.run([*command, os.path.join(DEPLOY, folder)], capture_output=True, text=True, timeout=240)
            self.assertEqual(out.returncode, 0, out.stderr)
            self.assertIn("app.kubernetes.io/name: oar", out.stdout)
            config = re.search(r"kind: ConfigMap.*?name: (oar-server-\w+)", out.stdout, re.S)[1]
            self.assertEqual(out.stdout.count(config), 2, folder)  # the map and the volume that holds it

    def test_models_are_filled(self):
        """The job's script: right files arrive once, wrong ones never, and nothing outside the folder."""
        missing = [tool for tool in ("sh", "curl", "sha256sum") if shutil.which(tool) is None]
        if missing:
            self.skipTest(f"skipped: {', '.join(missing)} not installed")
        script = os.path.join(DEPLOY, "kubernetes/components/production/fill.sh")
        with tempfile.TemporaryDirectory() as folder:
            asked = []

            class Files(http.server.BaseHTTPRequestHandler):
                def do_GET(self):
                    asked.append((self.path, self.headers.get("Authorization")))
                    self.send_response(200)
                    self.end_headers()
                    self.wfile.write(self.path.encode())

                def log_message(self, *_):
                    pass

            server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Files)
            threading.Thread(target=server.serve_forever, daemon=True).start()

            def fill(*lines, token=""):
                with open(folder + "/list", "w", encoding="utf-8") as f:
                    f.write("# a comment\n" + "".join(f"{s} {p} http://127.0.0.1:{server.server_port}{u}\n" for s, p, u in lines))
                os.makedirs(folder + "/models", exist_ok=True)
                return subprocess.run(["sh", script, folder + "/list", folder + "/models"], capture_output=True, text=True, timeout=120,
                                      env=dict(os.environ, TOKEN=token))
            sums = {u: hashlib.sha256(u.encode()).hexdigest() for u in ("/a", "/b")}
            right = [(sums["/a"], "default/a", "/a"), (sums["/b"], "other/b", "/b")]
            done = fill(*right, token="secret")
            self.assertEqual(done.returncode, 0, done.stderr)
            self.assertEqual(asked, [("/a", "Bearer secret"), ("/b", "Bearer secret")])
            with open(folder + "/models/other/b", encoding="utf-8") as f:
                self.assertEqual(f.read(), "/b")
            self.assertTrue(os.path.exists(folder + "/models/.complete"))
            self.assertEqual(fill(*right).returncode, 0)
            self.assertEqual(len(asked), 2)
            done = fill(*right, (sums["/a"], "default/c", "/b"))
            self.assertNotEqual(done.returncode, 0)
            self.assertIn("SHA-256", done.stderr)
            self.assertEqual(asked[2:], [("/b", None)])
            self.assertEqual(os.listdir(folder + "/models/default"), ["a"])
            self.assertFalse(os.path.exists(folder + "/models/.complete"))
            for path in ("../out", "/etc/out", "a/../../out"):
                self.assertNotEqual(fill((sums["/a"], path, "/a")).returncode, 0, path)
            self.assertEqual(sorted(os.listdir(folder)), ["list", "models"])
            server.shutdown()
            server.server_close()
            # The list as it is deployed.
            listed = [line.split() for line in read("kubernetes/components/production/models.txt").splitlines() if not line.startswith("#")]
            for checksum, path, url in listed:
                self.assertRegex(checksum, r"^[0-9a-f]{64}$")
                self.assertRegex(url, r"^https://.*/[0-9a-f]{40}/")
                self.assertTrue(path.startswith("default/"))

    def test_alert_rules_with_promtool(self):
        if shutil.which("promtool") is None:
            self.skipTest("skipped: promtool is not installed (apt-get install prometheus)")
        folder = os.path.join(DEPLOY, "compose")
        for arguments in (["check", "rules", "alerts.yml"], ["test", "rules", "alerts_test.yml"],
                          ["check", "config", "--syntax-only", "prometheus.yml"]):
            out = subprocess.run(["promtool", *arguments], cwd=folder, capture_output=True, text=True, timeout=240)
            self.assertEqual(out.returncode, 0, out.stdout + out.stderr)

    def test_unit_file(self):
        if shutil.which("systemd-analyze") is None:
            self.skipTest("skipped: systemd-analyze is not installed")
        out = subprocess.run(["systemd-analyze", "verify", "--man=no", os.path.join(DEPLOY, "systemd/oar.service")],
                             capture_output=True, text=True, timeout=240)
        unknown = [line for line in out.stderr.splitlines() if "oar.service" in line and "Unknown" in line]
        self.assertEqual(unknown, [], out.stderr)


if __name__ == "__main__":
    unittest.main()
