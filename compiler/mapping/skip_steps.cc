// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/skip_steps.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <iterator>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/producer_slice.h"
#include "compiler/analysis/uniform.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/repeat.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/roles.h"
#include "ir/expr/fold.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::Stmt;

// The constants that a thread's elements of fragments have, where all of one fragment's are the same.
using Constants = std::map<BufferId, ir::ExprNode>;

// Which fragments have constants behind an iteration in which no mask of `masks` holds, and what it read that it had not written before.
class Iteration {
 public:
  Iteration(const ir::Module& module, Constants before, const std::set<ExprId>& masks)
      : module_(module), before_(before), now_(std::move(before)), masks_(masks) {}

  // Whether the iteration leaves everything as it was, but what the next one writes before it reads it.
  bool ChangesNothing(const Block& body) {
    if (!std::ranges::all_of(body, [&](const Stmt& stmt) { return Follow(stmt); })) return false;
    return std::ranges::all_of(written_, [&](BufferId id) {
      const auto was = before_.find(id);
      const auto is = now_.find(id);
      const bool same = was != before_.end() && is != now_.end() && was->second == is->second;
      return same || !from_before_.contains(id);
    });
  }

 private:
  // False for what has effects beside fragments.
  bool Follow(const Stmt& stmt) {
    if (const auto* let = std::get_if<ir::Let>(&stmt.op)) NoteReads(let->value);
    if (ir::IsOneOf<ir::Let, ir::Assume, ir::RingStep>(stmt.op)) return true;
    if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) return copy->plan && copy->plan->ring;
    if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) return FollowProduct(*gemm);
    if (const auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) return FollowReduction(*reduce);
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    return loop != nullptr && loop->kind == ir::LoopKind::kParallel && FollowStores(*loop);
  }

  bool FollowStores(const ir::For& loop) {
    for (const Stmt& stmt : loop.body) {
      const auto* store = std::get_if<ir::Store>(&stmt.op);
      if (store == nullptr || module_[store->buffer].space != ir::Space::kFragment) return false;
      if (!CoversElements(module_, loop, store->buffer) || !IsOwnElement(module_, loop, store->indices)) return false;
      Write(store->buffer, ValueOf(store->value));
    }
    return true;
  }

  // A product's operands are finite where fast_math says so: -inf stays what it is, and zeros add nothing.
  bool FollowProduct(const ir::Gemm& gemm) {
    if (!IsWhole(gemm.c)) return false;
    const std::optional<ir::ExprNode> a = Read(gemm.a.buffer), b = Read(gemm.b.buffer);
    if (gemm.metadata) (void)Read(gemm.metadata->buffer);
    const std::optional<ir::ExprNode> sum = gemm.clear_accum ? std::optional(Zero(gemm.c.buffer)) : Read(gemm.c.buffer);
    const auto is_zero = [](const std::optional<ir::ExprNode>& value) { return value && ir::IsFloat(value->dtype) && value->FloatValue() == 0; };
    const bool stays = sum && ir::IsFloat(module_[gemm.c.buffer].dtype) && (is_zero(a) || is_zero(b) || std::isinf(sum->FloatValue()));
    Write(gemm.c.buffer, stays ? sum : std::nullopt);
    return true;
  }

  bool FollowReduction(const ir::Reduce& reduce) {
    if (reduce.scratch || reduce.cluster || !IsWhole(reduce.src) || !IsWhole(reduce.dst)) return false;
    std::optional<ir::ExprNode> value = Read(reduce.src.buffer);
    const std::optional<ir::ExprNode> old = reduce.clear ? value : Read(reduce.dst.buffer);
    if (value && old && ir::IsFloat(value->dtype)) {
      const double a = value->FloatValue(), b = old->FloatValue();
      if (reduce.kind == ir::ReduceKind::kMax || reduce.kind == ir::ReduceKind::kMin) {
        if ((reduce.kind == ir::ReduceKind::kMax) == (b > a)) value = old;
      } else if (reduce.kind != ir::ReduceKind::kSum || a != 0 || b != 0) {
        value.reset();
      }
    } else {
      value.reset();
    }
    Write(reduce.dst.buffer, value);
    return true;
  }

  bool IsWhole(const ir::Region& region) const {
    return module_[region.buffer].space == ir::Space::kFragment && region.extents == module_.ShapeOf(region.buffer);
  }

  ir::ExprNode Zero(BufferId of) const { return ir::ConstFloatNode(module_[of].dtype, 0); }

  std::optional<ir::ExprNode> Read(BufferId id) {
    if (!written_.contains(id)) from_before_.insert(id);
    const auto at = now_.find(id);
    return at == now_.end() ? std::nullopt : std::optional(at->second);
  }

  void NoteReads(ExprId id) {
    for (const ExprId load : ir::LoadsOf(module_.exprs, id)) (void)Read(BufferId(module_.exprs[load].ref));
  }

  void Write(BufferId id, std::optional<ir::ExprNode> value) {
    written_.insert(id);
    now_.erase(id);
    if (value) now_.emplace(id, *value);
  }

  std::optional<ir::ExprNode> ValueOf(ExprId id) {
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kConstFloat || node.op == ExprOp::kConstInt) return node;
    if (node.op == ExprOp::kLoad) {
      for (const ExprId index : node.Args()) NoteReads(index);
      return Read(BufferId(node.ref));
    }
    if (ir::Chooses(node.op) && masks_.contains(node.args[0])) {
      // Iterations whose masks hold read the other arm.
      NoteReads(node.args[0]), NoteReads(node.args[1]);
      return ValueOf(node.args[2]);
    }
    std::vector<ir::ExprNode> args;
    bool known = true;
    for (ExprId arg : node.Args()) {  // all of them: each may read what is from before
      const std::optional<ir::ExprNode> value = ValueOf(arg);
      known = known && value;
      if (value) args.push_back(*value);
    }
    if (!known) return std::nullopt;
    if (node.op == ExprOp::kExp2 || node.op == ExprOp::kExp2Ftz || node.op == ExprOp::kExp) return Power(node.dtype, args[0].FloatValue());
    // The last bit of a difference of products may be another one, where both are computed in one instruction.
    const bool sum = node.op == ExprOp::kAdd || node.op == ExprOp::kSub;
    const auto rounds = [&](size_t i) {
      return module_.exprs[node.args[i]].op == ExprOp::kMul && args[i].FloatValue() != 0 && std::isfinite(args[i].FloatValue());
    };
    if (sum && ir::IsFloat(node.dtype) && (rounds(0) || rounds(1)) && std::isfinite(args[0].FloatValue()) && std::isfinite(args[1].FloatValue()))
      return std::nullopt;
    std::vector<const ir::ExprNode*> pointers;
    for (const ir::ExprNode& arg : args) pointers.push_back(&arg);
    return ir::Fold(node, pointers);
  }

  static std::optional<ir::ExprNode> Power(ir::DType type, double exponent) {
    if (exponent == 0) return ir::ConstFloatNode(type, 1);
    return std::isinf(exponent) && exponent < 0 ? std::optional(ir::ConstFloatNode(type, 0)) : std::nullopt;
  }

  const ir::Module& module_;
  const Constants before_;
  Constants now_;
  const std::set<ExprId>& masks_;
  std::set<BufferId> written_, from_before_;
};

