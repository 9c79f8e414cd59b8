// SPDX-License-Identifier: Apache-2.0
#include "compiler/front/bounds.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>
#include <vector>

#include "compiler/analysis/facts.h"
#include "compiler/analysis/leaves.h"
#include "ir/expr/numeric.h"
#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::VarId;

// Values of variables in one iteration, by variable.
using Iteration = std::map<VarId, int64_t>;

// For an index of more variables than this, the iterations tried have all variables but one at the same end.
constexpr size_t kMaxCrossed = 4;

// `count` elements from `first` on, along one dimension of a buffer.
struct Reach {
  BufferId buffer;
  size_t dim;
  ExprId first;
  int64_t count;
};

struct Outside {
  Iteration at;
  int64_t first;
};

class Checker {
 public:
  Checker(ir::Module& module, ir::Diagnostics& diagnostics) : module_(module), diagnostics_(diagnostics) {}

  void Run(ir::Kernel& kernel) {
    Facts facts(module_);
    facts.EnterKernel(kernel);
    certain_ = std::ranges::all_of(kernel.grid, [&](ExprId extent) { return module_.exprs.ConstInt(extent).value_or(0) > 0; });
    Visit(kernel.body, facts);
  }

  // Of tensors that nothing reads outside of their shape: copies need not look for it.
  void DropPads() {
    for (uint32_t id = 0; id < module_.buffers.size(); ++id)
      if (module_.buffers[id].pad_value && !padded_.contains(BufferId(id))) module_.buffers[id].pad_value.reset();
  }

 private:
  void Visit(const ir::Block& block, Facts facts) {
    for (const ir::Stmt& stmt : block) {
      stmt_ = &stmt;
      Check(stmt, facts);
      std::visit(ir::Overloaded{[&](const ir::For& op) { VisitLoop(op, facts); }, [&](const ir::While& op) { VisitUncertain(op.body, facts); },
                                [&](const ir::If& op) { VisitBranch(op, facts); }, [&](const ir::Let& op) { facts.Bind(op); },
                                [&](const ir::Assume& op) { facts.Assume(op.cond); },
                                ir::Ignored<ir::Alloc, ir::Store, ir::Copy, ir::Gemm, ir::Mma, ir::Call, ir::AnyElementwise, ir::Reduce, ir::Atomic,
                                            ir::Barrier, ir::Break, ir::Continue, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit,
                                            ir::AsyncWait, ir::RingStep, ir::PairSum, ir::StreamSum>{}},
                 stmt.op);
    }
  }

  void VisitLoop(const ir::For& loop, const Facts& facts) {
    Facts inner = facts;
    inner.EnterLoop(loop);
    const bool runs = std::ranges::all_of(loop.extents, [&](ExprId extent) { return module_.exprs.ConstInt(extent).value_or(0) > 0; });
    if (!runs || LeavesLoop(loop.body)) return VisitUncertain(loop.body, inner);
    const size_t before = counted_.size();
    for (VarId var : loop.vars) counted_.push_back(var);
    const ir::For* outer = std::exchange(parallel_, loop.kind == ir::LoopKind::kParallel ? &loop : parallel_);
    Visit(loop.body, inner);
    parallel_ = outer;
    counted_.resize(before);
  }

  // Statements that may not run are never outside for certain. Fragments grow for them all the same.
  void VisitUncertain(const ir::Block& block, const Facts& facts) {
    const bool outer = std::exchange(certain_, false);
    Visit(block, facts);
    certain_ = outer;
  }

  void VisitBranch(const ir::If& branch, const Facts& facts) {
    Facts inner = facts;
    inner.Assume(branch.cond);
    guards_.push_back({branch.cond, true});
    Visit(branch.then_body, inner);
    guards_.back().holds = false;
    Visit(branch.else_body, facts);
    guards_.pop_back();
  }

  void Check(const ir::Stmt& stmt, const Facts& facts) {
    ir::ForEachPlace(stmt.op, [&](BufferId buffer, const std::vector<ExprId>& indices, const std::vector<int64_t>* extents) {
      for (size_t d = 0; d < indices.size(); ++d) Check({buffer, d, indices[d], extents != nullptr ? (*extents)[d] : 1}, facts);
    });
    seen_.clear();
    ir::ForEachExpr(stmt.op, [&](ExprId id) { Loads(id, facts); });
  }

