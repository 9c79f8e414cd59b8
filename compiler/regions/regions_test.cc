// SPDX-License-Identifier: Apache-2.0
#include <gtest/gtest.h>

#include "compiler/regions/box.h"
#include "compiler/regions/host_range.h"
#include "compiler/regions/sums.h"
#include "ir/text/print.h"

namespace kiln::compiler {
namespace {

using ir::DType;
using ir::ExprId;
using ir::ExprOp;
using ir::VarId;
using ir::VarKind;

// A grid of `programs` blocks, a tile's variables i and j, scalars m and s.
class RegionsTest : public testing::Test {
 protected:
  RegionsTest() {
    kernel_.grid = {Ref(programs_)};
    kernel_.block_vars = {pid_};
  }
  VarId Var(VarKind kind, const char* name) { return module_.AddVar({kind, DType::kI32, 0, name}); }
  ExprId Ref(VarId var) { return module_.VarRef(var); }
  ExprId Int(int64_t value) { return pool().Int(value); }
  ExprId Make(ExprOp op, ExprId a, ExprId b) { return pool().Make(op, {a, b}); }
  ir::ExprPool& pool() { return module_.exprs; }
  std::string Text(std::optional<ExprId> id) { return id ? ir::PrintExpr(module_, *id) : "none"; }
  std::string Text(const std::vector<ExprId>& list) {
    std::string text;
    for (ExprId id : list) text += (text.empty() ? "" : "; ") + Text(id);
    return text;
  }
  HostRanges Ranges() {
    HostRanges ranges(module_, kernel_);
    ranges.Enter(i_, Int(64)), ranges.Enter(j_, Int(32));
    return ranges;
  }
  std::string RangeOf(ExprId id) {
    std::vector<ExprId> positive;
    const std::optional<ExprId> low = Ranges().Low(id, positive), high = Ranges().High(id, positive);
    return Text(low) + " … " + Text(high) + (positive.empty() ? "" : " if " + Text(positive));
  }
  std::optional<Box> Found(ExprId offset, std::vector<ExprId> conditions = {}) {
    const auto never = [](ExprId, size_t, ExprId) { return false; };
    return BoxOf(module_, Ranges(), {{i_, j_}, {64, 32}, offset, std::move(conditions)}, never);
  }
  std::string BoxText(ExprId offset, std::vector<ExprId> conditions = {}) {
    const auto box = Found(offset, std::move(conditions));
    return box ? "[" + Text(box->shape) + "] strides [" + Text(box->strides) + "] at [" + Text(box->offsets) + "]" : "none";
  }
  // i · s + j, at rows from 64 · pid on.
  ExprId Offset() { return pool().Add(pool().Mul(pool().Add(pool().Mul(Ref(pid_), Int(64)), Ref(i_)), Ref(s_)), Ref(j_)); }

