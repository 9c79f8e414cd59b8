// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/thread_sets.h"

#include <algorithm>
#include <array>
#include <iterator>
#include <set>
#include <span>
#include <unordered_map>

#include "ir/expr/fold.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprNode;
using ir::ExprOp;

// An expression of more operations, those of its lets among them, is not computed for each thread.
constexpr uint64_t kMostNodes = 1024;
// So many locals may turn out to differ on the way to one answer.
constexpr int kMostLocals = 16;

// The value that an expression has in one thread.
class Evaluation {
 public:
  Evaluation(const ir::Module& module, const Divergence& divergence, uint32_t thread) : module_(module), divergence_(divergence), thread_(thread) {}

  std::optional<ExprNode> Of(ExprId id) {
    const auto [it, first] = known_.emplace(ir::Index(id), std::nullopt);
    std::optional<ExprNode>& value = it->second;
    if (first && known_.size() <= kMostNodes) value = Compute(module_.exprs[id]);
    return value;
  }

 private:
  std::optional<ExprNode> Compute(const ExprNode& node) {
    if (node.op == ExprOp::kConstInt || node.op == ExprOp::kConstFloat) return node;
    if (node.op == ExprOp::kVar) {
      if (module_.vars[node.ref].kind == ir::VarKind::kThread) return ir::ConstIntNode(node.dtype, thread_);
      const std::optional<ExprId> let = divergence_.ValueOf(ir::VarId(node.ref));
      return let ? Of(*let) : std::nullopt;
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
  const Divergence& divergence_;
  uint32_t thread_;
  std::unordered_map<uint32_t, std::optional<ExprNode>> known_;
};

// Whether threads that come together agree on an expression: they compute one value from their numbers, or they agree on its operands. They
// came together to its lets, too, and to what wrote its locals. A local may be given what it held before, so it is taken at first that they
// agree on each, and then asked whether they agree on all that it is given.
class Agreement {
 public:
  Agreement(const ir::Module& module, const Divergence& divergence, const ir::ThreadRange& among)
      : module_(module), divergence_(divergence), among_(among) {
    for (uint32_t thread = among.begin; thread < among.end; ++thread) threads_.emplace_back(module, divergence, thread);
  }

  // On an expression, or on a local.
  bool On(auto id) {
    for (int rounds = 0; rounds < kMostLocals; ++rounds) {
      known_.clear();
      assumed_.clear();
      if (!Agree(id)) return false;
      if (AreGivenTogether()) return true;
    }
    return false;
  }

 private:
  bool Agree(ExprId id) {
    const auto [it, first] = known_.emplace(ir::Index(id), false);
    bool& agree = it->second;
    if (first && known_.size() <= kMostNodes) agree = Find(id);
    return agree;
  }

  bool Agree(ir::BufferId local) {
    if (!divergence_.IsWrittenApart(local, among_)) return true;
    if (apart_.contains(local)) return false;
    if (std::ranges::find(assumed_, local) == assumed_.end()) assumed_.push_back(local);
    return true;
  }

  bool Find(ExprId id) {
    if (!divergence_.Differs(id, among_) || ComputeOne(id)) return true;
    const ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kVar) {
      const std::optional<ExprId> let = divergence_.ValueOf(ir::VarId(node.ref));
      return let && Agree(*let);
    }
    if (node.op == ExprOp::kLoad && !Agree(ir::BufferId(node.ref))) return false;
    return std::ranges::all_of(node.Args(), [&](ExprId arg) { return Agree(arg); });
  }

  // Whether what was taken of locals holds. The first for which it does not is put aside.
  bool AreGivenTogether() {
    for (size_t i = 0; i < assumed_.size(); ++i) {  // which grows
      const ir::BufferId local = assumed_[i];
      if (std::ranges::all_of(divergence_.GivenTo(local), [&](const Divergence::Given& given) { return IsTogether(given); })) continue;
      apart_.insert(local);
      return false;
    }
    return true;
  }

  bool IsTogether(const Divergence::Given& given) {
    if (given.end <= among_.begin || among_.end <= given.begin) return true;
    return given.together && given.begin <= among_.begin && among_.end <= given.end &&
           std::ranges::all_of(given.exprs, [&](ExprId expr) { return Agree(expr); }) &&
           std::ranges::all_of(given.locals, [&](ir::BufferId local) { return Agree(local); });
  }

  bool ComputeOne(ExprId id) {
    const std::optional<ExprNode> first = threads_.front().Of(id);
    return first && std::ranges::all_of(threads_, [&](Evaluation& thread) { return thread.Of(id) == first; });
  }

  const ir::Module& module_;
  const Divergence& divergence_;
  const ir::ThreadRange among_;
  std::vector<Evaluation> threads_;
  std::unordered_map<uint32_t, bool> known_;
  std::vector<ir::BufferId> assumed_;
  std::set<ir::BufferId> apart_;
};

}  // namespace

