// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/thread_sets.h"

#include <algorithm>
#include <array>
#include <unordered_map>

#include "ir/fold.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

// A condition of more operations is not computed for each thread.
constexpr uint64_t kMostNodes = 1024;

// The value that an expression has in one thread.
class Evaluation {
 public:
  Evaluation(const ir::Module& module, uint32_t thread) : module_(module), thread_(thread) {}

  std::optional<ExprNode> Of(ExprId id) {
    if (const auto it = known_.find(ir::Index(id)); it != known_.end()) return it->second;
    std::optional<ExprNode> value = Compute(module_.exprs[id]);
    known_.emplace(ir::Index(id), value);
    return value;
  }

 private:
  std::optional<ExprNode> Compute(const ExprNode& node) {
    if (node.op == ExprOp::kConstInt || node.op == ExprOp::kConstFloat) return node;
    if (node.op == ExprOp::kVar) {
      if (module_.vars[node.ref].kind != ir::VarKind::kThread) return std::nullopt;
      return ir::ConstIntNode(node.dtype, thread_);
    }
    if (node.op == ExprOp::kLoad) return std::nullopt;
    if (node.op == ExprOp::kAnd || node.op == ExprOp::kOr) return Join(node);
    std::array<std::optional<ExprNode>, ir::kMaxRank> values;
    std::array<const ExprNode*, ir::kMaxRank> args{};
    for (size_t i = 0; i < node.arg_count; ++i) {
      values[i] = Of(node.args[i]);
      if (!values[i]) return std::nullopt;
      args[i] = &*values[i];
    }
    if (node.op == ExprOp::kSelect) return values[0]->int_value != 0 ? values[1] : values[2];
    return ir::Fold(node, {args.data(), node.arg_count});
  }

  std::optional<ExprNode> Join(const ExprNode& node) {
    const bool settles = node.op == ExprOp::kOr;
    const std::optional<ExprNode> a = Of(node.args[0]), b = Of(node.args[1]);
    for (const auto* side : {&a, &b})
      if (*side && ((*side)->int_value != 0) == settles) return ir::ConstIntNode(node.dtype, settles);
    if (!a || !b) return std::nullopt;
    return ir::ConstIntNode(node.dtype, !settles);
  }

  const ir::Module& module_;
  const uint32_t thread_;
  std::unordered_map<uint32_t, std::optional<ExprNode>> known_;
};

}  // namespace

std::optional<ir::ThreadRange> ThreadSets::Where(ExprId cond, bool value, const ir::ThreadRange& among) const {
  const std::optional<Set> set = SetOf(cond, value, among);
  if (!set) return std::nullopt;
  const auto first = std::ranges::find(*set, true), last = std::find(first, set->end(), false);
  if (std::find(last, set->end(), true) != set->end()) return std::nullopt;
  return ir::ThreadRange{among.begin + uint32_t(first - set->begin()), among.begin + uint32_t(last - set->begin())};
}

std::optional<ThreadSets::Set> ThreadSets::SetOf(ExprId cond, bool value, const ir::ThreadRange& among) const {
  if (!divergence_.Differs(cond)) return Set(among.Count(), true);
  if (std::optional<Set> computed = Computed(cond, value, among)) return computed;
  const ExprNode& node = module_.exprs[cond];
  if (node.op == ExprOp::kNot) return SetOf(node.args[0], !value, among);
  // A thread sees "a and b" if it sees both, and "not (a or b)" if it sees neither. Bit operations on bools work the same way.
  if (node.op != (value ? ExprOp::kAnd : ExprOp::kOr) && node.op != (value ? ExprOp::kBitAnd : ExprOp::kBitOr)) return std::nullopt;
  std::optional<Set> a = SetOf(node.args[0], value, among);
  const std::optional<Set> b = SetOf(node.args[1], value, among);
  if (!a || !b) return std::nullopt;
  for (size_t i = 0; i < a->size(); ++i) (*a)[i] = (*a)[i] && (*b)[i];
  return a;
}

std::optional<ThreadSets::Set> ThreadSets::Computed(ExprId cond, bool value, const ir::ThreadRange& among) const {
  if (sizes_.Of(cond).nodes > kMostNodes) return std::nullopt;
  Set set;
  for (uint32_t thread = among.begin; thread < among.end; ++thread) {
    const std::optional<ExprNode> known = Evaluation(module_, thread).Of(cond);
    if (!known) return std::nullopt;
    set.push_back((known->int_value != 0) == value);
  }
  return set;
}

}  // namespace kiln::compiler
