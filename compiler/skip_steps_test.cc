// SPDX-License-Identifier: Apache-2.0
//
// What skip_steps refuses.
#include <gtest/gtest.h>

#include <algorithm>
#include <stdexcept>
#include <string>

#include "compiler/passes.h"
#include "ir/text/parse.h"
#include "tests/golden/golden.h"

namespace kiln::compiler {
namespace {

// Each change alone keeps every group in every iteration.
TEST(SkipSteps, StepsAreSkippedOnlyWhereTheyLeaveNothing) {
  const auto path = golden::Inputs("skip_steps").front();
  const auto skips = [&](std::string_view old, std::string_view with, bool fast = true) {
    std::string text = golden::ReadFile(path);
    const size_t at = old.empty() ? 0 : text.find(old);
    EXPECT_NE(at, std::string::npos) << old;
    if (at != std::string::npos) text.replace(at, old.size(), with);
    ir::Diagnostics diagnostics;
    auto parsed = ir::Parse(text, diagnostics);
    if (!parsed) throw std::invalid_argument(diagnostics.all()[0].message);
    ir::Module module = *std::move(parsed);
    Context context{*target::Find("cuda:sm_90a"), {}};
    context.options.set_fast_math(fast);
    for (const Pass& pass : Passes()) {
      if (!pass.run(module, context, diagnostics)) ADD_FAILURE() << pass.name;
      if (pass.name == "skip_steps") break;
    }
    return std::ranges::any_of(module.kernels[0].decisions, [](const auto& decision) { return decision.pass == "skip_steps"; });
  };
  EXPECT_TRUE(skips("", ""));
  EXPECT_FALSE(skips("", "", /*fast=*/false));                                                // operands that are not finite
  EXPECT_FALSE(skips("%row_max[0; 256] = -1.2676506e+30", "%row_max[0; 256] = -inf"));        // -inf - -inf
  EXPECT_FALSE(skips(", 0.0, -inf)", ", 0.0, -4.0)"));                                        // a masked element has a weight
  EXPECT_FALSE(skips(" * %rescale[%i_3] + %row_sum", " * %rescale[%i_3] + 1.0 + %row_sum"));  // an iteration counts
  EXPECT_FALSE(skips("%bx * 256 + %i + %kv_len", "%bx * 256 + %kv_len"));                     // all rows see the same keys
}

}  // namespace
}  // namespace kiln::compiler
