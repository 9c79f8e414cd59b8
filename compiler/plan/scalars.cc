// SPDX-License-Identifier: Apache-2.0
#include "compiler/plan/scalars.h"

#include <algorithm>
#include <cstdint>

namespace kiln::compiler {
namespace {

using ir::ExprOp;

int64_t FloorDiv(int64_t a, int64_t b) { return a / b - (a % b != 0 && (a < 0) != (b < 0)); }

// Of + - and *; nothing where the result does not fit.
std::optional<int64_t> Combined(ExprOp op, int64_t a, int64_t b) {
  int64_t result = 0;
  const bool beyond = op == ExprOp::kAdd   ? __builtin_add_overflow(a, b, &result)
                      : op == ExprOp::kSub ? __builtin_sub_overflow(a, b, &result)
                                           : __builtin_mul_overflow(a, b, &result);
  return beyond ? std::nullopt : std::optional(result);
}

bool Divides(int64_t a, int64_t b) { return b != 0 && (b != -1 || a != INT64_MIN); }

}  // namespace

void Scalars::Set(ir::VarId var, int64_t value) {
  if (vars_.size() <= ir::Index(var)) vars_.resize(ir::Index(var) + 1);
  vars_[ir::Index(var)] = value;
  ++now_;
}

void Scalars::SetThread(int64_t number) {
  for (uint32_t id = 0; id < module_->vars.size(); ++id)
    if (module_->vars[id].kind == ir::VarKind::kThread) Set(ir::VarId(id), number);
}

std::optional<int64_t> Scalars::Of(ir::ExprId id) const {
  const ir::ExprNode& node = module_->exprs[id];
  if (node.op == ExprOp::kConstInt) return node.int_value;
  if (node.op == ExprOp::kVar) return node.ref < vars_.size() ? vars_[node.ref] : std::nullopt;
  if (known_.size() <= ir::Index(id)) known_.resize(module_->exprs.size());
  if (known_[ir::Index(id)].when != now_) known_[ir::Index(id)] = {now_, Compute(node)};
  return known_[ir::Index(id)].value;
}

std::optional<int64_t> Scalars::Compute(const ir::ExprNode& node) const {
  if (node.op == ExprOp::kLoad || node.op == ExprOp::kConstFloat || ir::IsFloat(node.dtype)) return std::nullopt;
  if (node.op == ExprOp::kSelect) {
    const auto chosen = Of(node.args[0]);
    return chosen ? Of(node.args[*chosen != 0 ? 1 : 2]) : std::nullopt;
  }
  if (node.arg_count == 0 || node.arg_count > 2) return std::nullopt;
  const auto first = Of(node.args[0]), second = node.arg_count == 2 ? Of(node.args[1]) : std::optional<int64_t>(0);
  if (!first || !second) return std::nullopt;
  const int64_t a = *first, b = *second;
  switch (node.op) {
    case ExprOp::kCast: return a;
    case ExprOp::kAdd:
    case ExprOp::kSub:
    case ExprOp::kMul: return Combined(node.op, a, b);
    case ExprOp::kDiv: return Divides(a, b) ? std::optional(a / b) : std::nullopt;
    case ExprOp::kMod: return Divides(a, b) ? std::optional(a % b) : std::nullopt;
    case ExprOp::kFloorDiv: return Divides(a, b) ? std::optional(FloorDiv(a, b)) : std::nullopt;
    case ExprOp::kFloorMod: return Divides(a, b) ? std::optional(a - b * FloorDiv(a, b)) : std::nullopt;
    case ExprOp::kMin: return std::min(a, b);
    case ExprOp::kMax: return std::max(a, b);
    case ExprOp::kNeg: return Combined(ExprOp::kSub, 0, a);
    case ExprOp::kAbs: return a < 0 ? Combined(ExprOp::kSub, 0, a) : a;
    case ExprOp::kBitAnd: return a & b;
    case ExprOp::kBitOr: return a | b;
    case ExprOp::kBitXor: return a ^ b;
    case ExprOp::kShl: return b < 0 || b > 62 ? std::nullopt : std::optional(int64_t(uint64_t(a) << b));
    case ExprOp::kShr: return b < 0 || b > 62 ? std::nullopt : std::optional(a >> b);
    case ExprOp::kAnd: return a != 0 && b != 0;
    case ExprOp::kOr: return a != 0 || b != 0;
    case ExprOp::kNot: return a == 0;
    case ExprOp::kEq: return a == b;
    case ExprOp::kNe: return a != b;
    case ExprOp::kLt: return a < b;
    case ExprOp::kLe: return a <= b;
    case ExprOp::kGt: return a > b;
    case ExprOp::kGe: return a >= b;
    default: return std::nullopt;
  }
}

}  // namespace kiln::compiler
