// SPDX-License-Identifier: Apache-2.0
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>

#include "ir/decisions.h"
#include "ir/grammar/random_module.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/text/print_expr.h"
#include "ir/verify/verify.h"
#include "ir/visit.h"
#include "tests/golden/golden.h"

namespace kiln::ir {
namespace {

std::string Complaints(const Diagnostics& diagnostics) {
  std::string text;
  for (const Diagnostic& d : diagnostics.all()) {
    text += std::to_string(d.loc.line) + ": " + (d.kind == FaultKind::kUnsupported ? "unsupported: " : "") + d.message + "\n";
    if (!d.hint.empty()) text += "  try: " + d.hint + "\n";
    if (!d.statement.empty()) text += "  in: " + d.statement + "\n";
  }
  return text;
}

// Golden: a text is printed as its .expected file, and what is wrong with it follows.
void CompareGolden(const std::string& folder, bool verify) {
  for (const auto& path : golden::Inputs(folder)) {
    Diagnostics diagnostics;
    auto module = Parse(golden::ReadFile(path), diagnostics);
    std::string result;
    if (module && !verify) result = Print(*module);
    if (module && Verify(*module, diagnostics)) result += "verified\n";
    golden::Expect(path, result + Complaints(diagnostics));
  }
}
TEST(Golden, Text) { CompareGolden("text", false); }
TEST(Golden, ParseErrors) { CompareGolden("parse", true); }
TEST(Golden, Verify) { CompareGolden("verify", true); }

TEST(Text, PrintedTextReadsBackAsItself) {
  for (uint32_t seed = 0; seed < 400; ++seed) {
    Module module = RandomModule(seed).Make(seed % 2 == 0);
    std::string text = Print(module);
    Diagnostics diagnostics;
    auto read = Parse(text, diagnostics);
    ASSERT_TRUE(read) << Complaints(diagnostics) << text;
    ASSERT_EQ(Print(*read), text);
  }
}

TEST(Text, TheLowestNumberReadsBack) {
  const std::string lowest = "-9223372036854775808";
  const auto with = [](const std::string& extent) {
    return "kiln 1\nfunc @f(%A: global f32[4]) {\n  kernel @main grid(1) threads 32 blocks(%bx) {\n    fill %A[0; " + extent + "] = 0.0\n  }\n}\n";
  };
  Diagnostics diagnostics;
  auto module = Parse(with(lowest), diagnostics);
  ASSERT_TRUE(module) << Complaints(diagnostics);
  EXPECT_THAT(Print(*module), testing::HasSubstr("fill %A[0; " + lowest + "] = 0.0"));
  EXPECT_FALSE(Parse(with("9223372036854775808"), diagnostics));
  EXPECT_FALSE(Parse(with("-9223372036854775809"), diagnostics));
}

// The loop that they become (compiler/mapping/expand.cc) writes one tile.
TEST(Ops, OfTheFamilyElementwiseWriteOneTile) {
  ForEachOpType([]<typename T>(std::type_identity<T>) {
    if constexpr (Elementwise<T>) {
      T op{};
      int written = 0;
      ForEachRegion(op, [&](const Region&, Use use) { written += use != Use::kRead; });
      EXPECT_EQ(written, 1) << OpRow<T>::kName;
    }
  });
}

TEST(Text, RandomModulesVerify) {
  for (uint32_t seed = 0; seed < 200; ++seed) {
    Module module = RandomModule(seed).Make(seed % 2 == 0);
    Diagnostics diagnostics;
    ASSERT_TRUE(Verify(module, diagnostics)) << Complaints(diagnostics) << Print(module);
  }
}

TEST(Text, DecisionsAreRefusedWhereTheyMayNotCome) {
  size_t refused = 0;
  for (uint32_t seed = 0; seed < 50; ++seed) {
    Diagnostics diagnostics;
    EXPECT_TRUE(RefuseDecisions(RandomModule(seed).Make(false), diagnostics));
    refused += !RefuseDecisions(RandomModule(seed).Make(true), diagnostics);
  }
  EXPECT_GT(refused, 25u);
}

TEST(Text, FloatsComeBackToTheBit) {
  std::mt19937_64 random(5);
  for (int i = 0; i < 20000; ++i) {
    ExprPool pool;
    DType type = std::vector{DType::kF16, DType::kBF16, DType::kF32, DType::kF64, DType::kF8E5M2}[size_t(i) % 5];
    double value = pool[pool.Float(std::bit_cast<double>(random()), type)].FloatValue();
    std::string text = FloatText(type, value);
    double read = text == "inf" ? INFINITY : text == "-inf" ? -INFINITY : text == "nan" ? NAN : std::strtod(text.c_str(), nullptr);
    EXPECT_EQ(pool.Float(read, type), pool.Float(value, type)) << text;
  }
}

TEST(Text, EveryPrefixIsRefusedWithAPlace) {
  std::string text = Print(RandomModule(3).Make(true));
  for (size_t length = 0; length + 3 < text.size(); ++length) {
    Diagnostics diagnostics;
    ASSERT_FALSE(Parse(std::string_view(text).substr(0, length), diagnostics)) << length;
    ASSERT_LE(diagnostics.errors(), 2u);  // half a name, and the end
    ASSERT_GT(diagnostics.all()[0].loc.line, 0u);
    ASSERT_THAT(diagnostics.all()[0].message, testing::StartsWith("column "));
  }
}

std::string Error(std::string_view body) {
  Diagnostics diagnostics;
  std::string text = "kiln 1\nfunc @f(%A: global f32[8]) {\nkernel @k grid(1) threads 32 blocks(%b) {\n" + std::string(body) + "\n}\n}\n";
  auto module = Parse(text, diagnostics);
  return module ? "" : diagnostics.all()[0].message;
}

TEST(Text, DeepAndLongInputIsRefused) {
  std::string deep(100000, '(');
  EXPECT_THAT(Error("assume " + deep), testing::HasSubstr("nested deeper"));
  EXPECT_THAT(Error("assume " + std::string(100000, '!') + "true"), testing::HasSubstr("nested deeper"));
  std::string chain = "let %x = %b";
  for (int i = 0; i < 1000; ++i) chain += " + %b";
  EXPECT_THAT(Error(chain), testing::HasSubstr("deep"));
  std::string blocks;
  for (int i = 0; i < 1000; ++i) blocks += "while true {\n";
  EXPECT_THAT(Error(blocks), testing::HasSubstr("nested deeper"));
  Diagnostics diagnostics;
  EXPECT_FALSE(Parse(std::string(5 << 20, ' '), diagnostics));
}

}  // namespace
}  // namespace kiln::ir
