// SPDX-License-Identifier: Apache-2.0
#include "compiler/canonicalize.h"

#include <gtest/gtest.h>

#include "ir/parse.h"
#include "ir/print.h"
#include "ir/random_module.h"
#include "tests/golden/golden.h"

namespace kiln::compiler {
namespace {

TEST(Canonicalize, Golden) {
  for (const auto& path : golden::Inputs("canonicalize")) {
    ir::Diagnostics diagnostics;
    auto module = ir::Parse(golden::ReadFile(path), diagnostics);
    ASSERT_TRUE(module) << path << ": " << diagnostics.all()[0].message;
    bool valid = Canonicalize(*module, {}, diagnostics).has_value();
    std::string text = ir::Print(*module);
    if (!valid) text = diagnostics.all()[0].message + "\n  in: " + diagnostics.all()[0].statement + "\n";
    golden::Expect(path, text);
  }
}

TEST(Canonicalize, ASecondTimeChangesNothing) {
  size_t valid = 0;
  for (uint32_t seed = 0; seed < 300; ++seed) {
    ir::Module module = ir::RandomModule(seed).Make(false);
    ir::Diagnostics diagnostics;
    // Some index tiles by variables that turn out to be constants outside them, and nothing else can be wrong.
    if (!Canonicalize(module, {}, diagnostics)) {
      for (const ir::Diagnostic& d : diagnostics.all()) ASSERT_EQ(d.message.find("index "), 0u) << d.message;
      continue;
    }
    ++valid;
    std::string once = ir::Print(module);
    ASSERT_TRUE(Canonicalize(module, {}, diagnostics));
    ASSERT_EQ(ir::Print(module), once) << seed;
  }
  EXPECT_GT(valid, 100u);
}

}  // namespace
}  // namespace kiln::compiler