  ir::Module module_;
  const VarId programs_ = Var(VarKind::kScalar, "programs"), m_ = Var(VarKind::kScalar, "m"), s_ = Var(VarKind::kScalar, "s");
  const VarId pid_ = Var(VarKind::kBlock, "pid"), i_ = Var(VarKind::kLoop, "i"), j_ = Var(VarKind::kLoop, "j");
  ir::Kernel kernel_;
};

TEST_F(RegionsTest, SumsKeepRowsBesideTheirStrides) {
  Sums sums(module_);
  const Sum sum = *sums.Of(Offset());
  const std::vector<uint32_t> stride{ir::Index(Ref(s_))};
  EXPECT_EQ(sum, (Sum{{{{}, Ref(j_)}, 1}, {{stride, Ref(i_)}, 1}, {{stride, Ref(pid_)}, 64}}));
  EXPECT_TRUE(Minus(sum, sum).empty());
  EXPECT_EQ(sums.Of(sums.Write(sum)), sum);
}

TEST_F(RegionsTest, AProductOfTwoUnknownsIsOnePart) {
  const ExprId square = pool().Mul(Ref(pid_), Ref(i_));
  EXPECT_EQ(*Sums(module_).Of(square), (Sum{{{{}, square}, 1}}));
}

TEST_F(RegionsTest, RangesAreWhatTheLauncherComputes) {
  EXPECT_EQ(RangeOf(Ref(pid_)), "0:i64 … i64(%programs) - 1:i64");
  EXPECT_EQ(RangeOf(pool().Add(Ref(i_), Int(3))), "3:i64 … 66:i64");
  EXPECT_EQ(RangeOf(pool().Sub(Int(63), Ref(i_))), "0:i64 … 63:i64");
  EXPECT_EQ(RangeOf(Make(ExprOp::kMod, Ref(pid_), Ref(m_))), "0:i64 … min(i64(%programs) - 1:i64, i64(%m) - 1:i64) if i64(%m)");
  EXPECT_EQ(RangeOf(Make(ExprOp::kDiv, Ref(pid_), Ref(m_))), "0:i64 … (i64(%programs) - 1:i64) // i64(%m) if i64(%m)");
  EXPECT_EQ(RangeOf(pool().Cast(DType::kI32, pool().Cast(DType::kI8, Ref(pid_)))), "none … none");
}

TEST_F(RegionsTest, ALoopOfTheBlocksOwnHasNoEnd) {
  HostRanges ranges = Ranges();
  const VarId turn = Var(VarKind::kLoop, "turn"), step = Var(VarKind::kLoop, "step");
  ranges.Enter(turn, pool().Sub(Ref(m_), Ref(pid_))), ranges.Enter(step, Ref(m_));
  std::vector<ExprId> positive;
  EXPECT_EQ(Text(ranges.Low(Ref(turn), positive)), "0:i64");
  EXPECT_EQ(Text(ranges.High(Ref(turn), positive)), "none");
  EXPECT_EQ(Text(ranges.High(Ref(step), positive)), "i64(%m) - 1:i64");
  EXPECT_TRUE(positive.empty());
}

// for (x = pid; x < m; x += 3), and with a step that the launcher knows: x itself stays below m.
TEST_F(RegionsTest, WhatABlockCountsUpToIsAnEnd) {
  HostRanges ranges = Ranges();
  const auto wide = [&](ExprId id) { return pool().Cast(DType::kI64, id); };
  const auto i64 = [&](int64_t value) { return pool().Int(value, DType::kI64); };
  const VarId by_3 = Var(VarKind::kLoop, "by_3"), by_s = Var(VarKind::kLoop, "by_s"), down = Var(VarKind::kLoop, "down");
  const VarId other = Var(VarKind::kLoop, "other");
  const ExprId span = pool().Sub(wide(Ref(m_)), wide(Ref(pid_)));
  const ExprId most = i64((int64_t{1} << 31) - 1);
  ranges.Enter(by_3, pool().Cast(DType::kI32, Make(ExprOp::kMin, Make(ExprOp::kFloorDiv, pool().Add(span, i64(2)), i64(3)), most)));
  const ExprId trips = Make(ExprOp::kFloorDiv, pool().Add(span, pool().Sub(wide(Ref(s_)), i64(1))), wide(Ref(s_)));
  ranges.Enter(down, trips);
  ranges.Enter(by_s, pool().Make(ExprOp::kSelect, {Make(ExprOp::kGt, Ref(s_), Int(0)), trips, i64(0)}));
  ranges.Enter(other, pool().Make(ExprOp::kSelect, {Make(ExprOp::kGt, Ref(m_), Int(0)), trips, i64(0)}));
  std::vector<ExprId> positive;
  const auto x = [&](VarId var, ExprId step) { return pool().Add(Ref(pid_), pool().Mul(Ref(var), step)); };
  EXPECT_EQ(Text(ranges.High(x(by_3, Int(3)), positive)), "i64(%m) - 1:i64");
  EXPECT_EQ(Text(ranges.High(pool().Add(pool().Sub(x(by_3, Int(3)), Int(7)), Int(8)), positive)), "i64(%m)");
  EXPECT_EQ(Text(ranges.High(x(by_s, Ref(s_)), positive)), "i64(%m) - 1:i64");
  EXPECT_EQ(Text(ranges.Low(pool().Sub(Int(9), x(by_3, Int(3))), positive)), "i64(%m) * -1:i64 + 10:i64");
  EXPECT_EQ(Text(ranges.High(x(by_3, Int(2)), positive)), "none");    // another step
  EXPECT_EQ(Text(ranges.High(x(down, Ref(s_)), positive)), "none");   // which may go down
  EXPECT_EQ(Text(ranges.High(x(other, Ref(s_)), positive)), "none");  // so may this: what is positive is not the step
  EXPECT_EQ(Text(ranges.High(pool().Mul(Ref(by_3), Int(3)), positive)), "none");
}

TEST_F(RegionsTest, EqualSumsWithinQuotientsAreOnePart) {
  const auto quotient = [&](ExprId x) { return Make(ExprOp::kDiv, x, Ref(m_)); };
  const ExprId one = quotient(pool().Add(Ref(pid_), pool().Mul(Ref(i_), Int(3))));
  const ExprId other = quotient(pool().Add(pool().Sub(pool().Mul(Int(3), Ref(i_)), Int(3)), pool().Add(Ref(pid_), Int(3))));
  Sums plain(module_), canonical(module_, /*canonical=*/true);
  EXPECT_NE(plain.Of(one), plain.Of(other));
  EXPECT_EQ(canonical.Of(one), canonical.Of(other));
  EXPECT_NE(canonical.Of(one), canonical.Of(quotient(Ref(pid_))));
}

TEST_F(RegionsTest, AnUnknownSignIsForTheLauncher) {
  std::vector<ExprId> positive;
  EXPECT_TRUE(Ranges().IsNatural(pool().Sub(Ref(m_), Ref(i_)), positive));
  EXPECT_EQ(Text(positive), "i64(%m) - 62:i64");
  positive.clear();
  EXPECT_FALSE(Ranges().IsNatural(pool().Sub(Ref(i_), Int(1)), positive));
  EXPECT_TRUE(positive.empty());
}

TEST_F(RegionsTest, MasksAreBounds) {
  const ExprId row = pool().Add(pool().Mul(Ref(pid_), Int(64)), Ref(i_));
  const ExprId both = Make(ExprOp::kAnd, Make(ExprOp::kLt, row, Ref(m_)), Make(ExprOp::kGt, Ref(s_), Ref(j_)));
  EXPECT_EQ(BoxText(Offset(), {both}), "[i64(%m); i64(%s)] strides [i64(%s); 1:i64] at [i64(%pid) * 64:i64; 0:i64]");
  const ExprId last = Make(ExprOp::kLe, row, Ref(m_));
  EXPECT_EQ(BoxText(Offset(), {last}), "[i64(%m) + 1:i64; 32:i64] strides [i64(%s); 1:i64] at [i64(%pid) * 64:i64; 0:i64]");
  EXPECT_EQ(BoxText(Offset(), {Make(ExprOp::kLt, Ref(j_), Ref(i_))}), "none");
  EXPECT_EQ(BoxText(Offset(), {Make(ExprOp::kNe, row, Ref(m_))}), "none");
  EXPECT_EQ(BoxText(Offset(), {Make(ExprOp::kLt, Ref(pid_), Ref(m_))}), "none");
}

TEST_F(RegionsTest, WithoutMasksTheRangeIsTheBound) {
  EXPECT_EQ(BoxText(Offset()), "[(i64(%programs) - 1:i64) * 64:i64 + 64:i64; 32:i64] strides [i64(%s); 1:i64] at [i64(%pid) * 64:i64; 0:i64]");
}

TEST_F(RegionsTest, ABatchIsADimension) {
  const ExprId offset = pool().Add(pool().Mul(Ref(pid_), Ref(m_)), pool().Add(pool().Mul(Ref(i_), Int(32)), Ref(j_)));
  EXPECT_EQ(BoxText(offset), "[i64(%programs); 64:i64; 32:i64] strides [i64(%m); 32:i64; 1:i64] at [i64(%pid); 0:i64; 0:i64]");
}

TEST_F(RegionsTest, RowsMayBeCountedThroughBatches) {
  const ExprId row = pool().Add(pool().Mul(Ref(pid_), Ref(m_)), Ref(i_));
  const ExprId offset = pool().Add(pool().Mul(row, Ref(s_)), Ref(j_));
  EXPECT_EQ(BoxText(offset), "[i64(%programs); 64:i64; 32:i64] strides [i64(%s) * i64(%m); i64(%s); 1:i64] at [i64(%pid); 0:i64; 0:i64]");
  const ExprId bound = Make(ExprOp::kLt, row, pool().Mul(Ref(m_), Int(8)));
  EXPECT_EQ(BoxText(offset, {bound}), "[i64(%m) * 8:i64; 32:i64] strides [i64(%s); 1:i64] at [i64(%pid) * i64(%m); 0:i64]");
}

// row · s + j at a row of the block's own, j < 20: the condition is on j alone.
TEST_F(RegionsTest, WhatNoConditionComparesLeadsToARow) {
  const ExprId row = Make(ExprOp::kMin, pool().Mul(Ref(pid_), Int(8)), Ref(m_));
  const Elements elements{{j_}, {32}, pool().Add(pool().Mul(row, Int(256)), Ref(j_)), {Make(ExprOp::kLt, Ref(j_), Int(20))}};
  const auto box = BoxOf(module_, Ranges(), elements, [](ExprId, size_t, ExprId) { return false; });
  ASSERT_TRUE(box);
  EXPECT_EQ(Text(box->strides), "256:i64; 1:i64");
  EXPECT_EQ(Text(box->shape).substr(Text(box->shape).find("; ")), "; 20:i64");
}

TEST_F(RegionsTest, OtherPlacesAreNoBoxes) {
  EXPECT_EQ(BoxText(pool().Add(pool().Mul(Ref(i_), Ref(s_)), pool().Mul(Ref(j_), Int(2)))), "none");           // no neighbours
  EXPECT_EQ(BoxText(pool().Add(pool().Mul(Ref(i_), Ref(s_)), Make(ExprOp::kDiv, Ref(j_), Int(2)))), "none");   // twice the same
  EXPECT_EQ(BoxText(Ref(j_)), "none");                                                                         // all rows the same
  EXPECT_EQ(BoxText(pool().Add(pool().Mul(Ref(i_), Ref(s_)), pool().Sub(Ref(j_), Int(1)))), "none");           // before the start
  EXPECT_EQ(BoxText(pool().Add(pool().Mul(Make(ExprOp::kMod, Ref(i_), Ref(m_)), Ref(s_)), Ref(j_))), "none");  // a wrap that is needed
}

}  // namespace
}  // namespace kiln::compiler
