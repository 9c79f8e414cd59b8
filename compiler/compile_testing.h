// SPDX-License-Identifier: Apache-2.0
//
// What tests of whole compiles share.
#pragma once

#include <fmt/format.h>
#include <gtest/gtest.h>

#include <ranges>
#include <string>
#include <string_view>

#include "compiler/compile.h"

namespace kiln::compiler {

inline v1::WorkerResult CompileText(const std::string& text, std::string_view target) {
  v1::CompileRequest request;
  request.set_module(text);
  request.set_target(std::string(target));
  return Compile(request, {});
}

inline std::string FirstError(const v1::WorkerResult& result) {
  EXPECT_FALSE(result.has_artifact());
  return result.diagnostics().empty() ? "" : result.diagnostics(0).message() + " | " + result.diagnostics(0).hint();
}

// c = a · b for one tile of m × n × k, in f16.
inline std::string GemmText(int m, int n, int k, int threads) {
  return fmt::format(R"(kiln 1
func @f(%A: global f16[{0}, {2}], %B: global f16[{2}, {1}], %C: global f16[{0}, {1}]) {{
  kernel @k grid(1) threads {3} blocks(%b) {{
    %a = alloc shared f16[{0}, {2}]
    %w = alloc shared f16[{2}, {1}]
    %c = alloc fragment f32[{0}, {1}]
    copy %A[0, 0; {0}, {2}] -> %a[0, 0; {0}, {2}]
    copy %B[0, 0; {2}, {1}] -> %w[0, 0; {2}, {1}]
    gemm %a[0, 0; {0}, {2}], %w[0, 0; {2}, {1}] -> %c[0, 0; {0}, {1}] clear
    copy %c[0, 0; {0}, {1}] -> %C[0, 0; {0}, {1}]
  }}
}}
)",
                     m, n, k, threads);
}

// How often the artifact's code has the text.
inline size_t Count(const v1::WorkerResult& result, std::string_view instruction) {
  EXPECT_TRUE(result.has_artifact()) << FirstError(result);
  return size_t(std::ranges::distance(result.artifact().code() | std::views::split(instruction)) - 1);
}

}  // namespace kiln::compiler
