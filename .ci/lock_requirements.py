#!/usr/bin/env python3
"""Writes requirements.txt from requirements.in: every package by version and by the hashes of its wheels, so that pip installs
these files or none (--require-hashes). `uv` resolves for every Python at once (pip install uv); of each package's files only
those stay that Linux on x86-64 or AArch64 can install, under the versions of Python that supported systems have.

lock_requirements.py            resolves anew, newest versions
lock_requirements.py --check    whether requirements.txt has what requirements.in asks for; no network"""
import os
import re
import subprocess
import sys
import tomllib

HERE = os.path.dirname(os.path.abspath(__file__))
SOURCE, LOCK = os.path.join(HERE, "requirements.in"), os.path.join(HERE, "requirements.txt")
PYTHONS = range(11, 15)  # 3.11: Debian 12; 3.12: Ubuntu 24.04; 3.13: Debian 13; and the next


def fits(wheel):
    """name-version[-build]-python-abi-platform.whl"""
    python, abi, platform = wheel.removesuffix(".whl").split("-")[-3:]
    if platform != "any" and not re.search(r"manylinux\w*_(x86_64|aarch64)", platform):
        return False
    for tag in python.split("."):
        if tag == "py3" or (tag.startswith("cp3") and int(tag[3:]) in PYTHONS and abi in ("abi3", "none", tag)):
            return True
        if tag.startswith("cp3") and abi == "abi3" and int(tag[3:]) <= PYTHONS[0]:
            return True
    return False


def lock():
    command = ["uv", "pip", "compile", "-q", "--universal", "--python-version", f"3.{PYTHONS[0]}", "--format", "pylock.toml", SOURCE]
    resolved = tomllib.loads(subprocess.run(command, capture_output=True, text=True, check=True).stdout)
    lines = ["# Written by lock_requirements.py from requirements.in; do not edit."]
    for package in resolved["packages"]:
        marker = package.get("marker", "")
        if "emscripten'" in marker and "!=" not in marker or "sys_platform == 'win32'" in marker:
            continue
        hashes = sorted({wheel["hashes"]["sha256"] for wheel in package.get("wheels", ()) if fits(wheel["url"].rsplit("/", 1)[1])})
        if not hashes:
            sys.exit(f"{package['name']} {package['version']} has no wheel for Linux")
        marker = re.sub(r"^python_full_version >= '3\.11'$", "", marker)
        lines.append(f"{package['name']}=={package['version']}" + (f" ; {marker}" if marker else "") + "".join(
            f" \\\n    --hash=sha256:{h}" for h in hashes))
    with open(LOCK, "w", encoding="utf-8") as out:
        out.write("\n".join(lines) + "\n")


def names(path, pattern):
    with open(path, encoding="utf-8") as f:
        return {re.sub(r"[-_.]+", "-", m[1]).lower() for m in re.finditer(pattern, f.read(), re.M)}


def check():
    missing = names(SOURCE, r"^([A-Za-z0-9._-]+)") - names(LOCK, r"^([A-Za-z0-9._-]+)==")
    if missing:
        sys.exit(f"requirements.txt lacks {', '.join(sorted(missing))}; run .ci/lock_requirements.py")


if __name__ == "__main__":
    check() if sys.argv[1:] == ["--check"] else lock()
