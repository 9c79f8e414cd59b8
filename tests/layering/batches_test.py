# SPDX-License-Identifier: Apache-2.0
"""batches.py keeps apart what cannot be compiled together, and nothing else."""

import os
import sys
import unittest

sys.path.insert(0, os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", "..")))
import batches  # noqa: E402

TABLE = '#define KILN_OP(name, family) \\\n  name,\n#include "ir/ops.def"\n'
STATE = ("struct State {\n", "class State final : public Base {\n", "enum class State { kOne };\n", "using State = int;\n",
         "template <typename T>\nstruct State {\n", "constexpr int64_t State = 4;\n", "const std::array<int, 2> State{1, 2};\n",
         "std::optional<int> State(const Module& module) {\n", "template <class T> using State = std::vector<T>;\n",
         "[[nodiscard]] bool State() {\n", "int State[3] = {};\n")


def hidden(text):
    return "namespace kiln::ir {\nnamespace {\n" + text + "}  // namespace\n}  // namespace kiln::ir\n"


class Batches(unittest.TestCase):
    def apart(self, one, other, **headers):
        texts = {"a.cc": one, "b.cc": other} | {name + ".h": text for name, text in headers.items()}
        return len(batches.batches(["a.cc", "b.cc"], texts.get)) == 2

    def test_a_name_that_two_files_have_for_themselves_keeps_them_apart(self):
        for text in map(hidden, STATE):
            with self.subTest(text):
                self.assertTrue(self.apart(text, text))
                self.assertFalse(self.apart(text, text.replace("State", "Other")))
        for text in ("#define State 1\n", "static int State = 1;\n", "TEST(State, Test) {\n", "constexpr int State = 1;\n"):
            with self.subTest(text):
                self.assertTrue(self.apart(text, text))

    def test_a_header_may_not_have_the_name_either(self):
        uses = '#include "s.h"\n'
        for text in STATE:
            with self.subTest(text):
                for before, after in ((hidden(text), uses), (uses, hidden(text))):
                    self.assertTrue(self.apart(before, after, s="namespace kiln::ir {\n" + text + "}  // namespace kiln::ir\n"))
                    self.assertTrue(self.apart(before, after, s='#include "t.h"\n', t="namespace kiln {\n" + text + "}  // namespace kiln\n"))
                    self.assertFalse(self.apart(before, after, s="namespace kiln::cache {\n" + text + "}  // namespace kiln::cache\n"))

    def test_a_using_declaration_may_be_repeated(self):
        brings = hidden("using cache::State;\n")
        self.assertFalse(self.apart(brings, brings))
        self.assertTrue(self.apart(brings, hidden("using testing::State;\n")))
        self.assertTrue(self.apart(brings, '#include "s.h"\n', s="namespace kiln::ir {\nstruct State {\n}  // namespace kiln::ir\n"))

    def test_comments_and_strings_declare_nothing(self):
        state = hidden("struct State {\n")
        self.assertFalse(self.apart(state, hidden("// struct State {\n")))
        self.assertFalse(self.apart(state, hidden('auto kText = R"(\nstruct State {\n)";\nauto kMore =\n    "State(";\n')))

    def test_what_stands_in_a_class_or_a_function_is_no_name_of_the_file(self):
        self.assertFalse(self.apart(hidden("void One::Run() {\n  int n = 0;\n}\n"), hidden("void Two::Run() {\n  int n = 0;\n}\n")))
        self.assertFalse(self.apart("TEST(Suite, One) {\n", "TEST(Suite, Two) {\n"))
        self.assertFalse(self.apart("INSTANTIATE_TEST_SUITE_P(All, One);\n", "INSTANTIATE_TEST_SUITE_P(All, Two);\n"))
        # Declared in a header, or an overload of what is: the linker sees to it.
        self.assertFalse(self.apart("namespace kiln {\nvoid Write(int a) {\n", "namespace kiln {\nvoid Write(bool a) {\n"))

    def test_a_macro_before_a_header_makes_a_file_stand_alone(self):
        self.assertTrue(self.apart("#define _GNU_SOURCE\n#include <sched.h>\n", "int a = 0;\n"))
        self.assertFalse(self.apart(TABLE + "#include <vector>\nint b = 0;\n", TABLE + "int a = 0;\n"))

    def test_a_batch_is_a_few_files_in_the_order_of_the_list(self):
        names = [f"{number}.cc" for number in range(batches.MOST_FILES + 2)]
        self.assertEqual(batches.batches(names, dict.fromkeys(names, "").get), [names[:batches.MOST_FILES], names[batches.MOST_FILES:]])
        long = "\n" * (batches.MOST_LINES // 2 + 1)
        self.assertEqual(batches.batches(["a", "b", "c"], {"a": long, "b": long, "c": ""}.get), [["a", "c"], ["b"]])


if __name__ == "__main__":
    unittest.main()
