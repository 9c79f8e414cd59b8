// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/split_ranges.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <optional>
#include <set>
#include <vector>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/uniform.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/known_branches.h"
#include "compiler/rewrite/repeat.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/arithmetic.h"
#include "compiler/rules/gemm.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::ExprId;
using ir::ExprOp;
using ir::Stmt;

// A choice: a body is written twice or three times only if that saves so much of an iteration.
constexpr double kLeastSaved = 1.0 / 32;
constexpr int64_t kFewIterations = 3;

// Whether the body may stand in the program several times. Not if the loop may end before its count, which would then end one of its parts, nor
// if it declares a buffer.
bool MayRepeat(const Block& body) {
  bool may = true;
  ir::Walk(body, [&](const Stmt& stmt) { may &= !std::holds_alternative<ir::Break>(stmt.op) && !std::holds_alternative<ir::Alloc>(stmt.op); });
  return may;
}

bool IsParallel(const Stmt& stmt) {
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  return loop != nullptr && loop->kind == ir::LoopKind::kParallel && loop->layout;
}

class Splitter {
 public:
  Splitter(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Run() {
    Known known{Facts(module_), Facts(module_)};
    ordinary_ = AssumeOrdinary(module_, kernel_, known.sized);
    known.sized.EnterKernel(kernel_);
    known.always.EnterKernel(kernel_);
    Visit(kernel_.body, std::move(known));
  }

 private:
  // What holds in any case, and what holds for tensors of ordinary sizes, whose index arithmetic never wraps.
  struct Known {
    Facts always, sized;
    void Apply(const auto& step) { step(always), step(sized); }
  };

  // The iterations in which all masks of a body hold: from the largest of `from` to one before the smallest of `until`.
  struct Ranges {
    std::vector<ExprId> from, until;
    bool always = true;  // whatever the sizes of tensors
    bool none() const { return from.empty() && until.empty(); }
  };

  void Visit(Block& block, Known known) {
    Block result;
    for (Stmt& stmt : block) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) known.Apply([&](Facts& facts) { facts.Bind(*let); });
      if (const auto* assume = std::get_if<ir::Assume>(&stmt.op)) known.Apply([&](Facts& facts) { facts.Assume(assume->cond); });
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) TakeKnown(*loop, known.always);
      if (IsParallel(stmt)) Unmask(*loop, known.always);
      if (Block* taken = TakenBranch(module_, known.always, stmt)) {
        Block body = std::move(*taken);
        Visit(body, known);
        std::ranges::move(body, std::back_inserter(result));
        continue;
      }
      if (auto* branch = std::get_if<ir::If>(&stmt.op)) Visit(branch->then_body, known), Visit(branch->else_body, known);
      if (auto* repeat = std::get_if<ir::While>(&stmt.op)) Visit(repeat->body, known);
      if (loop != nullptr && loop->kind != ir::LoopKind::kParallel) {
        Known inside = known;
        inside.Apply([&](Facts& facts) { facts.EnterLoop(*loop); });
        Visit(loop->body, inside);
        if (std::optional<Block> parts = Divide(*loop, inside, stmt.loc)) {
          std::ranges::move(*parts, std::back_inserter(result));
          continue;
        }
      }
      result.push_back(std::move(stmt));
    }
    block = std::move(result);
  }

  // Calls fn(condition, sums) for each select in what the loop stores whose condition has a sum for each comparison (HoldsEverywhere).
  template <typename Fn>
  void ForEachMask(const ir::For& loop, const Facts& facts, Fn&& fn) {
    Facts inside = facts;
    inside.EnterLoop(loop);
    std::set<ExprId> seen;
    const auto visit = [&](const auto& self, ExprId id) -> void {
      if (!seen.insert(id).second) return;
      const ir::ExprNode node = module_.exprs[id];
      if (ir::Chooses(node.op))
        if (const auto sums = HoldsEverywhere(module_, inside, node.args[0], loop)) fn(node.args[0], *sums);
      for (ExprId arg : node.Args()) self(self, arg);
    };
    for (const Stmt& stmt : loop.body)
      if (const auto* store = std::get_if<ir::Store>(&stmt.op)) visit(visit, store->value);
  }

  // The loop's values with the conditions replaced by true.
  void Assume(ir::For& loop, const std::set<ExprId>& conditions) {
    if (conditions.empty()) return;
    const auto rebuilt = [&](const auto& self, ExprId id) -> ExprId {
      ir::ExprNode node = module_.exprs[id];
      if (ir::Chooses(node.op) && conditions.contains(node.args[0])) return self(self, node.args[1]);
      for (int i = 0; i < node.arg_count; ++i) node.args[size_t(i)] = self(self, node.args[size_t(i)]);
      return node.arg_count == 0 ? id : module_.exprs.Simplified(node);
    };
    for (Stmt& stmt : loop.body)
      if (auto* store = std::get_if<ir::Store>(&stmt.op)) store->value = rebuilt(rebuilt, store->value);
  }

  static bool Hold(const Facts& facts, const std::vector<Linear>& sums) {
    return std::ranges::all_of(sums, [&](const Linear& sum) { return RangeOf(facts, sum).min >= 0; });
  }

  // Removes the masks that hold here in any case.
  void Unmask(ir::For& loop, const Facts& facts) {
    std::set<ExprId> always;
    ForEachMask(loop, facts, [&](ExprId condition, const std::vector<Linear>& sums) {
      if (Hold(facts, sums)) always.insert(condition);
    });
    Assume(loop, always);
  }

  // The same of the conditions of its statements. Stores alone go by vectors under a condition, too.
  void TakeKnown(ir::For& loop, const Facts& facts) {
    Facts inside = facts;
    inside.EnterLoop(loop);
    Block body;
    for (Stmt& stmt : loop.body) {
      auto* branch = std::get_if<ir::If>(&stmt.op);
      const bool stores =
          branch != nullptr && std::ranges::all_of(branch->then_body, [](const Stmt& inner) { return ir::IsOneOf<ir::Store>(inner.op); });
      const auto sums = branch == nullptr || stores ? std::nullopt : HoldsEverywhere(module_, inside, branch->cond, loop);
      if (!sums || !Hold(facts, *sums)) {
        body.push_back(std::move(stmt));
      } else {
        std::ranges::move(branch->then_body, std::back_inserter(body));
      }
    }
    loop.body = std::move(body);
  }

  // The parts that stand in the loop's place, if it is worth dividing. `known`: inside of it.
  std::optional<Block> Divide(const ir::For& loop, const Known& known, ir::SourceLoc loc) {
    if (loop.kind != ir::LoopKind::kSerial || !MayRepeat(loop.body)) return std::nullopt;
    if (module_.exprs.ConstInt(loop.extents[0]).value_or(kFewIterations) < kFewIterations) return std::nullopt;
    Ranges ranges;
    std::vector<std::set<ExprId>> conditions(loop.body.size());  // to assume, of each statement
    double saved = 0, cycles = 0;
    for (size_t i = 0; i < loop.body.size(); ++i) {
      const Stmt& stmt = loop.body[i];
      if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) cycles += CyclesOf(*gemm, *context_.target);
      if (!IsParallel(stmt)) continue;
      const double before = Cycles(stmt);
      cycles += before;
      const auto& inner = std::get<ir::For>(stmt.op);
      ForEachMask(inner, known.sized, [&](ExprId condition, const std::vector<Linear>& sums) {
        if (!AddTo(ranges, loop, known.sized, sums)) return;
        conditions[i].insert(condition);
        ranges.always = ranges.always && HoldsAlways(inner, loop, known.always, condition);
      });
      if (conditions[i].empty()) continue;
      Stmt open = stmt;
      Assume(std::get<ir::For>(open.op), conditions[i]);
      saved += before - Cycles(open);
    }
    if (ranges.none() || saved < kLeastSaved * cycles) return std::nullopt;
    kernel_.decisions.push_back({"split_ranges", std::nullopt,
                                 fmt::format("loop over {}: iterations without masks apart", module_[loop.vars[0]].name),
                                 fmt::format("saves {:.0f} of {:.0f} cycles in each of them", saved, cycles), loc});
    return Parts(loop, ranges, conditions, loc);
  }

  double Cycles(const Stmt& stmt) const { return ArithmeticCycles(module_, kernel_, stmt, *context_.target); }

  ExprId Int(int64_t value) { return module_.exprs.Int(value); }
  ExprId Made(ExprOp op, ExprId a, ExprId b) { return module_.exprs.Make(op, {a, b}); }

  // Adds where sums that grow or fall with the loop's variable alone become 0. False, and nothing is added, if some sum depends on it otherwise or
  // not at all: whether such a mask holds is no matter of the iteration.
  bool AddTo(Ranges& ranges, const ir::For& loop, const Facts& facts, const std::vector<Linear>& sums) {
    std::set<ir::VarId> inside{loop.vars[0]};  // have no value in front of the loop
    for (const Stmt& stmt : loop.body)
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) inside.insert(let->var);
    Ranges found;
    bool moves = false;
    for (Linear sum : sums) {
      const ExprId own = module_.VarRef(loop.vars[0]);
      const int64_t step = sum.Coefficient(own);
      sum.terms.erase(ir::Index(own));
      for (const auto& [term, coefficient] : sum.terms)
        if (ContainsVar(module_.exprs, ExprId(term), inside)) return false;
      const Range rest = RangeOf(facts, sum);
      if (rest.min < INT32_MIN / 2 || rest.max > INT32_MAX / 2) return false;
      if (step == 0) {
        if (rest.min < 0) return false;
        continue;
      }
      moves = true;
      if (step < 0) {  // holds while var ≤ sum / −step
        found.until.push_back(module_.exprs.Add(Made(ExprOp::kFloorDiv, Written(module_, sum), Int(-step)), Int(1)));
      } else {  // holds from var ≥ −sum / step
        Linear opposite;
        opposite.Add(sum, -1);
        opposite.constant += step - 1;
        found.from.push_back(Made(ExprOp::kFloorDiv, Written(module_, opposite), Int(step)));
      }
    }
    if (!moves) return false;
    ranges.from.insert(ranges.from.end(), found.from.begin(), found.from.end());
    ranges.until.insert(ranges.until.end(), found.until.begin(), found.until.end());
    return true;
  }

  // Whether the ranges of a condition are right for sizes that are not ordinary, too.
  bool HoldsAlways(const ir::For& inner, const ir::For& loop, const Facts& facts, ExprId condition) {
    Facts inside = facts;
    inside.EnterLoop(inner);
    const auto sums = HoldsEverywhere(module_, inside, condition, inner);
    Ranges same;
    return sums && AddTo(same, loop, facts, *sums);
  }

  Block Parts(const ir::For& loop, const Ranges& ranges, const std::vector<std::set<ExprId>>& conditions, ir::SourceLoc loc) {
    const ir::DType type = module_[loop.vars[0]].dtype;
    Block result;
    const bool reads = !ir::LoadsOf(module_.exprs, loop.extents[0]).empty();
    const ExprId count = reads ? Bound(loop.extents[0], "count", result, loc) : loop.extents[0];
    ExprId begin = module_.exprs.Int(0, type), end = count;
    for (ExprId from : ranges.from) begin = Made(ExprOp::kMax, begin, module_.exprs.Cast(type, from));
    // Of sizes that are not ordinary, the last part has all iterations, or the first where there is no last.
    const ExprId ordinary = ranges.always ? module_.exprs.Bool(true) : ordinary_;
    const bool last = !ranges.until.empty();
    if (!ranges.from.empty()) begin = Made(ExprOp::kMin, begin, count);
    if (!last) begin = module_.exprs.Select(ordinary, begin, count);
    if (!ranges.from.empty()) begin = Bound(begin, "open", result, loc);
    for (ExprId until : ranges.until) end = Made(ExprOp::kMin, end, module_.exprs.Cast(type, until));
    if (last) end = Bound(module_.exprs.Select(ordinary, Made(ExprOp::kMax, end, begin), begin), "masked", result, loc);
    Append(loop, module_.exprs.Int(0, type), begin, {}, result, loc);
    Append(loop, begin, end, conditions, result, loc);
    Append(loop, end, count, {}, result, loc);
    return result;
  }

  // A variable for the value, unless it is a constant or the count itself.
  ExprId Bound(ExprId value, std::string_view name, Block& result, ir::SourceLoc loc) {
    const ir::ExprNode& node = module_.exprs[value];
    if (node.arg_count == 0) return value;
    const ir::VarId var = FreshVar(module_, ir::VarKind::kLet, node.dtype, name);
    result.push_back({ir::Let{var, value}, loc});
    return module_.VarRef(var);
  }

  // The iterations from `begin` to one before `end`, with conditions that hold in all of them.
  void Append(const ir::For& loop, ExprId begin, ExprId end, const std::vector<std::set<ExprId>>& conditions, Block& result, ir::SourceLoc loc) {
    if (begin == end) return;
    Block part{{loop, loc}};
    auto& own = std::get<ir::For>(part[0].op);
    for (size_t i = 0; i < conditions.size(); ++i)
      if (!conditions[i].empty()) Assume(std::get<ir::For>(own.body[i].op), conditions[i]);
    part = Repeated(module_, part);
    auto& fresh = std::get<ir::For>(part[0].op);
    const ExprId number = module_.exprs.Add(module_.VarRef(fresh.vars[0]), begin);
    Substitute(module_, fresh.body, fresh.vars[0], number);
    fresh.extents[0] = module_.exprs.Sub(end, begin);
    // Of the loop's own count, which ranges of the two do not tell.
    const bool moved = number != module_.VarRef(fresh.vars[0]) && ir::LoadsOf(module_.exprs, loop.extents[0]).empty();
    if (moved) fresh.body.insert(fresh.body.begin(), {ir::Assume{Made(ExprOp::kLt, number, loop.extents[0])}, loc});
    result.push_back(std::move(part[0]));
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  ExprId ordinary_{};
};

}  // namespace

void SplitRanges(ir::Module& module, ir::Kernel& kernel, const Context& context) { Splitter(module, kernel, context).Run(); }

}  // namespace kiln::compiler
