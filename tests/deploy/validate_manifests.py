#!/usr/bin/env python3
"""deploy/kubernetes and deploy/kserve against schemas, offline: what Kustomize renders (kubectl or kustomize; without them
the files as they lie) must be valid Kubernetes, strictly: an unknown field is an error. Needs `pip install
kubernetes-validate pyyaml`, whose wheel holds Kubernetes' own schemas. KServe publishes none there, so its two kinds are
checked against the fields that its API documents (serving.kserve.io)."""
import copy
import glob
import os
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
                    yield os.path.relpath(path, DEPLOY), d
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
    for where, document in documents:
        checked += 1
        problems.append(kubernetes(where, document, version))
    for path in sorted(glob.glob(DEPLOY + "/kserve/*.yaml")):
        for document in load(path):
            checked += 1
            problems.append(kserve(os.path.relpath(path, DEPLOY), document, version))
    # The check itself: a misspelt field must be found.
    broken = copy.deepcopy(next(d for _, d in documents if d["kind"] == "Deployment"))
    broken["spec"]["template"]["spec"]["containers"][0]["redinessProbe"] = {}
    if kubernetes("", broken, version) is None:
        problems.append("the schemas let a misspelt field pass")
    problems = [p for p in problems if p]
    for p in problems:
        print("ERROR:", p)
    print(f"{checked} documents against Kubernetes {version}, {len(problems)} wrong")
    sys.exit(1 if problems or checked < 5 else 0)


if __name__ == "__main__":
    main()