  void Loads(ExprId id, const Facts& facts) {
    if (guards_.empty() && !seen_.insert(ir::Index(id)).second) return;
    const ir::ExprNode node = module_.exprs[id];
    const auto under = [&](ExprId guard, bool holds, ExprId arg) {
      guards_.push_back({guard, holds});
      Facts inner = facts;
      if (holds) inner.Assume(guard);
      Loads(arg, inner);
      guards_.pop_back();
    };
    if (!HoldsLoad(id)) return;
    if (ir::Chooses(node.op)) {
      Loads(node.args[0], facts), under(node.args[0], true, node.args[1]), under(node.args[0], false, node.args[2]);
    } else if (node.op == ExprOp::kAnd || node.op == ExprOp::kOr) {
      Loads(node.args[0], facts), under(node.args[0], node.op == ExprOp::kAnd, node.args[1]);
    } else {
      for (ExprId arg : node.Args()) Loads(arg, facts);
    }
    if (node.op != ExprOp::kLoad) return;
    for (size_t d = 0; d < node.Args().size(); ++d) Check({BufferId(node.ref), d, node.Args()[d], 1}, facts);
  }

  bool HoldsLoad(ExprId id) {
    if (const auto it = holds_load_.find(ir::Index(id)); it != holds_load_.end()) return it->second;
    const ir::ExprNode& node = module_.exprs[id];
    const bool holds = node.op == ExprOp::kLoad || std::ranges::any_of(node.Args(), [&](ExprId arg) { return HoldsLoad(arg); });
    return holds_load_[ir::Index(id)] = holds;
  }

  bool IsInside(const Reach& reach, const Facts& facts) const {
    const ExprId size = module_[reach.buffer].shape[reach.dim];
    return facts.Inside(reach.first, reach.count, size) || (reach.count == 1 && facts.CountsTo(reach.first, size));
  }

  void Check(const Reach& reach, const Facts& facts) {
    const ir::Buffer& buffer = module_[reach.buffer];
    if (buffer.space == ir::Space::kGlobal) {
      if (buffer.pad_value && !IsInside(reach, facts)) padded_.insert(reach.buffer);
      return CheckWidth(reach, facts);
    }
    if (buffer.space == ir::Space::kBarrier) return;
    if (facts.Inside(reach.first, reach.count, buffer.shape[reach.dim]) || Grows(reach)) return;
    if (!certain_) return;
    if (const std::optional<Outside> outside = FindOutside(reach, facts)) Report(reach, *outside);
  }

  // Whether the fragment, indexed by a parallel loop's variable alone, can get an element for each iteration.
  bool Grows(const Reach& reach) {
    ir::Buffer& buffer = module_[reach.buffer];
    const ir::ExprNode& index = module_.exprs[reach.first];
    if (buffer.space != ir::Space::kFragment || parallel_ == nullptr || reach.count != 1 || index.op != ExprOp::kVar || !guards_.empty())
      return false;
    const auto var = std::ranges::find(parallel_->vars, VarId(index.ref));
    if (var == parallel_->vars.end()) return false;
    const ExprId wanted = parallel_->extents[size_t(var - parallel_->vars.begin())];
    const auto extent = module_.exprs.ConstInt(wanted);
    if (!extent) return false;
    diagnostics_.Warning(
        fmt::format("%{} has {} elements along dimension {} and a parallel loop of {} iterations indexes it by its variable: it gets "
                    "{} there",
                    ir::Names(module_).Of(reach.buffer), *module_.exprs.ConstInt(buffer.shape[reach.dim]), reach.dim, *extent, *extent),
        "allocate it with as many elements as the loop has iterations", stmt_->loc);
    buffer.shape[reach.dim] = module_.exprs.Int(*extent);
    return true;
  }

