# SPDX-License-Identifier: Apache-2.0
"""Counts test cases for tests/run.

    summary.py ctest JUNIT GTEST_FOLDER     what `ctest --output-junit` and GTEST_OUTPUT=xml:… left
    summary.py pytest JUNIT

Prints "PASSED FAILED SKIPPED", then one line a failed case ("failed NAME") and one a skipped case ("skipped NAME: WHY").
A GoogleTest executable counts as its cases; one that died before it could report counts as one failed case.
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


def gtest_cases(path):
    for case in xml.parse(path).getroot().iter("testcase"):
        if case.get("status") == "notrun":
            continue
        skipped = case.find("skipped")
        why = skipped.get("message", "") if skipped is not None else None
        yield f"{case.get('classname')}.{case.get('name')}", case.find("failure") is not None, why


def count_ctest(junit, folder):
    count = Count()
    for test in xml.parse(junit).getroot().iter("testcase"):
        name = test.get("name")
        ctest_failed = test.find("failure") is not None or test.get("status") == "fail"
        skipped = test.find("skipped")
        report = os.path.join(folder, name + ".xml")
        if os.path.exists(report):
            before = len(count.failed)
            for case, failed, why in gtest_cases(report):
                count.add(f"{name} {case}", failed, why)
            if ctest_failed and len(count.failed) == before:
                count.add(f"{name} (ended badly after its cases)", True, None)
        else:
            count.add(name, ctest_failed, skipped.get("message", "") if skipped is not None else None)
    return count


def count_pytest(junit):
    count = Count()
    for test in xml.parse(junit).getroot().iter("testcase"):
        failed = test.find("failure") is not None or test.find("error") is not None
        skipped = test.find("skipped")
        count.add(f"{test.get('classname')}.{test.get('name')}", failed,
                  skipped.get("message", "") if skipped is not None else None)
    return count


def main():
    kind, *args = sys.argv[1:]
    count = {"ctest": count_ctest, "pytest": count_pytest}[kind](*args)
    count.show()


if __name__ == "__main__":
    main()
