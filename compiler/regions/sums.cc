// SPDX-License-Identifier: Apache-2.0
#include "compiler/regions/sums.h"

#include <algorithm>
#include <cstdlib>
#include <unordered_set>
#include <utility>

#include "compiler/analysis/contains.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

constexpr size_t kMostProducts = 64;            // of one sum; indices have a handful
constexpr int64_t kLargest = int64_t{1} << 40;  // coefficient; a larger one leaves every tensor
constexpr size_t kLargestHostExpression = 256;  // parts

bool IsInt(ir::DType type) { return type == ir::DType::kI32 || type == ir::DType::kI64; }

bool IsHostOp(ExprOp op) {
  switch (op) {
    case ExprOp::kConstInt:
    case ExprOp::kCast:
    case ExprOp::kAdd:
    case ExprOp::kSub:
    case ExprOp::kMul:
    case ExprOp::kDiv:
    case ExprOp::kMod:
    case ExprOp::kFloorDiv:
    case ExprOp::kFloorMod:
    case ExprOp::kMin:
    case ExprOp::kMax: return true;
    default: return false;
  }
}

bool IsWidening(const ir::ExprPool& pool, const ExprNode& node) {
  return node.op == ExprOp::kCast && IsInt(node.dtype) && IsInt(pool.Type(node.args[0])) && ir::Bits(node.dtype) >= ir::Bits(pool.Type(node.args[0]));
}

}  // namespace

bool IsForHost(const ir::ExprPool& pool, const std::vector<ir::Var>& vars, ExprId id) {
  std::vector<ExprId> open{id};
  std::unordered_set<uint32_t> seen;
  while (!open.empty()) {
    const ExprId next = open.back();
    open.pop_back();
    if (!seen.insert(ir::Index(next)).second) continue;
    const ExprNode& node = pool[next];
    if (seen.size() > kLargestHostExpression || !IsInt(node.dtype)) return false;
    const bool known = node.op == ExprOp::kVar && (vars[node.ref].kind == ir::VarKind::kSymbol || vars[node.ref].kind == ir::VarKind::kScalar);
    if (!known && !IsHostOp(node.op)) return false;
    if (node.op == ExprOp::kCast && !IsWidening(pool, node)) return false;
    open.insert(open.end(), node.Args().begin(), node.Args().end());
  }
  return true;
}

void Add(Sum& to, const Sum& other, int64_t factor) {
  for (const auto& [product, coefficient] : other) {
    if ((to[product] += coefficient * factor) == 0) to.erase(product);
  }
}

bool IsForHost(const Sum& sum) {
  return std::ranges::none_of(sum, [](const auto& term) { return term.first.device.has_value(); });
}

std::optional<Sum> Sums::Of(ExprId id) {
  const auto known = known_.find(ir::Index(id));
  if (known != known_.end()) return known->second;
  std::optional<Sum> sum = Compute(id);
  const auto fits = [](const auto& term) { return std::abs(term.second) <= kLargest; };
  if (sum && (sum->size() > kMostProducts || !std::ranges::all_of(*sum, fits))) sum.reset();
  known_.emplace(ir::Index(id), sum);
  return sum;
}

std::optional<Sum> Sums::Compute(ExprId id) {
  const ExprNode node = module_.exprs[id];
  Sum sum;
  switch (node.op) {
    case ExprOp::kConstInt:
      if (node.int_value != 0) sum[{}] = node.int_value;
      return sum;
    case ExprOp::kAdd:
    case ExprOp::kSub:
    case ExprOp::kMul: {
      const std::optional<Sum> a = Of(node.args[0]), b = Of(node.args[1]);
      if (!a || !b) return std::nullopt;
      if (node.op != ExprOp::kMul) {
        sum = *a;
        Add(sum, *b, node.op == ExprOp::kAdd ? 1 : -1);
        return sum;
      }
      if (compiler::IsForHost(*a) || compiler::IsForHost(*b)) return Times(*a, *b);
      break;
    }
    case ExprOp::kCast:
      if (IsWidening(module_.exprs, node)) return Of(node.args[0]);
      break;
    default: break;
  }
  if (canonical_) id = OfSums(node);
  // The launcher rounds divisions downwards, the kernel towards zero: nobody checks here that they agree.
  const auto divides = [&](ExprId part) { return module_.exprs[part].op == ExprOp::kDiv || module_.exprs[part].op == ExprOp::kMod; };
  if (IsForHost(module_.exprs, module_.vars, id) && !Contains(module_.exprs, id, divides)) {
    sum[{{ir::Index(id)}, std::nullopt}] = 1;
  } else {
    sum[{{}, id}] = 1;
  }
  return sum;
}

ExprId Sums::OfSums(ir::ExprNode node) {
  ir::ExprPool& pool = module_.exprs;
  if (node.op == ExprOp::kLoad) return pool.Simplified(node);
  for (int i = 0; i < node.arg_count; ++i) {
    ExprId& arg = node.args[size_t(i)];
    if (!IsInt(pool.Type(arg))) continue;
    if (const std::optional<Sum> sum = Of(arg)) arg = pool.Cast(pool.Type(arg), Write(*sum));
  }
  const bool commutes = node.op == ExprOp::kMul || node.op == ExprOp::kMin || node.op == ExprOp::kMax;
  if (commutes && ir::Index(node.args[1]) < ir::Index(node.args[0])) std::swap(node.args[0], node.args[1]);
  return pool.Simplified(node);
}

std::optional<Sum> Sums::Times(const Sum& a, const Sum& b) {
  Sum sum;
  for (const auto& [left, x] : a) {
    for (const auto& [right, y] : b) {
      Product product{left.factors, left.device ? left.device : right.device};
      product.factors.insert(product.factors.end(), right.factors.begin(), right.factors.end());
      std::ranges::sort(product.factors);  // so that equal products are equal
      int64_t coefficient = 0;
      if (__builtin_mul_overflow(x, y, &coefficient) || std::abs(coefficient) > kLargest) return std::nullopt;
      Add(sum, {{std::move(product), coefficient}}, 1);
    }
  }
  return sum;
}

ExprId Sums::Write(int64_t constant, std::span<const uint32_t> factors) {
  ir::ExprPool& pool = module_.exprs;
  ExprId result = pool.Int(constant, ir::DType::kI64);
  for (uint32_t factor : factors) {
    const ExprId wide = pool.Cast(ir::DType::kI64, ExprId(factor));
    result = pool.IsConst(result, 1) ? wide : pool.Mul(wide, result);
  }
  return result;
}

ExprId Sums::Write(const Sum& sum) {
  ir::ExprPool& pool = module_.exprs;
  ExprId result = pool.Int(0, ir::DType::kI64);
  for (const auto& [product, coefficient] : sum) {
    ExprId term = Write(coefficient, product.factors);
    if (product.device) term = pool.Mul(pool.Cast(ir::DType::kI64, *product.device), term);
    result = pool.Add(result, term);
  }
  return result;
}

}  // namespace kiln::compiler
