// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/functions/definitions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace kiln::llvm_ir {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

ir::Function Ptx(std::string symbol, std::string text) { return {ir::Language::kPtx, std::move(symbol), std::move(text)}; }

constexpr const char* kText = R"(.version 8.0
.target sm_80
.address_size 64
// .func f(.param .u32 not_this) { }
.func helper(.param .u64 p) { ret; }
.visible .func f
(
  .param .u64 .ptr .global .align 4 p,  // an address
  .param .align 4 .b32 n, .param .f64 x
)
{
  ret;
}
)";

TEST(Definitions, ParametersAreThoseOfTheFunction) {
  const auto parameters = ParametersOf(Ptx("f", kText));
  ASSERT_TRUE(parameters) << parameters.error().message;
  ASSERT_EQ(parameters->size(), 3u);
  EXPECT_EQ((*parameters)[0].bits, 64);
  EXPECT_FALSE((*parameters)[1].is_float);
  EXPECT_EQ((*parameters)[1].bits, 32);
  EXPECT_TRUE((*parameters)[2].is_float);
  EXPECT_EQ(ParametersOf(Ptx("helper", kText))->size(), 1u);
  EXPECT_TRUE(ParametersOf(Ptx("g", ".func g() { ret; }"))->empty());
}

TEST(Definitions, WhatNoCallCanGiveIsRefusedWithItsLine) {
  EXPECT_THAT(ParametersOf(Ptx("g", kText)).error().message, HasSubstr("does not define a function 'g'"));
  EXPECT_THAT(ParametersOf(Ptx("g", ".func g(.param .u32 n);")).error().message, HasSubstr("does not define"));
  const auto gives = ParametersOf(Ptx("g", "\n.func (.param .u32 r) g(.param .u32 n) { ret; }"));
  EXPECT_THAT(gives.error().message, HasSubstr("gives something back"));
  EXPECT_EQ(gives.error().line, 2u);
  for (const char* parameter : {".reg .u32 n", ".param .b8 n[8]", ".param .u16 n", ".param .b32 n[2]"}) {
    const auto wrong = ParametersOf(Ptx("g", std::string("\n\n.func g(") + parameter + ") { ret; }"));
    ASSERT_FALSE(wrong) << parameter;
    EXPECT_THAT(wrong.error().message, HasSubstr("parameter 1 of 'g'"));
    EXPECT_EQ(wrong.error().line, 3u);
  }
  EXPECT_FALSE(ParametersOf(Ptx("g", "/* .func g() { ret; }")));
  EXPECT_FALSE(ParametersOf(Ptx("g", ".func g(")));
  EXPECT_EQ(ParametersOf(Ptx("g", ".func g() { ret; }\n.entry k() { ret; }")).error().line, 2u);
  EXPECT_FALSE(ParametersOf(Ptx("g", ".func")));
}

TEST(Definitions, TheTextStandsInThePlaceOfDeclarations) {
  const std::string ptx = R"(.version 8.4
.target sm_90a
.address_size 64

.extern .func f
(
	.param .b64 f_param_0,
	.param .b32 f_param_1,
	.param .b64 f_param_2
)
;
.extern .func helper
(
	.param .b64 helper_param_0
)
;
.visible .entry kernel_0()
{
	call.uni f, (param0, param1, param2);
	ret;
}
)";
  const ir::Function f = Ptx("f", kText), helper = Ptx("helper", kText), unused = Ptx("unused", ".func unused() { ret; }");
  const std::vector<const ir::Function*> functions{&f, &helper, &unused};
  const std::string made = WithDefinitions(ptx, functions);
  EXPECT_THAT(made, Not(HasSubstr(".extern")));
  EXPECT_THAT(made, Not(HasSubstr("unused")));
  EXPECT_THAT(made, Not(HasSubstr("sm_80")));
  EXPECT_EQ(made.find(".visible .func f"), made.rfind(".visible .func f")) << "two functions of one text bring it once";
  EXPECT_LT(made.find(".visible .func f"), made.find(".entry"));
  EXPECT_EQ(WithDefinitions(ptx, {}), ptx);
}

}  // namespace
}  // namespace kiln::llvm_ir
