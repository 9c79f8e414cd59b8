// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/growth.h"

#include <optional>

#include "compiler/analysis/contains.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprOp;

constexpr int kDeepest = 200;  // a choice: no loop's count is so deep an expression that matters

Growth Opposite(Growth growth) { return growth == Growth::kUp ? Growth::kDown : growth == Growth::kDown ? Growth::kUp : growth; }

// Of a function that never falls while either of its operands grows.
Growth Together(Growth a, Growth b) {
  if (a == Growth::kNone) return b;
  return b == Growth::kNone || a == b ? a : Growth::kUnknown;
}

// Whether threads of a block have values of their own.
bool TellsThreadsApart(const ir::Module& module, ir::ExprId id) {
  return Contains(module.exprs, id, [&](ir::ExprId part) {
    const ir::ExprNode& node = module.exprs[part];
    return node.op == ExprOp::kVar && module[ir::VarId(node.ref)].kind == ir::VarKind::kThread;
  });
}

}  // namespace

Growths::Growths(const ir::Module& module, const ir::Block& body) : module_(module) {
  ir::Walk(body, [&](const ir::Stmt& stmt) {
    const auto* let = std::get_if<ir::Let>(&stmt.op);
    if (let != nullptr && !TellsThreadsApart(module, let->value)) values_.emplace(let->var, let->value);
  });
}

Growth Growths::Of(ir::ExprId id, ir::VarId var, int depth) {
  if (depth > kDeepest) return Growth::kUnknown;
  if (const auto known = known_.find({id, var}); known != known_.end()) return known->second;
  const ir::ExprNode& node = module_.exprs[id];
  Growth growth = Growth::kUnknown;
  if (node.op != ExprOp::kVar) {
    growth = OfNode(node, var, depth + 1);
  } else if (ir::VarId(node.ref) == var) {
    growth = Growth::kUp;
  } else {
    const auto value = values_.find(ir::VarId(node.ref));
    growth = value == values_.end() ? Growth::kNone : Of(value->second, var, depth + 1);
  }
  return known_[{id, var}] = growth;
}

Growth Growths::OfNode(const ir::ExprNode& node, ir::VarId var, int depth) {
  if (node.op == ExprOp::kLoad) return Growth::kUnknown;
  bool occurs = false;
  for (ir::ExprId arg : node.Args()) occurs |= Of(arg, var, depth) != Growth::kNone;
  if (!occurs) return Growth::kNone;
  if (!ir::IsInteger(node.dtype)) return Growth::kUnknown;
  const Growth first = Of(node.args[0], var, depth), second = node.arg_count > 1 ? Of(node.args[1], var, depth) : Growth::kNone;
  switch (node.op) {
    case ExprOp::kAdd:
    case ExprOp::kMin:
    case ExprOp::kMax: return Together(first, second);
    case ExprOp::kSub: return Together(first, Opposite(second));
    case ExprOp::kCast: return first;
    case ExprOp::kNeg: return Opposite(first);
    case ExprOp::kMul:
    case ExprOp::kDiv:
    case ExprOp::kFloorDiv: {
      const std::optional<int64_t> factor = module_.exprs.ConstInt(node.args[1]);
      if (!factor || *factor == 0) return Growth::kUnknown;
      return *factor > 0 ? first : Opposite(first);
    }
    default: return Growth::kUnknown;
  }
}

}  // namespace kiln::compiler
