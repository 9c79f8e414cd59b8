// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/host_expr.h"

#include <gtest/gtest.h>

namespace kiln::runtime {
namespace {

const std::vector<bool> kScalars = {true, false};

HostNode Constant(int64_t value) { return {HostOp::kConst, value, 0, 0}; }
HostNode Symbol(int64_t index) { return {HostOp::kSymbol, index, 0, 0}; }
HostNode Of(HostOp op, uint32_t a, uint32_t b) { return {op, 0, a, b}; }

HostExpr Parsed(HostNodes nodes) {
  auto expr = HostExpr::Parse(nodes, 2, kScalars);
  EXPECT_TRUE(expr) << expr.error().message;
  return *expr;
}
struct Known {
  std::vector<std::optional<int64_t>> symbols{std::nullopt, std::nullopt};
  std::vector<std::optional<int64_t>> scalars{std::nullopt, std::nullopt};
  HostValues values() const { return {symbols, scalars}; }
};

TEST(HostExpr, Evaluates) {
  Known known;
  known.symbols[0] = 1000;
  const struct {
    HostOp op;
    int64_t want;
  } cases[] = {{HostOp::kAdd, 1007},   {HostOp::kSub, 993}, {HostOp::kMul, 7000}, {HostOp::kFloorDiv, 142},
               {HostOp::kFloorMod, 6}, {HostOp::kMin, 7},   {HostOp::kMax, 1000}};
  for (const auto& c : cases) EXPECT_EQ(**Parsed({Symbol(0), Constant(7), Of(c.op, 0, 1)}).Evaluate(known.values()), c.want);
}

TEST(HostExpr, DivisionRoundsDown) {
  EXPECT_EQ(FloorDiv(-7, 2), -4);
  EXPECT_EQ(FloorDiv(7, -2), -4);
  EXPECT_EQ(FloorDiv(-8, 2), -4);
  EXPECT_EQ(FloorMod(-7, 2), 1);
  EXPECT_EQ(FloorMod(7, -2), -1);
  EXPECT_EQ(FloorDiv(1, 0), std::nullopt);
  EXPECT_EQ(FloorMod(1, 0), std::nullopt);
  EXPECT_EQ(FloorDiv(INT64_MIN, -1), std::nullopt);
  EXPECT_EQ(FloorMod(INT64_MIN, -1), 0);
}

TEST(HostExpr, UnknownIsNoError) { EXPECT_EQ(*Parsed({Symbol(1), Constant(2), Of(HostOp::kMul, 0, 1)}).Evaluate(Known().values()), std::nullopt); }

TEST(HostExpr, OverflowAndDivisionByZeroAreErrors) {
  for (HostOp op : {HostOp::kMul, HostOp::kAdd})
    EXPECT_FALSE(Parsed({Constant(INT64_MAX), Constant(INT64_MAX), Of(op, 0, 1)}).Evaluate(Known().values()));
  EXPECT_FALSE(Parsed({Constant(INT64_MIN), Constant(1), Of(HostOp::kSub, 0, 1)}).Evaluate(Known().values()));
  EXPECT_FALSE(Parsed({Constant(1), Constant(0), Of(HostOp::kFloorDiv, 0, 1)}).Evaluate(Known().values()));
}

TEST(HostExpr, SolvesLinearOnes) {
  // 3·s + 2·(s − 4) = 42 → s = 10
  const HostExpr expr = Parsed({Symbol(0), Constant(3), Of(HostOp::kMul, 1, 0), Constant(4), Of(HostOp::kSub, 0, 3), Constant(2),
                                Of(HostOp::kMul, 5, 4), Of(HostOp::kAdd, 2, 6)});
  auto solution = expr.Solve(Known().values(), 42);
  ASSERT_TRUE(solution && *solution);
  EXPECT_EQ((*solution)->symbol, 0u);
  EXPECT_EQ((*solution)->value, 10);
  EXPECT_FALSE(expr.Solve(Known().values(), 43));  // no integer
}

TEST(HostExpr, UsesWhatIsKnownToSolve) {
  const HostExpr product = Parsed({Symbol(0), Symbol(1), Of(HostOp::kMul, 0, 1)});
  EXPECT_EQ(*product.Solve(Known().values(), 12), std::nullopt);  // two unknowns
  Known known;
  known.symbols[0] = 3;
  EXPECT_EQ((*product.Solve(known.values(), 12))->value, 4);
  known.symbols[0] = 0;
  EXPECT_EQ(*product.Solve(known.values(), 0), std::nullopt);  // any value would do
}

TEST(HostExpr, LeavesNonlinearOnesAlone) {
  EXPECT_EQ(*Parsed({Symbol(0), Constant(32), Of(HostOp::kFloorDiv, 0, 1)}).Solve(Known().values(), 4), std::nullopt);
  EXPECT_EQ(*Parsed({Symbol(0), Of(HostOp::kMul, 0, 0)}).Solve(Known().values(), 4), std::nullopt);
}

TEST(HostExpr, RefusesWhatRefersOutside) {
  EXPECT_FALSE(HostExpr::Parse({}, 2, kScalars));
  EXPECT_FALSE(HostExpr::Parse({Symbol(2)}, 2, kScalars));
  EXPECT_FALSE(HostExpr::Parse({Symbol(-1)}, 2, kScalars));
  EXPECT_FALSE(HostExpr::Parse({{HostOp::kScalar, 1, 0, 0}}, 2, kScalars));  // a tensor
  EXPECT_TRUE(HostExpr::Parse({{HostOp::kScalar, 0, 0, 0}}, 2, kScalars));
  EXPECT_FALSE(HostExpr::Parse({Constant(1), Of(HostOp::kAdd, 0, 1)}, 2, kScalars));  // itself
  EXPECT_FALSE(HostExpr::Parse({Of(HostOp::kAdd, 0, 0)}, 2, kScalars));
  EXPECT_FALSE(HostExpr::Parse(HostNodes(HostExpr::kMaxNodes + 1, Constant(1)), 2, kScalars));
}

TEST(HostExpr, TextStaysShort) {
  LaunchInfo info;
  info.symbols = {{"m", DType::kI32}, {"n", DType::kI32}};
  EXPECT_EQ(Parsed({Symbol(0), Symbol(1), Of(HostOp::kMul, 0, 1), Constant(2), Of(HostOp::kAdd, 2, 3)}).Text(info), "(m * n) + 2");
  HostNodes doubling = {Symbol(0)};
  for (uint32_t i = 0; i < 60; ++i) doubling.push_back(Of(HostOp::kAdd, i, i));
  EXPECT_LT(Parsed(doubling).Text(info).size(), 500u);
}

}  // namespace
}  // namespace kiln::runtime
