#!/usr/bin/env python3
"""count_cases.py BUILD: prints "passed failed skipped" of the test run that BUILD holds.

A GoogleTest program counts by its cases, from BUILD/test_results/*.xml; any other ctest entry, and
a program that left no results, counts as one case.
"""
import re
import sys
import xml.etree.ElementTree as xml
from pathlib import Path


def main():
    build = Path(sys.argv[1])
    passed = failed = skipped = 0
    counted = set()
    for path in (build / "test_results").glob("*.xml"):
        counted.add(path.stem)
        for case in xml.parse(path).getroot().iter("testcase"):
            if case.get("status") == "notrun":
                continue
            if case.find("failure") is not None:
                failed += 1
            elif case.get("result") == "skipped":
                skipped += 1
            else:
                passed += 1
    log = build / "Testing/Temporary/LastTest.log"
    name = None
    for line in log.read_text(errors="replace").splitlines() if log.exists() else []:
        if match := re.match(r"^\d+/\d+ Test: (\S+)$", line):
            name = match.group(1)
        elif name and line.startswith("Test ") and line in (
                "Test Passed.", "Test Failed.", "Test Skipped.", "Test timed out."):
            outcome, entry, name = line, name, None
            if entry in counted and outcome == "Test Passed.":
                continue
            passed += outcome == "Test Passed."
            skipped += outcome == "Test Skipped."
            if outcome in ("Test Failed.", "Test timed out.") and entry not in counted:
                failed += 1
    print(passed, failed, skipped)


if __name__ == "__main__":
    main()
