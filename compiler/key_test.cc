// SPDX-License-Identifier: Apache-2.0
#include "compiler/key.h"

#include <gtest/gtest.h>

#include <set>
#include <stdexcept>

#include "ir/text/parse.h"

namespace kiln::compiler {
namespace {

ir::Module Program(std::string_view text) {
  ir::Diagnostics diagnostics;
  auto module = ir::Parse(text, diagnostics);
  if (!module) throw std::invalid_argument(diagnostics.all()[0].message);
  return *std::move(module);
}

constexpr char kProgram[] = R"(kiln 1
func @f(%A: global f32[8]) {
  kernel @main grid(1) threads 32 blocks(%b) { for parallel %i in 8 { store %A[%i] = 1.0 } }
})";
constexpr char kRenamed[] = R"(kiln 1
func @other(%X: global f32[8]) {
  kernel @k grid(1) threads 32 blocks(%block) {

    for parallel %j in 8 { store %X[%j] = 1.0 }
  }
})";
constexpr char kOther[] = R"(kiln 1
func @f(%A: global f32[8]) {
  kernel @main grid(1) threads 32 blocks(%b) { for parallel %i in 8 { store %A[%i] = 1.5 } }
})";

TEST(Key, OfTheProgramAloneSaysNothingOfTheBuild) {
  const v1::CompileOptions options;
  v1::CompileOptions others;
  others.set_max_registers(64);
  const Key one = ProgramKey(Program(kProgram), "cuda:sm_80", options);
  EXPECT_EQ(one, ProgramKey(Program(kRenamed), "cuda:sm_80", options));
  EXPECT_NE(one, ProgramKey(Program(kOther), "cuda:sm_80", options));
  EXPECT_NE(one, ProgramKey(Program(kProgram), "cuda:sm_90", options));
  EXPECT_NE(one, ProgramKey(Program(kProgram), "cuda:sm_80", others));
  EXPECT_NE(one, ComputeKey(Program(kProgram), "cuda:sm_80", options));
}

TEST(Key, BuildIdIsADigest) {
  EXPECT_EQ(BuildId().size(), 64u);
  EXPECT_EQ(BuildId().find_first_not_of("0123456789abcdef"), std::string_view::npos);
}

TEST(Key, NamesAndLinesAreNotInIt) { EXPECT_EQ(ComputeKey(Program(kProgram), "cuda:sm_80", {}), ComputeKey(Program(kRenamed), "cuda:sm_80", {})); }

TEST(Key, EverythingThatChangesTheOutputIsInIt) {
  std::set<Key> keys = {ComputeKey(Program(kProgram), "cuda:sm_80", {}), ComputeKey(Program(kOther), "cuda:sm_80", {}),
                        ComputeKey(Program(kProgram), "cuda:sm_90a", {})};
  const auto* type = v1::CompileOptions::descriptor();
  for (int i = 0; i < type->field_count(); ++i) {
    v1::CompileOptions options;
    const auto* field = type->field(i);
    switch (field->cpp_type()) {
      case google::protobuf::FieldDescriptor::CPPTYPE_BOOL: options.GetReflection()->SetBool(&options, field, true); break;
      case google::protobuf::FieldDescriptor::CPPTYPE_UINT32: options.GetReflection()->SetUInt32(&options, field, 7); break;
      case google::protobuf::FieldDescriptor::CPPTYPE_STRING: options.GetReflection()->SetString(&options, field, "name"); break;
      case google::protobuf::FieldDescriptor::CPPTYPE_ENUM: options.GetReflection()->SetEnumValue(&options, field, 1); break;
      default: FAIL() << "a field of a kind this test does not set: " << std::string(field->name());
    }
    EXPECT_TRUE(keys.insert(ComputeKey(Program(kProgram), "cuda:sm_80", options)).second) << std::string(field->name());
  }
}

}  // namespace
}  // namespace kiln::compiler
