// SPDX-License-Identifier: Apache-2.0
#include "ir/expr/expr.h"

#include <gtest/gtest.h>

#include <cmath>
#include <limits>
#include <random>

#include "ir/expr/numeric.h"

namespace kiln::ir {
namespace {

constexpr double kInf = std::numeric_limits<double>::infinity();

TEST(ExprPool, EqualExpressionsHaveEqualIds) {
  ExprPool pool;
  ExprId x = pool.Var(VarId(0), DType::kI32), y = pool.Var(VarId(1), DType::kI32);
  EXPECT_EQ(pool.Add(x, y), pool.Add(x, y));
  EXPECT_NE(pool.Add(x, y), pool.Add(y, x));
  EXPECT_NE(pool.Int(1), pool.Int(1, DType::kI64));
}

TEST(ExprPool, Identities) {
  ExprPool pool;
  ExprId x = pool.Var(VarId(0), DType::kI32), b = pool.Var(VarId(1), DType::kBool);
  auto c = [&](int64_t v) { return pool.Int(v); };
  EXPECT_EQ(pool.Add(x, c(0)), x);
  EXPECT_EQ(pool.Add(c(0), x), x);
  EXPECT_EQ(pool.Mul(x, c(1)), x);
  EXPECT_EQ(pool.Mul(c(0), x), c(0));
  EXPECT_EQ(pool.Sub(x, x), c(0));
  EXPECT_EQ(pool.Add(pool.Add(x, c(3)), c(4)), pool.Add(x, c(7)));
  EXPECT_EQ(pool.Sub(pool.Add(x, c(3)), c(3)), x);
  EXPECT_EQ(pool.Mul(pool.Mul(x, c(3)), c(4)), pool.Mul(x, c(12)));
  EXPECT_EQ(pool.Make(ExprOp::kFloorDiv, {x, c(1)}), x);
  EXPECT_EQ(pool.Make(ExprOp::kFloorMod, {x, c(1)}), c(0));
  EXPECT_EQ(pool.Select(pool.Bool(true), x, c(5)), x);
  EXPECT_EQ(pool.Cast(DType::kI32, x), x);
  EXPECT_EQ(pool.Make(ExprOp::kAnd, {b, pool.Bool(true)}), b);
  EXPECT_EQ(pool.Make(ExprOp::kNot, {pool.Make(ExprOp::kNot, {b})}), b);
  EXPECT_EQ(pool.Make(ExprOp::kLe, {x, x}), pool.Bool(true));
}

TEST(ExprPool, LargeUnsignedConstantsBecomeFloatsWhenTheProgramRuns) {
  ExprPool pool;
  const ExprId zero = pool.Int(0, DType::kU64), all = pool.Make(ExprOp::kBitNot, {zero});
  EXPECT_EQ(pool[pool.Cast(DType::kF64, all)].op, ExprOp::kCast);
  EXPECT_EQ(pool[pool.Cast(DType::kF64, pool.Int(-1, DType::kI64))].FloatValue(), -1.0);
  EXPECT_EQ(pool[pool.Cast(DType::kF64, pool.Int(5, DType::kU64))].FloatValue(), 5.0);
}

TEST(ExprPool, AMaskBelongsToALoad) {
  ExprPool pool;
  const ExprId i = pool.Var(VarId(0), DType::kI32), c = pool.Var(VarId(1), DType::kBool), zero = pool.Float(0);
  const ExprId load = pool.Load(BufferId(0), DType::kF32, {{i}}), other = pool.Load(BufferId(1), DType::kF32, {{i}});
  const ExprId masked = pool.Make(ExprOp::kMasked, {c, load, zero});
  EXPECT_EQ(pool[masked].op, ExprOp::kMasked);
  EXPECT_EQ(pool.Make(ExprOp::kMasked, {pool.Bool(true), load, zero}), load);
  EXPECT_EQ(pool.Make(ExprOp::kMasked, {pool.Bool(false), load, zero}), zero);
  ExprNode wrong = pool[masked];
  wrong.args[1] = zero;
  EXPECT_NE(TypeProblem(pool, wrong).find("no element of a buffer"), std::string::npos);
  EXPECT_EQ(TypeProblem(pool, pool[masked]), "");
  // A value in the load's place needs no mask.
  const auto replace = [&](ExprId by) { return pool.Rewrite(masked, [&](ExprId leaf) { return leaf == load ? std::optional(by) : std::nullopt; }); };
  EXPECT_EQ(replace(zero), zero);
  EXPECT_EQ(replace(pool.Float(1)), pool.Select(c, pool.Float(1), zero));
  EXPECT_EQ(replace(other), pool.Make(ExprOp::kMasked, {c, other, zero}));
}

TEST(ExprPool, WhatIsReadHasItsMask) {
  ExprPool pool;
  const ExprId i = pool.Var(VarId(0), DType::kI32), c = pool.Var(VarId(1), DType::kBool);
  const auto load = [&](uint32_t buffer, ExprId at, DType type) { return pool.Load(BufferId(buffer), type, {{at}}); };
  const ExprId index = load(0, i, DType::kI32), a = load(1, index, DType::kF32), b = load(2, i, DType::kF32);
  const ExprId masked = pool.Make(ExprOp::kMasked, {c, a, b});
  const std::vector<Read> reads = ReadsOf(pool, pool.Add(masked, a));
  ASSERT_EQ(reads.size(), 4u);
  EXPECT_TRUE(reads[0].load == index && !reads[0].mask);
  EXPECT_TRUE(reads[1].load == b && !reads[1].mask);
  EXPECT_TRUE(reads[2].load == a && reads[2].value == masked && reads[2].mask == c);
  EXPECT_TRUE(reads[3].load == a && reads[3].value == a && !reads[3].mask);
}

TEST(ExprPool, FloatsKeepTheirCorners) {
  ExprPool pool;
  ExprId x = pool.Var(VarId(0), DType::kF32);
  EXPECT_NE(pool.Add(x, pool.Float(0.0)), x) << "−0 + 0 is +0";
  EXPECT_EQ(pool.Add(x, pool.Float(-0.0)), x);
  EXPECT_EQ(pool.Sub(x, pool.Float(0.0)), x);
  EXPECT_NE(pool.Mul(x, pool.Float(0.0)), pool.Float(0.0)) << "∞ · 0 is NaN";
  EXPECT_NE(pool.Sub(x, x), pool.Float(0.0));
  EXPECT_NE(pool.Float(0.0), pool.Float(-0.0));
  EXPECT_EQ(pool.Float(NAN), pool.Float(-NAN));
  EXPECT_NE(pool.Make(ExprOp::kEq, {x, x}), pool.Bool(true));
  EXPECT_EQ(pool.Make(ExprOp::kMin, {pool.Float(NAN), pool.Float(2)}), pool.Float(2));
}

TEST(ExprPool, DivisionByZeroStays) {
  ExprPool pool;
  for (ExprOp op : {ExprOp::kDiv, ExprOp::kMod, ExprOp::kFloorDiv, ExprOp::kFloorMod}) {
    EXPECT_EQ(pool[pool.Make(op, {pool.Int(7), pool.Int(0)})].op, op);
  }
}

TEST(ExprPool, IntegerFoldsAgreeWithWideArithmetic) {
  ExprPool pool;
  std::mt19937_64 random(1);
  for (int i = 0; i < 20000; ++i) {
    DType type = i % 2 ? DType::kI8 : DType::kU8;
    int64_t a = WrapTo(type, int64_t(random())), b = WrapTo(type, int64_t(random()));
    auto fold = [&](ExprOp op) { return pool.ConstInt(pool.Make(op, {pool.Int(a, type), pool.Int(b, type)})); };
    EXPECT_EQ(fold(ExprOp::kAdd), WrapTo(type, a + b));
    EXPECT_EQ(fold(ExprOp::kSub), WrapTo(type, a - b));
    EXPECT_EQ(fold(ExprOp::kMul), WrapTo(type, a * b));
    EXPECT_EQ(fold(ExprOp::kLt), a < b);
    EXPECT_EQ(fold(ExprOp::kMax), std::max(a, b));
    if (b == 0) continue;
    EXPECT_EQ(fold(ExprOp::kDiv), WrapTo(type, a / b));
    EXPECT_EQ(fold(ExprOp::kMod), WrapTo(type, a % b));
    int64_t floored = int64_t(std::floor(double(a) / double(b)));
    EXPECT_EQ(fold(ExprOp::kFloorDiv), WrapTo(type, floored));
    EXPECT_EQ(fold(ExprOp::kFloorMod), WrapTo(type, a - floored * b));
  }
}

TEST(ExprPool, MostNegativeOverMinusOneWraps) {
  ExprPool pool;
  ExprId least = pool.Int(std::numeric_limits<int64_t>::min(), DType::kI64), minus = pool.Int(-1, DType::kI64);
  EXPECT_EQ(pool.Make(ExprOp::kDiv, {least, minus}), least);
  EXPECT_EQ(pool.ConstInt(pool.Make(ExprOp::kMod, {least, minus})), 0);
}

TEST(ExprPool, SimplifyingASimplifiedNodeGivesTheNode) {
  ExprPool pool;
  std::mt19937 random(7);
  std::vector<ExprId> ids = {pool.Var(VarId(0), DType::kI32), pool.Var(VarId(1), DType::kI32), pool.Int(0), pool.Int(1), pool.Int(-3), pool.Int(64)};
  const ExprOp ops[] = {ExprOp::kAdd, ExprOp::kSub,    ExprOp::kMul, ExprOp::kFloorDiv, ExprOp::kFloorMod,
                        ExprOp::kMin, ExprOp::kBitAnd, ExprOp::kShl, ExprOp::kBitXor};
  for (int i = 0; i < 5000; ++i) {
    ExprId a = ids[random() % ids.size()], b = ids[random() % ids.size()];
    ids.push_back(pool.Make(ops[random() % std::size(ops)], {a, b}));
    EXPECT_EQ(pool.Simplified(pool[ids.back()]), ids.back());
  }
}

// Evaluates over two variables, to compare an expression before and after simplification.
int64_t Evaluate(const ExprPool& pool, ExprId id, int64_t x, int64_t y) {
  const ExprNode& node = pool[id];
  if (node.op == ExprOp::kConstInt) return node.int_value;
  if (node.op == ExprOp::kVar) return node.ref == 0 ? x : y;
  ExprPool scratch;
  ExprNode constant = node;
  for (int i = 0; i < node.arg_count; ++i) {
    constant.args[i] = scratch.Int(Evaluate(pool, node.args[i], x, y), pool.Type(node.args[i]));
  }
  return scratch.ConstInt(scratch.Simplified(constant)).value();
}

TEST(ExprPool, SimplificationKeepsTheValue) {
  std::mt19937 random(11);
  const ExprOp ops[] = {ExprOp::kAdd,    ExprOp::kSub,   ExprOp::kMul,    ExprOp::kMin, ExprOp::kMax,
                        ExprOp::kBitAnd, ExprOp::kBitOr, ExprOp::kBitXor, ExprOp::kShl, ExprOp::kShr};
  for (DType type : {DType::kI32, DType::kU8, DType::kI4}) {
    ExprPool simple, raw;
    std::vector<std::pair<ExprId, ExprId>> ids;
    for (uint32_t v : {0u, 1u}) ids.emplace_back(simple.Var(VarId(v), type), raw.Var(VarId(v), type));
    for (int c : {0, 1, -1, 3, 5}) ids.emplace_back(simple.Int(c, type), raw.Int(c, type));
    for (int i = 0; i < 300; ++i) {
      auto a = ids[random() % ids.size()], b = ids[random() % ids.size()];
      ExprOp op = ops[random() % std::size(ops)];
      ExprNode node{.op = op, .dtype = type, .arg_count = 2, .args = {a.second, b.second}};
      ids.emplace_back(simple.Make(op, {a.first, b.first}), raw.Intern(node));
      if (i > 60) continue;  // deeper ones are too large to walk as trees
      int64_t x = WrapTo(type, random()), y = WrapTo(type, random());
      ASSERT_EQ(Evaluate(simple, ids.back().first, x, y), Evaluate(raw, ids.back().second, x, y)) << Name(op);
    }
  }
}

TEST(ExprPool, SubstituteReachesLoadIndices) {
  ExprPool pool;
  ExprId x = pool.Var(VarId(0), DType::kI32);
  ExprId index = pool.Add(x, pool.Int(2));
  ExprId load = pool.Load(BufferId(3), DType::kF32, std::span(&index, 1));
  ExprId five = pool.Int(5);
  EXPECT_EQ(pool.Substitute(load, VarId(0), pool.Int(3)), pool.Load(BufferId(3), DType::kF32, std::span(&five, 1)));
}

TEST(Numeric, RoundsToNearestEven) {
  EXPECT_EQ(RoundTo(DType::kF4E2M1, 0.25), 0);
  EXPECT_EQ(RoundTo(DType::kF4E2M1, 0.75), 1);
  EXPECT_EQ(RoundTo(DType::kF4E2M1, -2.5), -2);
  EXPECT_EQ(RoundTo(DType::kF4E2M1, 5), 4);
  EXPECT_EQ(RoundTo(DType::kF4E2M1, kInf), 6);
  EXPECT_EQ(RoundTo(DType::kF16, 2049), 2048);
  EXPECT_EQ(RoundTo(DType::kF16, 2051), 2052);
  EXPECT_EQ(RoundTo(DType::kF16, 65519), 65504);
  EXPECT_EQ(RoundTo(DType::kF16, 65520), kInf);
  EXPECT_EQ(RoundTo(DType::kF16, std::ldexp(1.0, -25)), 0);
  EXPECT_EQ(RoundTo(DType::kF16, std::ldexp(1.1, -25)), std::ldexp(1.0, -24));
  EXPECT_EQ(RoundTo(DType::kBF16, 257), 256);
  EXPECT_EQ(RoundTo(DType::kF8E4M3, 1e9), 448);
  EXPECT_EQ(RoundTo(DType::kF8E4M3, -kInf), -448);
  EXPECT_EQ(RoundTo(DType::kF8E5M2, 60000), 57344);
  EXPECT_EQ(RoundTo(DType::kF8E4M3FNUZ, 1000), 240);
  EXPECT_FALSE(std::signbit(RoundTo(DType::kF8E4M3FNUZ, -0.0)));
  EXPECT_TRUE(std::isnan(RoundTo(DType::kF8E4M3, NAN)));
}

TEST(Numeric, F32AgreesWithTheHardware) {
  std::mt19937_64 random(3);
  for (int i = 0; i < 100000; ++i) {
    double value = std::bit_cast<double>(random());
    if (std::isnan(value)) continue;
    EXPECT_EQ(RoundTo(DType::kF32, value), double(float(value))) << value;
    double near = double(float(int32_t(random()))) * std::ldexp(1 + double(random() % 4096) / (1 << 26), -140);
    EXPECT_EQ(RoundTo(DType::kF32, near), double(float(near))) << near;
  }
}

TEST(Numeric, SaturatesAsACastDoes) {
  EXPECT_EQ(SaturateTo(DType::kI8, 300), 127);
  EXPECT_EQ(SaturateTo(DType::kI8, -300), -128);
  EXPECT_EQ(SaturateTo(DType::kI8, -128.9), -128);
  EXPECT_EQ(SaturateTo(DType::kU8, -1), 0);
  EXPECT_EQ(SaturateTo(DType::kI64, 1e30), std::numeric_limits<int64_t>::max());
  EXPECT_EQ(SaturateTo(DType::kU64, 1e30), -1);
  EXPECT_EQ(SaturateTo(DType::kI32, NAN), 0);
  EXPECT_EQ(SaturateTo(DType::kBool, 0.5), 1);
}

TEST(Numeric, NumbersOfIntegerTypes) {
  for (double value : {-128.0, 0.0, 127.0}) EXPECT_TRUE(IsValueOf(DType::kI8, value));
  for (double value : {-129.0, 128.0, 0.5, std::nan(""), kInf, -kInf}) EXPECT_FALSE(IsValueOf(DType::kI8, value));
  EXPECT_TRUE(IsValueOf(DType::kBool, 1) && IsValueOf(DType::kU4, 15) && IsValueOf(DType::kU64, 0x1p63) && IsValueOf(DType::kI64, -0x1p63));
  EXPECT_FALSE(IsValueOf(DType::kBool, 2) || IsValueOf(DType::kU4, 16) || IsValueOf(DType::kU64, 0x1p64) || IsValueOf(DType::kI64, 0x1p63));
  EXPECT_FALSE(IsValueOf(DType::kU64, -1));
}

TEST(TypeProblem, NamesTheOperands) {
  ExprPool pool;
  ExprId half = pool.Float(1, DType::kF16), single = pool.Float(1);
  ExprNode sum{.op = ExprOp::kAdd, .dtype = DType::kF32, .arg_count = 2, .args = {half, single}};
  EXPECT_EQ(TypeProblem(pool, sum), "add of f16 and f32; operands must have one type");
  sum.args = {single, single};
  EXPECT_EQ(TypeProblem(pool, sum), "");
  sum.op = ExprOp::kBitAnd;
  EXPECT_EQ(TypeProblem(pool, sum), "bitand of f32 and f32; it takes integers or bool");
  ExprNode bits{.op = ExprOp::kReinterpret, .dtype = DType::kU16, .arg_count = 1, .args = {single}};
  EXPECT_NE(TypeProblem(pool, bits), "");
}

}  // namespace
}  // namespace kiln::ir
