#!/usr/bin/env python3
"""Adds up what test runs said: count_tests.py LOG... prints `passed failed skipped`.

Reads `ctest -V` (Catch2 2 or 3 inside, counted by test case; anything else counts as one test) and Python's unittest.
A test that crashed, timed out or did not start counts as failed even though it printed no summary. Not a judge: ./dev
test fails on exit statuses, this only counts.
"""
import re
import sys

RESULT = re.compile(r"^\s*\d+/\d+ Test\s+#(\d+): \S+ [ .]*(\**)(Passed|Failed|Timeout|Exception|Skipped|Not Run)")
OUTPUT = re.compile(r"^(\d+): ?(.*)$")
CATCH_ALL = re.compile(r"^All tests passed \([\d,]+ assertions? in (\d+) test cases?\)")
CATCH_CASES = re.compile(r"^test cases:\s*(\d+)(.*)")
UNITTEST = re.compile(r"^Ran (\d+) tests? in ")
UNITTEST_END = re.compile(r"^(OK|FAILED)(?: \((.*)\))?\s*$")


def fields(text):
    """{'failed': 2} of '| 3 passed | 2 failed' and {'failures': 1} of 'failures=1, skipped=2'."""
    found = {name: int(n) for n, name in re.findall(r"(\d+) ([a-z]+)", text)}
    found.update({name: int(n) for name, n in re.findall(r"([a-z ]+)=(\d+)", text)})
    return {name.strip(): n for name, n in found.items()}


def of_program(lines, status):
    """(passed, failed, skipped) of one program's output."""
    cases = failed = skipped = 0
    counted = False
    ran = None
    for line in lines:
        if m := CATCH_ALL.match(line):
            counted, cases = True, cases + int(m[1])
        elif m := CATCH_CASES.match(line):
            more = fields(m[2])
            counted, cases = True, cases + int(m[1])
            failed += more.get("failed", 0)
            skipped += more.get("skipped", 0)
        elif re.match(r"^\s*skipped: ", line):  # OAR_SKIP under Catch2 2
            skipped += 1
        elif m := UNITTEST.match(line):
            ran = int(m[1])
        elif ran is not None and (m := UNITTEST_END.match(line)):
            more = fields(m[2] or "")
            counted, cases = True, cases + ran
            failed += more.get("failures", 0) + more.get("errors", 0)
            skipped += more.get("skipped", 0)
            ran = None
    if status == "Skipped":
        return 0, 0, 1
    if not counted:
        return (1, 0, 0) if status == "Passed" else (0, 1, 0)
    if status != "Passed":
        failed = max(failed, 1)
    return max(0, cases - failed - skipped), failed, skipped


def main():
    total = [0, 0, 0]
    for path in sys.argv[1:]:
        outputs, results, plain = {}, {}, []
        with open(path, errors="replace") as log:
            for line in log:
                line = line.rstrip("\n")
                if m := RESULT.match(line):
                    results[m[1]] = m[3]
                elif m := OUTPUT.match(line):
                    outputs.setdefault(m[1], []).append(m[2])
                else:
                    plain.append(line)
        if results:
            counts = [of_program(outputs.get(number, []), status) for number, status in results.items()]
        else:  # the log of one unittest run, or of Catch2 programs one after the other
            ended = any(UNITTEST_END.match(line) or CATCH_ALL.match(line) or CATCH_CASES.match(line) for line in plain)
            counts = [of_program(plain, "Passed" if ended else "Failed")]
        for count in counts:
            total = [a + b for a, b in zip(total, count)]
    print(*total)


if __name__ == "__main__":
    main()