  // Warns of an index of a tensor that certainly overflows its type.
  void CheckWidth(const Reach& reach, const Facts& facts) {
    const ir::DType type = module_.exprs.Type(reach.first);
    const Range range = facts.RangeOf(reach.first);
    if (!certain_ || ir::Bits(type) >= 64 || range.min > ir::MinOf(type) || range.max < ir::MaxOf(type)) return;
    const auto overflows = [&](const Iteration& at) -> std::optional<int64_t> {
      const std::optional<int64_t> first = Exact(reach.first, at), last = Sum(first, reach.count - 1);
      return first && last && (*first < ir::MinOf(type) || *last > ir::MaxOf(type)) ? first : std::nullopt;
    };
    const std::optional<Outside> outside = Find(reach, facts, overflows);
    if (!outside || !reported_.insert(stmt_).second) return;
    diagnostics_.Warning(fmt::format("index {} of dimension {} of %{}, where {}, is no number of {}: which element it names is not specified",
                                     outside->first, reach.dim, ir::Names(module_).Of(reach.buffer), Place(outside->at), ir::Name(type)),
                         "compute it in 64 bits, as T.int64(i) * n", stmt_->loc);
  }

  // What sums and products would be in a type that holds them; nullopt where 64 bits do not.
  std::optional<int64_t> Exact(ExprId id, const Iteration& at) {
    const ir::ExprNode node = module_.exprs[id];
    if (node.op != ExprOp::kAdd && node.op != ExprOp::kSub && node.op != ExprOp::kMul) return scratch_->exprs.ConstInt(At(id, at));
    const std::optional<int64_t> a = Exact(node.args[0], at), b = Exact(node.args[1], at);
    int64_t result = 0;
    if (!a || !b) return std::nullopt;
    const bool over = node.op == ExprOp::kAdd   ? __builtin_add_overflow(*a, *b, &result)
                      : node.op == ExprOp::kSub ? __builtin_sub_overflow(*a, *b, &result)
                                                : __builtin_mul_overflow(*a, *b, &result);
    return over ? std::nullopt : std::optional(result);
  }

  static std::optional<int64_t> Sum(std::optional<int64_t> a, int64_t b) {
    int64_t result = 0;
    return !a || __builtin_add_overflow(*a, b, &result) ? std::nullopt : std::optional(result);
  }

  // --- an iteration that certainly runs and reaches outside ---

  std::optional<Outside> FindOutside(const Reach& reach, const Facts& facts) {
    const int64_t extent = *module_.exprs.ConstInt(module_[reach.buffer].shape[reach.dim]);
    return Find(reach, facts, [&](const Iteration& at) -> std::optional<int64_t> {
      const std::optional<int64_t> first = scratch_->exprs.ConstInt(At(reach.first, at));
      return first && (*first < 0 || *first > extent - reach.count) ? first : std::nullopt;
    });
  }

  // `is_outside` gives the index in an iteration if it is outside there.
  std::optional<Outside> Find(const Reach& reach, const Facts& facts, auto&& is_outside) {
    std::set<VarId> vars;
    Variables(reach.first, vars);
    for (const Guard& guard : guards_) Variables(guard.cond, vars);
    std::vector<std::pair<VarId, Range>> ranges;
    for (VarId var : vars) {
      const Range range = facts.RangeOf(module_.VarRef(var));
      const auto kind = module_[var].kind;
      const bool counts = kind == ir::VarKind::kThread || kind == ir::VarKind::kBlock || std::ranges::count(counted_, var) > 0;
      if (!counts || range.min <= -kUnbounded || range.max >= kUnbounded || range.min > range.max) return std::nullopt;
      ranges.emplace_back(var, range);
    }
    if (!scratch_) scratch_ = module_;
    for (const Iteration& at : Corners(ranges)) {
      const std::optional<int64_t> first = is_outside(at);
      if (first && Runs(at)) return Outside{at, *first};
    }
    return std::nullopt;
  }

  void Variables(ExprId id, std::set<VarId>& vars) const {
    std::vector<ExprId> open{id};
    std::unordered_set<uint32_t> seen;
    while (!open.empty()) {
      const ExprId next = open.back();
      open.pop_back();
      if (!seen.insert(ir::Index(next)).second) continue;
      const ir::ExprNode& node = module_.exprs[next];
      if (node.op == ExprOp::kVar) vars.insert(VarId(node.ref));
      open.insert(open.end(), node.Args().begin(), node.Args().end());
    }
  }

