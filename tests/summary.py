# SPDX-License-Identifier: Apache-2.0
"""Counts test cases for tests/run: summary.py JUNIT REPORTS

JUNIT is what `ctest --output-junit` wrote; REPORTS has a NAME.xml for each test that reports its cases (GoogleTest, pytest).
Prints "PASSED FAILED SKIPPED", then one line a failed case ("failed NAME") and one a skipped case ("skipped NAME: WHY").
A test without a report counts as one case; one that failed although all its cases passed counts as one failed case more.
"""

import os
import sys
import xml.etree.ElementTree as xml


class Count:
    def __init__(self):
        self.passed, self.failed, self.skipped = 0, [], []

    def add(self, name, failed, skipped_why):
        if failed:
            self.failed.append(name)
        elif skipped_why is not None:
            self.skipped.append(f"{name}: {first_line(skipped_why)}")
        else:
            self.passed += 1

    def show(self):
        print(self.passed, len(self.failed), len(self.skipped))
        for name in self.failed:
            print("failed", name)
        for name in self.skipped:
            print("skipped", name)


def first_line(text):
    lines = [line for line in (text or "").splitlines() if line.strip()]
    # GoogleTest puts file:line on the first line and the message below.
    return lines[-1].strip() if lines else "no reason given"


def cases(path):
    for case in xml.parse(path).getroot().iter("testcase"):
        if case.get("status") == "notrun":
            continue
        failed = case.find("failure") is not None or case.find("error") is not None
        skipped = case.find("skipped")
        why = skipped.get("message", "") if skipped is not None else None
        yield f"{case.get('classname')}.{case.get('name')}", failed, why


def read_report(path):
    """The cases of a report; none where a test that died left half of one."""
    try:
        return list(cases(path))
    except (OSError, xml.ParseError):
        return []


def count(junit, folder):
    total = Count()
    for test in xml.parse(junit).getroot().iter("testcase"):
        name, skipped = test.get("name"), test.find("skipped")
        test_failed = test.find("failure") is not None or test.get("status") == "fail"
        reported = read_report(os.path.join(folder, name + ".xml"))
        for case, failed, why in reported:
            total.add(f"{name} {case}", failed, why)
        if not reported:
            total.add(name, test_failed, skipped.get("message", "") if skipped is not None else None)
        elif test_failed and not any(failed for _, failed, _ in reported):
            total.add(f"{name} (failed outside its cases)", True, None)
    return total


if __name__ == "__main__":
    count(*sys.argv[1:]).show()