class Skipper {
 public:
  Skipper(ir::Module& module, ir::Kernel& kernel) : module_(module), kernel_(kernel) {}

  void Run() {
    Facts facts(module_);
    ordinary_ = AssumeOrdinary(module_, kernel_, facts);
    facts.EnterKernel(kernel_);
    Visit(kernel_.body, facts);
  }

 private:
  void Visit(Block& block, Facts facts) {
    Block result;
    for (Stmt& stmt : block) {
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) facts.Bind(*let);
      if (const auto* assume = std::get_if<ir::Assume>(&stmt.op)) facts.Assume(assume->cond);
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kSerial) {
        Facts inside = facts;
        inside.EnterLoop(*loop);
        if (const std::optional<ExprId> first = FirstOf(*loop, inside, result)) {
          Skip(*loop, *first, result, stmt.loc);
        } else {
          Visit(loop->body, inside);
        }
      }
      result.push_back(std::move(stmt));
    }
    block = std::move(result);
  }

  // The first iteration in which the group has something to do, if groups differ in it.
  std::optional<ExprId> FirstOf(const ir::For& loop, const Facts& facts, const Block& before) {
    const bool rings = std::ranges::any_of(loop.body, [](const Stmt& stmt) { return std::holds_alternative<ir::RingStep>(stmt.op); });
    if (!rings || !ir::LoadsOf(module_.exprs, loop.extents[0]).empty()) return std::nullopt;
    std::set<ir::VarId> inside{loop.vars[0]};  // have no value in front of the loop
    for (const Stmt& stmt : loop.body)
      if (const auto* let = std::get_if<ir::Let>(&stmt.op)) inside.insert(let->var);
    std::optional<ExprId> first;
    std::set<ExprId> masks;
    for (const Stmt& stmt : loop.body) {
      const auto* each = std::get_if<ir::For>(&stmt.op);
      if (each == nullptr || each->kind != ir::LoopKind::kParallel || !each->layout || each->body.size() != 1) continue;
      const auto* store = std::get_if<ir::Store>(&each->body[0].op);
      if (store == nullptr || !ir::Chooses(module_.exprs[store->value].op)) continue;
      const ExprId mask = module_.exprs[store->value].args[0];
      const std::optional<ExprId> own = FirstOfMask(inside, loop.vars[0], *each, mask, facts);
      if (!own) continue;
      masks.insert(mask);
      // Of several masks, one alone says when the group begins: an iteration is skipped where none holds.
      first = first ? Made(ExprOp::kMin, *first, *own) : *own;
    }
    if (!first || !Iteration(module_, ConstantsOf(before), masks).ChangesNothing(loop.body)) return std::nullopt;
    const ExprId count = loop.extents[0];
    const ExprId last = Made(ExprOp::kMax, module_.exprs.Sub(count, Int(1)), Int(0));
    return Made(ExprOp::kMin, Made(ExprOp::kMax, module_.exprs.Select(ordinary_, *first, Int(0)), Int(0)), last);
  }

  // Where the first of the mask's comparisons begins to hold for some of the group's elements, of those that differ between groups.
  // `own`: the serial loop's variable and those that its body binds.
  std::optional<ExprId> FirstOfMask(std::set<ir::VarId> own, ir::VarId step, const ir::For& loop, ExprId mask, const Facts& facts) {
    Facts inside = facts;
    inside.EnterLoop(loop);
    own.insert(loop.vars.begin(), loop.vars.end());
    const auto sums = SumsOf(module_, inside, mask);
    if (!sums) return std::nullopt;
    std::optional<ExprId> first;
    for (Linear sum : *sums) {
      const int64_t pace = sum.Coefficient(module_.VarRef(step));
      if (pace <= 0) continue;
      sum.terms.erase(ir::Index(module_.VarRef(step)));
      ExprId rest = Int(0);
      int64_t differ = 0;
      for (size_t v = 0; v < loop.vars.size(); ++v) {
        const int64_t factor = sum.Coefficient(module_.VarRef(loop.vars[v]));
        if (factor == 0) continue;
        sum.terms.erase(ir::Index(module_.VarRef(loop.vars[v])));
        const Elements elements = ElementsOf(loop.layout->dim(int(v)));
        differ += std::abs(factor) * elements.apart;
        rest = module_.exprs.Add(rest, module_.exprs.Mul(elements.first, Int(factor)));
        sum.constant += std::max<int64_t>(0, factor) * elements.span;
      }
      const auto is_known = [&](const auto& term) {
        return !ContainsVar(module_.exprs, ExprId(term.first), own) && ir::LoadsOf(module_.exprs, ExprId(term.first)).empty();
      };
      if (!std::ranges::all_of(sum.terms, is_known)) continue;
      const Range range = RangeOf(inside, sum);
      if (differ <= pace || range.min < INT32_MIN / 2 || range.max > INT32_MAX / 2) continue;
      Linear opposite;
      opposite.Add(sum, -1);
      opposite.constant += pace - 1;
      const ExprId found = Made(ExprOp::kFloorDiv, module_.exprs.Sub(Written(module_, opposite), rest), Int(pace));
      first = first ? Made(ExprOp::kMax, *first, found) : found;
    }
    return first;
  }

  // How many of a digit's values a group holds: those next to each other, where each group holds as many; else all count.
  static int64_t WithinGroup(const ir::Digit& digit) {
    const int64_t group = kGroupThreads, smaller = std::min<int64_t>(digit.stride, group), larger = std::max<int64_t>(digit.stride, group);
    const int64_t within = std::clamp<int64_t>(group / digit.stride, 1, digit.size);
    return digit.place != ir::Place::kThread || larger % smaller != 0 || digit.size % within != 0 ? digit.size : within;
  }

  // The indices of one dimension that a group holds: from `first`, which the thread's number tells, over `span`; those of two groups are at most
  // `apart` from each other.
  struct Elements {
    ExprId first;
    int64_t span = 0, apart = 0;
  };

  Elements ElementsOf(const std::vector<ir::Digit>& digits) {
    Elements elements{Int(0)};
    int64_t weight = 1;
    for (const ir::Digit& digit : digits) {
      const int64_t within = WithinGroup(digit);
      elements.span += (within - 1) * weight;
      if (within < digit.size) {
        const int64_t stride = std::max<int64_t>(digit.stride, kGroupThreads), groups = digit.size / within;
        const ExprId group = Made(ExprOp::kFloorMod, Made(ExprOp::kFloorDiv, Thread(), Int(stride)), Int(groups));
        elements.first = module_.exprs.Add(elements.first, module_.exprs.Mul(group, Int(within * weight)));
        elements.apart += (groups - 1) * within * weight;
      }
      weight *= digit.size;
    }
    return elements;
  }

  // What the statements that stand before the loop leave in fragments.
  Constants ConstantsOf(const Block& before) const {
    Constants constants;
    for (const Stmt& stmt : before) {
      for (const auto& [id, count] : CountAllAccesses(module_, Block{stmt}))
        if (count.writes > 0) constants.erase(id);
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1) continue;
      const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
      if (store == nullptr || module_[store->buffer].space != ir::Space::kFragment) continue;
      if (!CoversElements(module_, *loop, store->buffer) || !IsOwnElement(module_, *loop, store->indices)) continue;
      const ir::ExprNode& value = module_.exprs[store->value];
      if (value.op == ExprOp::kConstFloat) constants.insert_or_assign(store->buffer, value);
    }
    return constants;
  }

  // Writes the iterations before the first one, which fill the rings and hand their stages back, and lets the loop begin there.
  void Skip(ir::For& loop, ExprId first, Block& result, ir::SourceLoc loc) {
    const ir::VarId var = FreshVar(module_, ir::VarKind::kLet, module_.exprs.Type(first), "first");
    result.push_back({ir::Let{var, first}, loc});
    const ExprId begin = module_.VarRef(var);
    ir::For skipped = loop;
    std::erase_if(skipped.body, [](const Stmt& stmt) { return !ir::IsOneOf<ir::Let, ir::Assume, ir::RingStep>(stmt.op) && !FillsRing(stmt); });
    skipped.extents[0] = begin;
    std::ranges::move(Repeated(module_, Block{{std::move(skipped), loc}}), std::back_inserter(result));
    Substitute(module_, loop.body, loop.vars[0], module_.exprs.Add(module_.VarRef(loop.vars[0]), begin));
    loop.extents[0] = module_.exprs.Sub(loop.extents[0], begin);
    kernel_.decisions.push_back({"skip_steps", std::nullopt,
                                 fmt::format("loop over {}: each group of warps begins where its rows have elements", module_[loop.vars[0]].name),
                                 "masks leave nothing of the iterations before", loc});
  }

  ExprId Thread() {
    if (!thread_) thread_ = FreshVar(module_, ir::VarKind::kThread, ir::DType::kI32, "thread");
    return module_.VarRef(*thread_);
  }

  ExprId Int(int64_t value) { return module_.exprs.Int(value); }
  ExprId Made(ExprOp op, ExprId a, ExprId b) { return module_.exprs.Make(op, {a, b}); }

  ir::Module& module_;
  ir::Kernel& kernel_;
  ExprId ordinary_{};
  std::optional<ir::VarId> thread_;
};

}  // namespace

void SkipSteps(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (context.options.fast_math() && kernel.producers != 0) Skipper(module, kernel).Run();
}

}  // namespace kiln::compiler