bool ThreadSets::Agree(ExprId id, const ir::ThreadRange& among) const {
  if (!divergence_.Differs(id, among)) return true;
  return sizes_.Of(id).nodes <= kMostNodes && Agreement(module_, divergence_, among).On(id);
}

bool ThreadSets::Agree(ir::BufferId local, const ir::ThreadRange& among) const { return Agreement(module_, divergence_, among).On(local); }

std::optional<ir::ThreadRange> ThreadSets::Where(ExprId cond, bool value, const ir::ThreadRange& among) const {
  Set set(among.Count(), true);
  std::vector<Part> parts = PartsOf(cond, value);
  // A part matters only to the threads that see those before it, who may agree on it though others do not.
  ir::ThreadRange some = among;
  const auto narrow = [&](Part& part) {
    if (!Narrow(part, some, among, set)) return false;
    some = Span(set, among);
    return true;
  };
  while (std::erase_if(parts, narrow) > 0) {
  }
  if (!parts.empty() || std::ranges::count(set, true) != some.Count()) return std::nullopt;
  return some;
}

// A thread sees "a and b" if it sees both, and "not (a or b)" if it sees neither. Bit operations on bools work the same way.
std::vector<ThreadSets::Part> ThreadSets::PartsOf(ExprId cond, bool value) const {
  if (sizes_.Of(cond).nodes > kMostNodes) return {{cond, value}};
  std::vector<Part> parts, open{{cond, value}};
  while (!open.empty()) {
    const Part part = open.back();
    open.pop_back();
    const ExprNode& node = module_.exprs[part.cond];
    if (node.op == ExprOp::kNot) {
      open.push_back({node.args[0], !part.value});
    } else if (node.op == (part.value ? ExprOp::kAnd : ExprOp::kOr) || node.op == (part.value ? ExprOp::kBitAnd : ExprOp::kBitOr)) {
      open.push_back({node.args[1], part.value});
      open.push_back({node.args[0], part.value});
    } else {
      parts.push_back(part);
    }
  }
  return parts;
}

// From the first to the last thread of the set, which is one of `among`.
ir::ThreadRange ThreadSets::Span(const Set& set, const ir::ThreadRange& among) {
  const auto first = std::ranges::find(set, true);
  const auto last = std::find(set.rbegin(), std::make_reverse_iterator(first), true).base();
  return {among.begin + uint32_t(first - set.begin()), among.begin + uint32_t(last - set.begin())};
}

// Leaves the threads of the set, all of which are `some` of `among`, that see the part. False: it is not known which do.
bool ThreadSets::Narrow(Part& part, const ir::ThreadRange& some, const ir::ThreadRange& among, Set& set) const {
  if (!divergence_.Differs(part.cond, some)) return true;
  if (sizes_.Of(part.cond).nodes > kMostNodes) return false;
  for (uint32_t thread = among.begin; part.seen.size() < among.Count(); ++thread) {
    const std::optional<ExprNode> known = Evaluation(module_, divergence_, thread).Of(part.cond);
    part.seen.push_back(known ? std::optional((known->int_value != 0) == part.value) : std::nullopt);
  }
  const auto seen = std::span(part.seen).subspan(some.begin - among.begin, some.Count());
  if (!std::ranges::all_of(seen, &std::optional<bool>::has_value)) return false;
  for (size_t i = 0; i < seen.size(); ++i)
    if (!*seen[i]) set[some.begin - among.begin + i] = false;
  return true;
}

std::optional<int64_t> ThreadSets::At(ExprId id, uint32_t thread) const {
  if (!ir::IsInteger(module_.exprs.Type(id)) || sizes_.Of(id).nodes > kMostNodes) return std::nullopt;
  const std::optional<ExprNode> value = Evaluation(module_, divergence_, thread).Of(id);
  return value ? std::optional(value->int_value) : std::nullopt;
}

}  // namespace kiln::compiler
