# SPDX-License-Identifier: Apache-2.0
"""Each rule of layering.py finds what it forbids and lets pass what it allows; then the tree itself."""

import os
import sys
import tempfile
import unittest

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
import layering  # noqa: E402

HEAD = "// SPDX-License-Identifier: Apache-2.0\n"
ROOT = os.path.normpath(os.path.join(os.path.dirname(os.path.abspath(__file__)), "..", ".."))


def problems(files):
    """What layering says of a tree with these files (path → text after the licence line)."""
    with tempfile.TemporaryDirectory() as root:
        for path, text in files.items():
            os.makedirs(os.path.join(root, os.path.dirname(path)), exist_ok=True)
            with open(os.path.join(root, path), "w", encoding="utf-8") as file:
                head = HEAD.replace("//", "#") if path.endswith(".py") else HEAD
                file.write(text if text.startswith("raw:") else head + text)
        return layering.check(root)[0]


class Layering(unittest.TestCase):
    def refused(self, path, text, says):
        found = problems({path: text})
        self.assertEqual(len(found), 1, found)
        self.assertIn(says, found[0])
        self.assertTrue(found[0].startswith(path + ":"), found[0])

    def allowed(self, path, text):
        self.assertEqual(problems({path: text}), [])

    def test_lower_does_not_see_higher(self):
        self.refused("ir/a.cc", '#include "compiler/key.h"\n', "ir/ may not see compiler/")
        self.refused("cache/a.cc", '#include "ir/module.h"\n', "cache/ may not see ir/")
        self.refused("compiler/llvm/a.cc", '#include "server/pool/worker.h"\n', "compiler/ may not see server/")
        self.refused("clients/runtime/a.cc", '#include "clients/cpp/client.h"\n', "may not see clients/cpp/")
        self.refused("server/flow/a.cc", '#include "clients/cpp/client.h"\n', "may not see")
        self.allowed("server/flow/a.cc", '#include "compiler/compile.h"\n#include "clients/runtime/launch.h"\n')
        self.refused("ir/a.cc", '#include "tests/golden/golden.h"\n', "may not see tests/")
        self.allowed("ir/a_test.cc", '#include "tests/golden/golden.h"\n')
        self.allowed("clients/cli/a.cc", '#include "clients/cpp/client.h"\n')
        self.allowed("compiler/passes.cc", '#include "compiler/llvm/lower/lower.h"\n#include "ir/module.h"\n')

    def test_the_library_does_not_see_the_examples(self):
        folder = "clients/python/kiln/"
        for path, text in (("library/a.py", "from kiln.examples import rows\n"), ("library/a.py", "from kiln import examples\n"),
                           ("library/a.py", "from ..examples.rows import softmax\n"), ("library/programs/a.py", "from ...examples import rows\n"),
                           ("library/a.py", "def f():\n    import kiln.examples.rows\n"), ("a.py", "from .examples import rows\n"),
                           ("a.py", "from . import examples\n")):
            self.refused(folder + path, text, "kiln.library.programs")
        self.allowed(folder + "examples/a.py", "from kiln.examples import rows\nfrom kiln.library.programs import gemm\nfrom .rows import softmax\n")
        self.allowed(folder + "library/a.py", "from .programs.rows import RUN\nfrom . import sizes\nimport kiln.examples_of_others\n")
        self.allowed("clients/python/tests/a.py", "from kiln.examples import rows\n")

    def test_rooms_of_the_server_have_an_order(self):
        self.refused("server/reply/a.cc", '#include "server/flow/compile_flow.h"\n', "server/reply/ may not see server/flow/")
        self.refused("server/access/a.cc", '#include "server/queue/admission.h"\n', "server/access/ may not see server/queue/")
        self.allowed("server/flow/a.cc", '#include "server/queue/admission.h"\n')
        self.refused("server/service/a.cc", '#include "server/execute/run_tensors.h"\n', "kiln-worker's")
        self.refused("server/worker/a.cc", "#include <grpcpp/grpcpp.h>\n", "no network")
        self.refused("clients/common/a.cc", '#include "server/system/wakeup.h"\n', "may not see server/system/")
        self.refused("cache/a.cc", '#include "cache/sqlite/sqlite_tier.h"\n', "cache/ may not see cache/sqlite/")
        self.refused("cache/sqlite/a.cc", '#include "cache/redis/node.h"\n', "cache/sqlite/ may not see cache/redis/")
        self.refused("server/flow/a.cc", "#include <hiredis/hiredis.h>\n", "cache/redis only")
        self.refused("cache/redis/a.cc", "#include <curl/curl.h>\n", "cache/object only")
        self.refused("cache/object/a.cc", '#include "cache/redis/node.h"\n', "cache/object/ may not see cache/redis/")
        self.allowed("cache/object/a.cc", '#include "cache/outside/breaker.h"\n')
        self.allowed("cache/sqlite/a_test.cc", '#include "cache/testing/store.h"\n')

    def test_rooms_of_the_compiler_have_an_order(self):
        self.refused("compiler/analysis/a.cc", '#include "compiler/loops/rings.h"\n', "compiler/analysis/ may not see compiler/loops/")
        self.refused("compiler/mapping/a.cc", '#include "compiler/grid/persist.h"\n', "compiler/mapping/ may not see compiler/grid/")
        self.allowed("compiler/grid/a.cc", '#include "compiler/loops/rings.h"\n#include "compiler/options.h"\n')

    def test_a_room_has_a_sentence_and_few_files(self):
        found = problems({f"server/flow/a{n}.cc": "int x;\n" for n in range(31)})
        self.assertEqual(len(found), 1, found)
        self.assertIn("31 files", found[0])
        self.assertEqual(problems({f"server/flow/a{n}.cc": "int x;\n" for n in range(30)}), [])
        self.refused("server/a.cc", "int x;\n", "has no rank")
        found = problems({"server/flow/CMakeLists.txt": "raw:# SPDX-License-Identifier: Apache-2.0\nkiln_library(a)\n"})
        self.assertIn("one sentence", found[0])
        self.assertEqual(problems({"server/flow/CMakeLists.txt": "raw:# SPDX-License-Identifier: Apache-2.0\n# The way of a request.\n"}), [])

    def test_libraries_stay_in_their_folders(self):
        self.refused("compiler/loops/a.cc", '#include "llvm/IR/Module.h"\n', "LLVM")
        self.refused("server/flow/a.cc", "#include <lld/Common/Driver.h>\n", "LLVM")
        self.allowed("compiler/llvm/a.cc", '#include "llvm/IR/Module.h"\n')
        self.allowed("compiler/emulator/a.cc", '#include "llvm/IR/Module.h"\n')
        self.refused("ir/text/print.cc", '#include "kiln/v1/ir.pb.h"\n', "ir/codec")
        self.refused("cache/entry.cc", '#include "kiln/rpc/status.pb.h"\n', "cache sees bytes")
        self.refused("cache/entry.cc", "#include <google/protobuf/message.h>\n", "cache sees bytes")
        self.allowed("ir/codec/decode.cc", '#include "kiln/v1/ir.pb.h"\n')
        self.refused("compiler/a.cc", "#include <grpcpp/grpcpp.h>\n", "gRPC")
        self.refused("clients/runtime/a.cc", '#include "kiln/v1/service.grpc.pb.h"\n', "gRPC")
        self.allowed("server/flow/a.cc", '#include <grpcpp/grpcpp.h>\n#include "kiln/v1/service.grpc.pb.h"\n')
        self.refused("clients/runtime/a.cc", "#include <cuda.h>\n", "toolkit")

    def test_the_emulator_can_disagree_with_the_compiler(self):
        self.refused("compiler/emulator/runtime/matrix/wgmma.cc", '#include "compiler/target/instructions.h"\n', "vendors' documents")
        self.refused("compiler/emulator/runtime/place.cc", '#include "compiler/loops/layout.h"\n', "vendors' documents")
        self.allowed("compiler/emulator/runtime/matrix/matrix_test.cc", '#include "compiler/target/instructions.h"\n')
        self.allowed("compiler/emulator/runtime/matrix/wgmma.cc", '#include "compiler/emulator/abi.h"\n#include "ir/type.h"\n')

    def test_one_file_includes_sqlite(self):
        self.allowed("cache/sqlite/sqlite.cc", "#include <sqlite3.h>\n")
        found = problems({"cache/a.cc": "#include <sqlite3.h>\n", "cache/b.cc": "#include <sqlite3.h>\n"})
        self.assertEqual(len(found), 2, found)

    def test_the_outside_world_is_injected(self):
        self.refused("compiler/a.cc", 'auto* v = getenv("X");\n', "environment")
        self.refused("server/pool/worker.cc", 'auto* v = std::getenv("X");\n', "environment")
        self.refused("cache/a.cc", "auto t = std::chrono::system_clock::now();\n", "clocks")
        self.assertEqual(len(problems({"cache/a.cc": "auto t = std::chrono::steady_clock::now();\n"})), 2)
        self.refused("ir/a.cc", "clock_gettime(CLOCK_MONOTONIC, &t);\n", "clocks")
        self.allowed("server/config/config.cc", 'auto* v = std::getenv("X");\n')
        self.allowed("server/flow/flow.cc", "auto t = std::chrono::system_clock::now();\n")
        self.refused("server/flow/flow.cc", "auto t = std::chrono::steady_clock::now();\n", "the server measures time")
        self.refused("server/flow/flow.h", "#pragma once\nconst Time began_ = Clock::now();\n", "the server measures time")
        self.allowed("server/system/system_clock.h", "#pragma once\nauto t = std::chrono::steady_clock::now();\n")
        self.allowed("server/flow/flow_test.cc", "auto t = std::chrono::steady_clock::now();\n")
        self.allowed("server/flow/flow.cc", "auto t = clock_.SteadyNow();\n")
        self.allowed("cache/a_test.cc", "auto t = std::chrono::steady_clock::now();\n")
        self.allowed("cache/a.cc", "// steady_clock::now() is not called here\nusing T = std::chrono::steady_clock::time_point;\n")

    def test_tests_do_not_wait_for_time(self):
        sleep = "std::this_thread::sleep_for(milliseconds(50));"
        says = "moves its clock or waits for an event"
        for path in ("server/flow/a_test.cc", "server/tests/a.cc", "cache/redis/tests/a_test.cc", "cache/redis/tests/servers.h",
                     "server/testing/a.h"):
            self.refused(path, f"#pragma once\nvoid F() {{\n  {sleep}\n}}\n", says)
        self.refused("cache/a_test.cc", f"void F() {{\n  {sleep}  // the other one has looked\n}}\n", says)
        self.refused("cache/a_test.cc", f"void F() {{\n  {sleep}  // paces\n}}\n", says)
        self.refused("cache/a_test.cc", "void F() {\n  std::this_thread::sleep_until(deadline);\n}\n", says)
        self.refused("cache/a_test.cc", "void F() {\n  usleep(1);\n}\n", says)
        self.refused("cache/a_test.cc", f"void F() {{\n  {sleep}  // between looks\n}}\n", "in no loop")
        loop = "  while (!done) {\n    Look();\n  }\n"
        self.refused("cache/a_test.cc", f"void F() {{\n{loop}  {sleep}  // between looks\n}}\n", "in no loop")
        self.refused("cache/a_test.cc", f"void F() {{\n  for (;;) {{\n  }}\n}}\nvoid G() {{\n  {sleep}  // between looks\n}}\n", "in no loop")
        self.allowed("cache/a_test.cc", f"void F() {{\n  while (!done) {sleep}  // between looks\n}}\n")
        self.allowed("cache/a_test.cc", f"void F() {{\n  for (;;) {{\n    if (done) return;\n\n    {sleep}  // between looks\n  }}\n}}\n")
        self.allowed("cache/a_test.cc", f"void F() {{\n  EXPECT_TRUE(Eventually([&] {{\n    {sleep}  // between looks\n  }}));\n}}\n")
        self.allowed("cache/a_test.cc", f"void F() {{\n  {sleep}  // late, as a disk is\n}}\n")
        self.allowed("cache/a_test.cc", f"void F() {{\n  {sleep}  // paces the puts\n}}\n")
        self.allowed("cache/a_test.cc", f"void F() {{\n  // {sleep}\n}}\n")
        self.allowed("server/flow/a.cc", f"void F() {{\n  {sleep}\n}}\n")
        self.allowed("tests/bench/a.cc", f"void F() {{\n  {sleep}\n}}\n")

    def test_form(self):
        self.refused("ir/a.cc", "raw: int x;\n", "SPDX")
        self.refused("ir/a.h", "int x;\n", "#pragma once")
        self.refused("ir/a.cc", "// TO" "DO later\n", "finish it")
        self.refused("ir/a.cc", "int x;\n" * 550, "551 lines")
        self.refused("ir/a.cc", '#include "../cache/tier.h"\n', "is relative")
        self.refused("tests/a.py", "# " + 149 * "x" + "\n", "151 columns")
        self.refused("ir/a.cc", "  // " + 146 * "x" + "\n", "151 columns")
        self.allowed("tests/a.py", "# " + 148 * "x" + "\n")
        self.allowed("ir/a.cc", "int x;\n" * 549)

    def test_headers_do_not_include_each_other_in_circles(self):
        once = "#pragma once\n"
        found = problems({"ir/a.h": once + '#include "ir/b.h"\n', "ir/b.h": once + '#include "ir/a.h"\n'})
        self.assertEqual(len(found), 1, found)
        self.assertIn("ir/a.h → ir/b.h → ir/a.h", found[0])

    def test_the_tree_follows_the_rules(self):
        found, read = layering.check(ROOT)
        self.assertGreater(read, 20)
        self.assertEqual(found, [], "\n" + "\n".join(found))


if __name__ == "__main__":
    unittest.main()
