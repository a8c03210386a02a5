#!/usr/bin/env python3
"""deploy/kubernetes and deploy/kserve against schemas, offline: what Kustomize renders (kubectl or kustomize; without them
the files as they lie) must be valid Kubernetes, strictly: an unknown field is an error. Then whether the documents of an overlay
agree with each other: what the schemas cannot say. Needs kubernetes-validate and pyyaml (.ci/requirements.txt), whose wheel holds
Kubernetes' own schemas. KServe and the Prometheus Operator publish none there, so their kinds are checked against the fields that
their APIs document."""
import copy
import glob
import os
import re
import shutil
import subprocess
import sys

import kubernetes_validate
import yaml

DEPLOY = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../../deploy")
RUNTIME = {"supportedModelFormats", "protocolVersions", "multiModel", "containers", "annotations", "labels", "volumes", "nodeSelector",
           "tolerations", "affinity", "imagePullSecrets", "grpcEndpoint", "grpcDataEndpoint", "builtInAdapter", "disabled", "replicas",
           "storageHelper"}
MODEL = {"modelFormat", "runtime", "protocolVersion", "storageUri", "storage", "resources", "args", "env"}
FORMAT = {"name", "version", "autoSelect", "priority"}
ENDPOINT = {"port", "path", "interval", "scrapeTimeout", "scheme", "tlsConfig", "authorization", "honorLabels", "relabelings",
            "metricRelabelings"}
with open(os.path.join(DEPLOY, "../CMakeLists.txt"), encoding="utf-8") as cmake:
    VERSION = re.search(r"project\(oar VERSION ([\d.]+)", cmake.read())[1]


def load(path):
    with open(path, encoding="utf-8") as f:
        return [d for d in yaml.safe_load_all(f) if d]


def rendered():
    """(where, document): each overlay as a cluster would get it."""
    tool = shutil.which("kustomize") or shutil.which("kubectl")
    folders = ["kubernetes/base", *(os.path.relpath(p, DEPLOY) for p in sorted(glob.glob(DEPLOY + "/kubernetes/overlays/*")))]
    if tool is None:
        print("note: neither kustomize nor kubectl is installed: patches are not applied, whole documents are checked as they lie")
        for path in sorted(glob.glob(DEPLOY + "/kubernetes/base/*.yaml")):
            for d in load(path):
                if d["kind"] != "Kustomization":
                    yield "kubernetes/base", d
        return
    command = [tool, "build"] if tool.endswith("kustomize") else [tool, "kustomize"]
    for folder in folders:
        done = subprocess.run([*command, os.path.join(DEPLOY, folder)], capture_output=True, text=True, timeout=240)
        if done.returncode != 0:
            raise SystemExit(f"{folder}: {done.stderr}")
        for d in yaml.safe_load_all(done.stdout):
            yield folder, d


def kubernetes(where, document, version):
    try:
        kubernetes_validate.validate(document, version, strict=True)
    except kubernetes_validate.ValidationError as e:
        return f"{where}: {document['kind']}/{document['metadata']['name']}: {'.'.join(map(str, e.path))}: {e.message}"
    except kubernetes_validate.SchemaNotFoundError:
        return f"{where}: {document.get('apiVersion')} {document.get('kind')} is no kind of Kubernetes {version}"
    return None


def monitor(where, document):
    """A ServiceMonitor of the Prometheus Operator."""
    spec = document["spec"]
    if unknown := set(spec) - {"selector", "endpoints", "namespaceSelector", "jobLabel", "targetLabels"}:
        return f"{where}: ServiceMonitor: spec has unknown fields {sorted(unknown)}"
    for endpoint in spec["endpoints"]:
        if unknown := set(endpoint) - ENDPOINT:
            return f"{where}: ServiceMonitor: endpoint has unknown fields {sorted(unknown)}"
    return None


