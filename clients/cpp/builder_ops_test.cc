// SPDX-License-Identifier: Apache-2.0
//
// The builder has a method for each op that programs consist of. Those of the family elementwise are called here with a tensor for each region
// and a number for each expression; what the builder gives must be the program whose text has these in the op's fields.
#include <gtest/gtest.h>

#include <array>
#include <stdexcept>
#include <string>
#include <tuple>
#include <type_traits>
#include <vector>

#include "clients/cpp/builder.h"
#include "ir/canonical.h"
#include "ir/codec/decode.h"
#include "ir/fields.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"

namespace kiln {
namespace {

// Tiles and loops have methods with other names; what only passes make has none.
template <typename T>
constexpr bool kHasOtherNames = ir::OneOf<T, ir::Alloc, ir::For> || ir::OpRow<T>::kNumber == 0;
#define KILN_OP(number, type, name, family, since) \
  template <typename B>                            \
  constexpr bool kHas##type = kHasOtherNames<ir::type> || requires { &B::type; };
#include "ir/ops.def"
#define KILN_OP(number, type, name, family, since) static_assert(kHas##type<Builder>, "clients/cpp/builder.h has no method for the op " name);
#include "ir/ops.def"

constexpr size_t kTensors = 6;
struct Type {
  DType builder;
  ir::DType ir;
};
constexpr std::array kTypes = {Type{DType::kF32, ir::DType::kF32}, Type{DType::kI32, ir::DType::kI32}};

// A method's operands: the next tensor, the next number.
struct Operands {
  const std::vector<Tile>& tensors;
  size_t tensor = 0;
  int number = 0;

  template <typename T>
  T Next() {
    constexpr bool region = std::is_same_v<T, Region>, where = std::is_same_v<T, Builder::Where>;
    static_assert(region || where || std::is_same_v<T, Expr>, "a method of the family elementwise takes regions and expressions");
    if constexpr (region) return tensors.at(tensor++);
    else if constexpr (where) return Builder::Where::current();
    else return ++number;
  }
};

template <typename... Args>
Builder Called(void (Builder::*method)(Args...), DType type) {
  Builder builder("f");
  std::vector<Tile> tensors;
  for (size_t i = 0; i < kTensors; ++i) tensors.push_back(builder.Tensor("T" + std::to_string(i), type, {16}));
  Operands operands{tensors};
  const std::tuple<std::decay_t<Args>...> arguments{operands.Next<std::decay_t<Args>>()...};  // braces evaluate in order
  builder.Launch({.grid = {1}, .threads = 32}, [&](Expr) { std::apply([&](const auto&... each) { (builder.*method)(each...); }, arguments); });
  return builder;
}

// The same operands in the op's fields.
struct Filler : ir::FieldVisitor {
  ir::Module& module;
  ir::DType type;
  uint32_t tensor = 0;
  int number = 0;

  Filler(ir::Module& in, ir::DType of) : module(in), type(of) {}
  void Region(ir::Region& region, std::string_view, ir::Use) { region = {ir::BufferId(tensor++), {module.exprs.Int(0)}, {16}}; }
  void Evaluates(ir::ExprId& value, std::string_view) {
    ++number;
    value = ir::IsFloat(type) ? module.exprs.Float(number, type) : module.exprs.Int(number, type);
  }
  void Is(auto&, ir::Label) = delete;
};

ir::Module Parsed(const std::string& text) {
  ir::Diagnostics diagnostics;
  auto module = ir::Parse(text, diagnostics);
  if (!module) throw std::runtime_error(text + "\n" + diagnostics.all().front().message);
  return *std::move(module);
}

template <typename T>
ir::Module Expected(ir::DType type) {
  std::string text = "kiln 1\nfunc @f(";
  for (size_t i = 0; i < kTensors; ++i) text += (i > 0 ? ", %T" : "%T") + std::to_string(i) + ": global " + std::string(ir::Name(type)) + "[16]";
  ir::Module module = Parsed(text + ") {\n  kernel @main grid(1) threads 32 blocks(%bx) {\n  }\n}\n");
  T op{};
  ir::Fields(op, Filler(module, type));
  module.kernels[0].body.push_back({std::move(op), {}});
  return Parsed(ir::Print(module));
}

// Of the first type that the op takes.
template <typename T>
void Compare(std::string_view name, auto method) {
  SCOPED_TRACE(name);
  for (const Type& type : kTypes) {
    const auto bytes = Called(method, type.builder).Finish();
    ir::Diagnostics diagnostics;
    if (!bytes) {
      EXPECT_FALSE(ir::Verify(Expected<T>(type.ir), diagnostics)) << "the builder refuses " << ir::Name(type.ir) << ", which the op takes";
      continue;
    }
    const auto built = ir::Decode(*bytes, diagnostics);
    ASSERT_TRUE(built) << diagnostics.all().front().message;
    const ir::Module expected = Expected<T>(type.ir);
    EXPECT_EQ(ir::Print(*built), ir::Print(expected));
    EXPECT_EQ(ir::CanonicalBytes(*built), ir::CanonicalBytes(expected));
    return;
  }
  ADD_FAILURE() << "takes no type of this test";
}

template <typename B>
void CompareAll() {
#define KILN_OP(number, type, name, family, since) \
  if constexpr (ir::Elementwise<ir::type>) Compare<ir::type>(name, &B::type);
#include "ir/ops.def"
}

TEST(BuilderOps, OperandsAreInTheirFields) { CompareAll<Builder>(); }

}  // namespace
}  // namespace kiln
