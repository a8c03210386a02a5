"""For pytest -p: leaves out what excluded.txt names, and writes what became of the rest to the file COMPAT_REPORT, as JSON:
{"passed": n, "skipped": n, "failed": {id: last line}, "excluded": {reason: n}, "unused": [line, ...]}."""
import json
import os

EXCLUDED = [line.split("\t") for line in os.environ.get("COMPAT_EXCLUDED", "").splitlines() if line]
passed = set()  # also where only some subtests did
result = {"passed": 0, "skipped": 0, "failed": {}, "excluded": {}, "unused": []}


def pytest_collection_modifyitems(config, items):
    used, left_out = set(), []
    for item in list(items):
        for name, reason in EXCLUDED:
            if item.nodeid == name or item.nodeid.startswith((name + "[", name + "::")):
                used.add(name)
                left_out.append(item)
                items.remove(item)
                result["excluded"][reason] = result["excluded"].get(reason, 0) + 1
                break
    result["unused"] = [name for name, _ in EXCLUDED if name not in used]
    if left_out:
        config.hook.pytest_deselected(items=left_out)


def pytest_collectreport(report):
    if not report.failed:
        return
    for name, reason in EXCLUDED:  # a file that cannot be read here
        if report.nodeid == name:
            result["excluded"][reason] = result["excluded"].get(reason, 0) + 1
            return
    result["failed"][report.nodeid] = last_line(report)


def pytest_runtest_logreport(report):
    if report.failed:
        result["failed"][report.nodeid] = last_line(report)
    elif report.skipped and report.nodeid not in result["failed"]:
        result["skipped"] += 1
    elif report.when == "call" and report.passed:
        passed.add(report.nodeid)


def last_line(report):
    crash = getattr(report.longrepr, "reprcrash", None)
    lines = str(crash.message if crash else report.longrepr).strip().splitlines()
    text = next((line for line in lines if line.strip()), "") if crash else (lines or [""])[-1]
    return text[:300]


def pytest_sessionfinish():
    result["passed"] = len(passed.difference(result["failed"]))
    if os.environ.get("COMPAT_REPORT"):
        with open(os.environ["COMPAT_REPORT"], "w", encoding="utf-8") as f:
            json.dump(result, f, indent=1)