  static std::vector<Iteration> Corners(const std::vector<std::pair<VarId, Range>>& ranges) {
    std::vector<Iteration> corners;
    const auto add = [&](auto&& is_last) {
      Iteration at;
      for (size_t v = 0; v < ranges.size(); ++v) at[ranges[v].first] = is_last(v) ? ranges[v].second.max : ranges[v].second.min;
      corners.push_back(std::move(at));
    };
    if (ranges.size() <= kMaxCrossed) {
      for (size_t bits = 0; bits < size_t{1} << ranges.size(); ++bits) add([&](size_t v) { return (bits >> v & 1) != 0; });
      return corners;
    }
    add([](size_t) { return false; });
    add([](size_t) { return true; });
    for (size_t one = 0; one < ranges.size(); ++one) {
      add([&](size_t v) { return v == one; });
      add([&](size_t v) { return v != one; });
    }
    return corners;
  }

  // `id` in that iteration, folded.
  ExprId At(ExprId id, const Iteration& at) {
    return scratch_->exprs.Rewrite(id, [&](ExprId leaf) -> std::optional<ExprId> {
      const ir::ExprNode& node = scratch_->exprs[leaf];
      const auto it = node.op == ExprOp::kVar ? at.find(VarId(node.ref)) : at.end();
      return it == at.end() ? std::nullopt : std::optional(scratch_->exprs.Int(it->second, node.dtype));
    });
  }

  bool Runs(const Iteration& at) {
    return std::ranges::all_of(guards_, [&](const Guard& guard) { return scratch_->exprs.ConstInt(At(guard.cond, at)) == int64_t(guard.holds); });
  }

  void Report(const Reach& reach, const Outside& outside) {
    if (!reported_.insert(stmt_).second) return;
    const ir::Names names(module_);
    const std::string place = outside.at.empty() ? "" : ", where " + Place(outside.at);
    const int64_t extent = *module_.exprs.ConstInt(module_[reach.buffer].shape[reach.dim]);
    const std::string what =
        reach.count == 1 ? fmt::format("index {}", outside.first) : fmt::format("elements {} to {}", outside.first, outside.first + reach.count - 1);
    diagnostics_.Error(fmt::format("{} of dimension {} of %{}, whose extent is {}{}", what, reach.dim, names.Of(reach.buffer), extent, place),
                       "keep it inside, make the buffer larger, or put the access under an if", stmt_->loc, ir::PrintStmt(module_, *stmt_));
  }

  std::string Place(const Iteration& at) const {
    const ir::Names names(module_);
    std::vector<std::string> where;
    for (const auto& [var, value] : at) where.push_back(fmt::format("{} = {}", names.Of(var), value));
    return fmt::format("{}", fmt::join(where, ", "));
  }

  struct Guard {
    ExprId cond;
    bool holds;
  };

  ir::Module& module_;
  std::optional<ir::Module> scratch_;  // whose pool takes what iterations compute
  ir::Diagnostics& diagnostics_;
  const ir::Stmt* stmt_ = nullptr;
  const ir::For* parallel_ = nullptr;
  bool certain_ = true;         // the statement runs, if its guards hold
  std::vector<VarId> counted_;  // of loops around that run from end to end
  std::vector<Guard> guards_;   // of branches and selects around
  std::unordered_set<uint32_t> seen_;
  std::map<uint32_t, bool> holds_load_;
  std::set<const ir::Stmt*> reported_;
  std::set<BufferId> padded_;  // tensors with a pad value that some access may read
};

}  // namespace

ir::Result Bounds(ir::Module& module, const Context&, ir::Diagnostics& diagnostics) {
  const size_t errors = diagnostics.errors();
  Checker checker(module, diagnostics);
  for (ir::Kernel& kernel : module.kernels) checker.Run(kernel);
  if (diagnostics.errors() > errors) return std::unexpected(ir::Failed{});
  checker.DropPads();
  return {};
}

}  // namespace kiln::compiler
