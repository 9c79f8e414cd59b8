# SPDX-License-Identifier: Apache-2.0
"""locks.py finds what it is there for: a lock that is taken out of the code, one that is not given back, and what has no annotations."""

import os
import re
import shutil
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import locks  # noqa: E402

ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))
BUILD = os.environ.get("KILN_BUILD", os.path.join(ROOT, "build", "release"))


def find(name):
    """A file of the tree by its name alone: folders change."""
    return next(path for path in locks.tracked(ROOT) if os.path.basename(path) == name)


class Form(unittest.TestCase):
    def problems(self, text, path="server/a.h"):
        return list(locks.form_problems(path, text))

    def test_a_mutex_guards_something(self):
        guarded = "class A {\n  cache::Mutex mutex_;\n  int a_%s = 0;\n};\n"
        self.assertEqual(self.problems(guarded % " KILN_GUARDED_BY(mutex_)"), [])
        self.assertIn("guards nothing", self.problems(guarded % "")[0])
        self.assertIn("guards nothing", self.problems(guarded % ";  // KILN_GUARDED_BY(mutex_)")[0])

    def test_the_standard_ones_have_no_annotations(self):
        self.assertIn("use those of", self.problems("  std::lock_guard lock(mutex_);\n")[0])
        self.assertIn("use those of", self.problems("  std::condition_variable changed_;\n")[0])
        self.assertIn("may leave a function out", self.problems("  void A() KILN_NO_THREAD_SAFETY_ANALYSIS;\n")[0])
        self.assertEqual(self.problems("// std::mutex is not used\n"), [])
        self.assertEqual(self.problems("  std::mutex mutex_;\n", locks.MUTEX_HEADER), [])

    def test_what_defines_a_holders_members_is_checked(self):
        code = {
            "cache/a.h": "class A {\n  Mutex mutex_;\n};\n",
            "cache/a.cc": '#include "cache/a.h"\nvoid A::Work() {}\n',
            "cache/more.cc": '#include "cache/b.h"\nint A::More() { return 0; }\n',
            "cache/b.h": '#include "cache/a.h"\n',
            "cache/user.cc": '#include "cache/a.h"\nvoid Use(A& a) { a.Work(); }\n',
            "cache/inline.h": "struct Inline {\n  Mutex mutex;\n};\n",
            "cache/uses_inline.cc": '#include "cache/inline.h"\n',
            "cache/uses_inline_too.cc": '#include "cache/inline.h"\n',
        }
        self.assertEqual(locks.files_to_check(code), ["cache/a.cc", "cache/more.cc", "cache/uses_inline.cc"])

    def test_the_tree_has_what_is_checked(self):
        code = locks.tracked(ROOT)
        self.assertGreater(len(locks.files_to_check(code)), 30)
        self.assertEqual([p for path, text in code.items() for p in locks.form_problems(path, text)], [])


@unittest.skipUnless(shutil.which(locks.CLANG), f"no {locks.CLANG}")
class Analysis(unittest.TestCase):
    def errors(self, name, pattern="", replacement=""):
        """What the analysis says of a file in which the only place of the pattern is changed."""
        path = find(name)
        with open(os.path.join(ROOT, path), encoding="utf-8") as file:
            text = file.read()
        changed, count = re.subn(pattern, replacement, text) if pattern else (text, 1)
        self.assertEqual(count, 1, f"{path} has no longer one place with {pattern}")
        with tempfile.TemporaryDirectory() as folder:
            copy = os.path.join(folder, name)
            with open(copy, "w", encoding="utf-8") as file:
                file.write(changed)
            return locks.analyse(copy, locks.commands(BUILD, ROOT)[path], ROOT)

    def test_a_lock_that_is_not_taken_is_found(self):
        self.assertEqual(self.errors("reactors.cc"), "")
        self.assertIn("requires holding mutex", self.errors("reactors.cc", r"  cache::MutexLock lock\(mutex_\);\n"))

    def test_a_lock_that_is_not_given_back_is_found(self):
        self.assertEqual(self.errors("executor.cc"), "")
        self.assertIn("to be held at the end of function", self.errors("executor.cc", r"  mutex_\.Lock\(\);\n"))


if __name__ == "__main__":
    unittest.main()