def disagreements(where, documents, rendered_whole):
    """What is wrong between the documents of one overlay, and in what a schema allows."""
    kinds = {}
    for d in documents:
        kinds.setdefault(d["kind"], []).append(d)
    server = kinds["Deployment"][0]
    spec, pods = server["spec"], [d["spec"]["template"] for kind in ("Deployment", "Job") for d in kinds.get(kind, ())]
    pod = spec["template"]["spec"]
    container = pod["containers"][0]
    ports = {p["name"] for p in container["ports"]}
    services = kinds["Service"][0]["spec"]

    def wrong(condition, message):
        if condition:
            yield f"{where}: {message}"

    yield from wrong("replicas" in spec, "replicas beside an autoscaler: each apply would undo what it has decided")
    yield from wrong(not kinds.get("HorizontalPodAutoscaler"), "there is no autoscaler, and no number of replicas")
    for p in pods:
        yield from wrong(p["spec"].get("enableServiceLinks") is not False, "a pod gets the words of Services (enableServiceLinks)")
        for c in p["spec"]["containers"] + p["spec"].get("initContainers", []):
            tag = c["image"].rpartition(":")[2] if ":" in c["image"] else ""
            yield from wrong(rendered_whole and (tag in ("", "latest") or "/oar" in "/" + c["image"] and tag != VERSION),
                             f"image {c['image']} is not of a version (ours is {VERSION})")
    limits, requests = container["resources"]["limits"], container["resources"]["requests"]
    yield from wrong(not str(limits["cpu"]).isdigit() or str(requests["cpu"]) != str(limits["cpu"]),
                     "threads are whole processors: limits.cpu must be a whole number, and equal to requests.cpu")
    threads = container["args"][container["args"].index("--threads") + 1]
    source = {e["name"]: e for e in container["env"]}[threads.strip("$()")]["valueFrom"]["resourceFieldRef"]
    yield from wrong((source["resource"], source["divisor"]) != ("limits.cpu", "1"), "--threads is not the limit of processors")
    readiness = container["readinessProbe"]
    yield from wrong((readiness["timeoutSeconds"], readiness["failureThreshold"]) != (2, 3), "readiness: timeoutSeconds 2, failureThreshold 3")
    for probe in ("startupProbe", "readinessProbe", "livenessProbe"):
        yield from wrong(container[probe]["httpGet"]["port"] not in ports, f"{probe} asks a port that there is not")
    for port in services["ports"]:
        yield from wrong(port["targetPort"] not in ports, f"the Service leads to port {port['targetPort']}, which there is not")
    for constraint in pod["topologySpreadConstraints"]:
        yield from wrong(not constraint["labelSelector"]["matchLabels"].items() <= spec["template"]["metadata"]["labels"].items(),
                         "a topology spread counts other pods")
    # What selects the server's pods selects these alone.
    for kind, selector in (("Service", services["selector"]), ("Deployment", spec["selector"]["matchLabels"]),
                           ("PodDisruptionBudget", kinds["PodDisruptionBudget"][0]["spec"]["selector"]["matchLabels"])):
        for p in pods:
            meant = p is spec["template"]
            yield from wrong((selector.items() <= p["metadata"]["labels"].items()) != meant, f"{kind} selects {p['metadata']['labels']}")
    for claim in kinds.get("PersistentVolumeClaim", ()):
        name = claim["metadata"]["name"]
        yield from wrong("ReadOnlyMany" in claim["spec"]["accessModes"], f"nobody can fill the volume {name}")
        users = {d["kind"]: v["persistentVolumeClaim"].get("readOnly", False) for kind in ("Deployment", "Job") for d in kinds.get(kind, ())
                 for v in d["spec"]["template"]["spec"]["volumes"] if v.get("persistentVolumeClaim", {}).get("claimName") == name}
        yield from wrong(users != {"Deployment": True, "Job": False}, f"the volume {name} is not filled by a job and read by the server")
    for policy in kinds.get("NetworkPolicy", ()):
        named = {p["port"] for rule in policy["spec"]["ingress"] for p in rule.get("ports", ())}
        yield from wrong(named - ports, f"a NetworkPolicy opens ports {sorted(named - ports)}, which there are not")
        yield from wrong(sum(policy["spec"]["podSelector"]["matchLabels"].items() <= p["metadata"]["labels"].items() for p in pods) != 1,
                         f"the NetworkPolicy {policy['metadata']['name']} is not of one kind of pod")
    for m in kinds.get("ServiceMonitor", ()):
        yield from wrong({e["port"] for e in m["spec"]["endpoints"]} - {p["name"] for p in services["ports"]}, "ServiceMonitor: no such port")
        yield from wrong(not m["spec"]["selector"]["matchLabels"].items() <= kinds["Service"][0]["metadata"]["labels"].items(),
                         "ServiceMonitor: selects no Service")
    # Components combine: each overlay has all of what its name says.
    name = os.path.basename(where)
    variables = {e["name"] for e in container["env"]}
    yield from wrong(("tls" in name) != ("OAR_TLS_CERT" in variables), "TLS is lost, or not asked for")
    yield from wrong(("tls" in name) == any("appProtocol" in p for p in services["ports"]), "appProtocol says HTTP/2 without TLS")
    for kind in ("PersistentVolumeClaim", "Job", "NetworkPolicy", "ServiceMonitor"):
        yield from wrong(("production" in name) != (kind in kinds), f"{kind} is lost, or not asked for")


