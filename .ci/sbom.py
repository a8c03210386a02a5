#!/usr/bin/env python3
"""A bill of materials in CycloneDX 1.5 (https://cyclonedx.org/docs/1.5/json/) of what we ship: which packages of the
distribution are linked or compiled in, in the versions that this machine has, which built it.

sbom.py ARTIFACT [-o FILE]                       a .deb: what it depends on; a program or library: what the linker finds
sbom.py X.cdx.json --status STATUS [-o FILE]     X, made where an image was built, and the packages of the image's /var/lib/dpkg/status
FILE is ARTIFACT.cdx.json where it is not given."""
import argparse
import hashlib
import json
import os
import re
import subprocess
import uuid
from urllib.parse import quote

# Headers and archives that become part of our binaries without being linked by name.
COMPILED_IN = ("libboost1*-dev", "libcli11-dev", "libspdlog-dev", "libfmt-dev", "prometheus-cpp-dev", "libstdc++-*-dev")
OURS = re.compile(r"^(oar|oar-cuda|liboar\d+|liboar-dev)$")


def output(*command):
    """Also of a command that failed for some of its arguments, as dpkg's do."""
    return subprocess.run(command, capture_output=True, text=True, check=False).stdout


def installed(*patterns):
    """[(name, version, architecture)] of installed packages."""
    lines = output("dpkg-query", "-W", "-f", "${db:Status-Status}\t${binary:Package}\t${Version}\t${Architecture}\n", *patterns).splitlines()
    return [tuple(line.split("\t")[1:]) for line in lines if line.startswith("installed\t")]


def owners(paths):
    """Names of the packages that have these files, where the linker found them or where links lead, with /usr or without."""
    there = {q for p in paths for q in (p, os.path.realpath(p))}
    found = output("dpkg", "-S", *sorted(there | {q.removeprefix("/usr") for q in there} | {"/usr" + q for q in there}))
    return sorted({name.strip() for line in found.splitlines() for name in line.rsplit(": ", 1)[0].split(",")})


def needs_of(artifact):
    if artifact.endswith(".deb"):
        depends = output("dpkg-deb", "-f", artifact, "Depends")
        return [re.split(r"[ (|]", d.strip())[0] for d in depends.split(",") if d.strip()]
    libraries = re.findall(r"=> (/\S+)", output("ldd", artifact))
    return owners(libraries) if libraries else []


def of_status(path):
    """Packages of an image's dpkg database."""
    with open(path, encoding="utf-8") as f:
        for paragraph in f.read().split("\n\n"):
            fields = dict(re.findall(r"^(Package|Version|Architecture|Status): (.+)$", paragraph, re.M))
            if fields.get("Status", "").endswith(" installed"):
                yield fields["Package"], fields["Version"], fields["Architecture"]


def system():
    with open("/etc/os-release", encoding="utf-8") as f:
        return dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', f.read(), re.M))


def components(packages, use):
    """Name -> component, of (name, version, architecture)."""
    os_id, os_version = system().get("ID", "linux"), system().get("VERSION_ID", "")
    found = {}
    for name, version, architecture in packages:
        name = name.split(":")[0]
        if not OURS.match(name):
            found[name] = {"type": "library", "name": name, "version": version, "bom-ref": f"{name}@{version}",
                           "purl": f"pkg:deb/{os_id}/{quote(name)}@{quote(version)}?arch={architecture}&distro={os_id}-{os_version}",
                           "properties": [{"name": "oar:use", "value": use}]}
    return found


def bill(artifact, version):
    with open(artifact, "rb") as f:
        digest = hashlib.sha256(f.read()).hexdigest()
    found = components(installed(*COMPILED_IN), "compiled in")
    if needs := needs_of(artifact):
        found |= components(installed(*needs), "linked")
    name = os.path.basename(artifact)
    return with_components({
        "bomFormat": "CycloneDX", "specVersion": "1.5", "version": 1,
        "metadata": {"component": {"type": "application", "name": name, "version": version, "bom-ref": name,
                                   "hashes": [{"alg": "SHA-256", "content": digest}],
                                   "licenses": [{"license": {"id": "Apache-2.0"}}]}}}, found)


def with_components(document, found):
    document["components"] = [found[name] for name in sorted(found)]
    root = document["metadata"]["component"]["bom-ref"]
    document["dependencies"] = [{"ref": root, "dependsOn": [c["bom-ref"] for c in document["components"]]}]
    document["serialNumber"] = "urn:uuid:" + str(uuid.uuid5(uuid.NAMESPACE_URL, json.dumps(
        [document["metadata"]["component"]["hashes"], document["components"]])))
    return document


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifact")
    parser.add_argument("--status")
    parser.add_argument("-o", "--output")
    o = parser.parse_args()
    with open(os.path.join(os.path.dirname(os.path.abspath(__file__)), "../CMakeLists.txt"), encoding="utf-8") as f:
        version = re.search(r"project\(oar VERSION ([\d.]+)", f.read())[1]
    if o.status:
        with open(o.artifact, encoding="utf-8") as f:
            document = json.load(f)
        with_components(document, components(of_status(o.status), "in the image") | {c["name"]: c for c in document["components"]})
    else:
        document = bill(o.artifact, version)
    with open(o.output or o.artifact.removesuffix(".cdx.json") + ".cdx.json", "w", encoding="utf-8") as out:
        json.dump(document, out, indent=1)
        out.write("\n")


if __name__ == "__main__":
    main()