def kserve(where, document, version):
    """The pod's part of a runtime is validated as a pod's; the rest by names and values."""
    kind, spec = document["kind"], document["spec"]
    if kind == "ClusterServingRuntime":
        if unknown := set(spec) - RUNTIME:
            return f"{where}: spec has unknown fields {sorted(unknown)}"
        for f in spec["supportedModelFormats"]:
            if set(f) - FORMAT or "name" not in f or not isinstance(f.get("version", ""), str):
                return f"{where}: supportedModelFormats: {f}"
        if wrong := set(spec["protocolVersions"]) - {"v1", "v2", "grpc-v1", "grpc-v2"}:
            return f"{where}: protocolVersions: {sorted(wrong)}"
        if spec["containers"][0]["name"] != "kserve-container":
            return f"{where}: the first container must be called kserve-container"
        pod = {"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "x"}, "spec": {"containers": copy.deepcopy(spec["containers"])}}
        return kubernetes(where, pod, version)
    if kind == "InferenceService":
        model = spec["predictor"]["model"]
        if unknown := set(model) - MODEL:
            return f"{where}: predictor.model has unknown fields {sorted(unknown)}"
        return None
    return f"{where}: {kind} is not known to this check"


def main():
    version = kubernetes_validate.latest_version()
    problems, checked = [], 0
    documents = list(rendered())
    overlays = {}
    for where, document in documents:
        checked += 1
        overlays.setdefault(where, []).append(document)
        problems.append(monitor(where, document) if document["kind"] == "ServiceMonitor" else kubernetes(where, document, version))
    whole = len(overlays) > 1
    for where, members in overlays.items():
        problems += disagreements(where, members, whole)
    for path in sorted(glob.glob(DEPLOY + "/kserve/*.yaml")):
        for document in load(path):
            checked += 1
            problems.append(kserve(os.path.relpath(path, DEPLOY), document, version))
    # The check itself: a misspelt field must be found.
    broken = copy.deepcopy(next(d for _, d in documents if d["kind"] == "Deployment"))
    broken["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}
    if kubernetes("", broken, version) is None:
        problems.append("the schemas let a misspelt field pass")
    for spoil in (lambda d: d["spec"].update(replicas=1),
                  lambda d: d["spec"]["template"]["spec"]["containers"][0]["resources"]["limits"].update(cpu="2500m")):
        members = copy.deepcopy(overlays["kubernetes/base"])
        spoil(next(d for d in members if d["kind"] == "Deployment"))
        if len(list(disagreements("kubernetes/base", members, whole))) != 1:
            problems.append("a disagreement passes")
    problems = [p for p in problems if p]
    for p in problems:
        print("ERROR:", p)
    print(f"{checked} documents against Kubernetes {version}, {len(problems)} wrong")
    sys.exit(1 if problems or checked < 5 else 0)


if __name__ == "__main__":
    main()
