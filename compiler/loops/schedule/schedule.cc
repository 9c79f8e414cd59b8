// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/schedule/schedule.h"

#include <fmt/format.h>

#include <algorithm>
#include <iterator>
#include <map>
#include <optional>
#include <span>
#include <tuple>
#include <vector>

#include "compiler/analysis/definitions.h"
#include "compiler/analysis/dependences.h"
#include "compiler/analysis/facts.h"
#include "compiler/analysis/producer_slice.h"
#include "compiler/loops/schedule/slot.h"
#include "compiler/rewrite/fresh.h"
#include "compiler/rewrite/repeat.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/arithmetic.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::Stmt;

// What all fragments of a computing thread may take together, where their lives are not looked at.
constexpr int64_t kMostWords = kMostRegisters - kFewOtherRegisters;
// A choice: what fragments that live at a time may take of a computing thread's registers, where all of them together take more than kMostWords.
constexpr int64_t kMostLive = 208;
// A choice: a longer loop and two further halves of its body must be worth their code.
constexpr double kWorth = 0.97;
// A choice: orders whose cycles differ by less are alike. The cycles are those of groups of warps that do the same at one time. They run apart, and
// then a group's arithmetic that nothing of its own hides runs beside another's products.
constexpr double kAlike = 1.06;

// A product that may run on while its threads do something else.
bool MayRunOn(const Stmt& stmt, const target::Target& target) {
  const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
  return gemm != nullptr && RowOf(*gemm, target).in_flight && !gemm->plan->in_flight && !gemm->plan->promoted && !gemm->plan->by_warps;
}

// Whether the statement may change its place at all. What waits, leaves the loop or says what holds from here on stays where it is.
bool MayMove(const Stmt& stmt) {
  bool may = true;
  ir::WalkWithin(stmt, [&](const Stmt& inner) {
    const auto* loop = std::get_if<ir::For>(&inner.op);
    const bool nested = &inner != &stmt;
    const auto* gemm = std::get_if<ir::Gemm>(&inner.op);
    may &= std::visit(
        ir::Overloaded{[&](const ir::For&) { return loop->kind == ir::LoopKind::kParallel || !nested; },
                       [&](const ir::Gemm&) { return !nested && !gemm->plan->in_flight; }, [&](const ir::RingStep&) { return !nested; },
                       [&](const ir::Atomic& atomic) { return atomic.order == ir::MemoryOrder::kRelaxed; },
                       [&]<ir::OneOf<ir::Let, ir::Store, ir::If, ir::Copy, ir::Mma, ir::AnyElementwise, ir::Reduce> T>(const T&) { return true; },
                       [&]<ir::OneOf<ir::Alloc, ir::While, ir::Assume, ir::Call, ir::Barrier, ir::Break, ir::Continue, ir::Arrive, ir::Await,
                                     ir::Registers, ir::AsyncCommit, ir::AsyncWait, ir::PairSum, ir::StreamSum>
                               T>(const T&) { return false; }},
        inner.op);
  });
  return may;
}

class Scheduler {
 public:
  Scheduler(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context), facts_(module) {
    facts_.EnterKernel(kernel);
  }

  void Run() {
    is_full_ = FragmentWords(module_, kernel_) > kMostWords;
    Visit(kernel_.body);
    kernel_.body.insert(kernel_.body.begin(), allocs_.begin(), allocs_.end());
  }

 private:
  void Visit(Block& block) {
    Block result;
    for (Stmt& stmt : block) {
      if (const auto* assume = std::get_if<ir::Assume>(&stmt.op); assume != nullptr && &block == &kernel_.body) facts_.Assume(assume->cond);
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind == ir::LoopKind::kSerial) {
        Visit(loop->body);
        if (std::optional<Block> scheduled = Try(*loop, stmt.loc)) {
          std::ranges::move(*scheduled, std::back_inserter(result));
          continue;
        }
      }
      if (auto* branch = std::get_if<ir::If>(&stmt.op)) Visit(branch->then_body), Visit(branch->else_body);
      if (auto* repeat = std::get_if<ir::While>(&stmt.op)) Visit(repeat->body);
      result.push_back(std::move(stmt));
    }
    block = std::move(result);
  }

  // What stands in the loop's place, if another order is worth it.
  std::optional<Block> Try(ir::For& loop, ir::SourceLoc loc) {
    const bool rings = std::ranges::any_of(loop.body, [](const Stmt& stmt) { return std::holds_alternative<ir::RingStep>(stmt.op); });
    const bool products = std::ranges::any_of(loop.body, [&](const Stmt& stmt) { return MayRunOn(stmt, *context_.target); });
    if (!rings || !products) return std::nullopt;
    TakeAllocs(loop.body, allocs_);
    if (!std::ranges::all_of(loop.body, MayMove)) return std::nullopt;
    const Dependences dependences(module_, loop.body);
    std::vector<Work> works;
    for (const Stmt& stmt : loop.body) works.push_back(WorkOf(stmt));
    const double before = InOrder(works);
    std::map<size_t, Slot> slots;  // by where the body is cut
    double least = kWorth * before;
    // Where registers are short, no values go from one iteration's first part to its second.
    for (size_t cut = is_full_ ? works.size() : 1; cut <= works.size(); ++cut) {
      std::optional<Slot> slot = MakeSlot(works, dependences, cut);
      if (!slot || slot->cycles >= kWorth * before) continue;
      if (is_full_ && MostLive(loop.body, *slot) > kMostLive) continue;
      least = std::min(least, slot->cycles);
      slots.emplace(cut, *std::move(slot));
    }
    std::erase_if(slots, [&](const auto& slot) { return slot.second.cycles > kAlike * least; });
    if (slots.empty()) return std::nullopt;
    const auto best = std::ranges::min_element(slots, {}, [&](const auto& slot) {
      return std::tuple(BetweenStarts(slot.second, works), Carried(loop.body, slot.first), slot.second.cycles);
    });
    const auto& [cut, slot] = *best;
    Report(loop, loc, before, slot, cut);
    return Write(loop, slot, cut, loc);
  }

  // Cycles of the threads between the starts of the first product and of the last. The unit may be without work for so long, and ptxas moves the
  // wait for a sum that is used only then up to before the arithmetic that should run beside its product.
  static double BetweenStarts(const Slot& slot, std::span<const Work> works) {
    double cycles = 0, between = 0;  // since the first start; at the last
    bool started = false;
    for (const Step& step : slot.steps) {
      if (step.wait) continue;
      if (works[step.stmt].unit > 0) started = true, between = cycles;
      if (started) cycles += works[step.stmt].threads;
    }
    return between;
  }

  // Registers of a thread in which values go from one iteration's first part to its second, besides those that keep values from one iteration to the
  // next in any order.
  int64_t Carried(const Block& body, size_t cut) const {
    const AccessCounts first = CountAllAccesses(module_, Block(body.begin(), body.begin() + ptrdiff_t(cut)));
    const AccessCounts second = CountAllAccesses(module_, Block(body.begin() + ptrdiff_t(cut), body.end()));
    int64_t words = 0;
    for (const auto& [id, count] : second) {
      const auto written = first.find(id);
      if (written != first.end() && written->second.writes > 0 && count.reads > 0 && !IsFromBefore(body, id)) words += FragmentWords(module_, id);
    }
    return words;
  }

  // Registers of a thread that the fragments of the body take at a time, in the slot's order. A product has its own until the wait for its end. What
  // another statement reads for the last time makes room for what it writes, element by element.
  int64_t MostLive(const Block& body, const Slot& slot) const {
    struct Span {
      size_t first, last;
    };
    std::map<BufferId, Span> spans;
    for (size_t i = 0; i < slot.steps.size(); ++i) {
      const Stmt& stmt = body[slot.steps[i].stmt];
      const bool product = std::holds_alternative<ir::Gemm>(stmt.op);
      for (const auto& [id, count] : CountAllAccesses(module_, Block{stmt})) {
        const size_t born = 2 * i + (product ? 0 : 1), dies = 2 * i + (product ? 1 : 0);
        const bool from_before = count.reads > 0;
        const auto [span, is_new] = spans.try_emplace(id, Span{from_before ? 0 : born, from_before ? 2 * slot.steps.size() : dies});
        if (!is_new) span->second.last = std::max(span->second.last, dies);
      }
    }
    std::vector<int64_t> changes(2 * slot.steps.size() + 2, 0);
    for (const auto& [id, span] : spans) {
      changes[span.first] += FragmentWords(module_, id);
      changes[std::max(span.first, span.last) + 1] -= FragmentWords(module_, id);
    }
    int64_t words = 0, most = 0;
    for (const int64_t change : changes) most = std::max(most, words += change);
    return most;
  }

  // Whether an iteration reads what the one before left in the buffer.
  bool IsFromBefore(const Block& body, BufferId id) const {
    for (const Stmt& stmt : body) {
      const AccessCounts counts = CountAllAccesses(module_, Block{stmt});
      if (const auto count = counts.find(id); count != counts.end()) return count->second.reads > 0;
    }
    return false;
  }

  Work WorkOf(const Stmt& stmt) const {
    if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op); gemm != nullptr && !MayRunOn(stmt, *context_.target))
      return {.threads = CyclesOf(*gemm, *context_.target)};
    if (MayRunOn(stmt, *context_.target)) return {.unit = CyclesOf(std::get<ir::Gemm>(stmt.op), *context_.target)};
    const auto* step = std::get_if<ir::RingStep>(&stmt.op);
    const bool steps_on = FillsRing(stmt) || (step != nullptr && step->action == ir::RingAction::kRelease);
    return {.threads = ArithmeticCycles(module_, kernel_, stmt, *context_.target), .at_once = steps_on};
  }

  Block Write(ir::For& loop, const Slot& slot, size_t cut, ir::SourceLoc loc) {
    Block result;
    const ExprId count = Bound(loop.extents[0], result, loc);
    loop.extents[0] = count;
    const ir::DType type = module_.exprs.Type(count);
    const ExprId last = module_.exprs.Sub(count, module_.exprs.Int(1, type)), var = module_.VarRef(loop.vars[0]);
    const ExprId next = module_.exprs.Add(var, module_.exprs.Int(1, type));
    if (cut == loop.body.size()) {
      loop.body = Part(loop, slot, cut, var, {});
      result.push_back({std::move(loop), loc});
      return result;
    }
    Block first = Part(loop, slot, cut, module_.exprs.Int(0, type), {});
    Block final = Part(loop, slot, cut, {}, last);
    Block body = Part(loop, slot, cut, next, var);
    loop.body = std::move(body);
    loop.extents[0] = last;
    Block parts = std::move(first);
    parts.push_back({std::move(loop), loc});
    std::ranges::move(final, std::back_inserter(parts));
    if (facts_.RangeOf(count).min >= 1) {
      std::ranges::move(parts, std::back_inserter(result));
    } else {
      const ExprId any = module_.exprs.Make(ir::ExprOp::kGt, {count, module_.exprs.Int(0, type)});
      result.push_back({ir::If{any, std::move(parts), {}}, loc});
    }
    return result;
  }

  // The count of iterations, which is read once even if the body changes what it was read from.
  ExprId Bound(ExprId count, Block& before, ir::SourceLoc loc) {
    if (ir::LoadsOf(module_.exprs, count).empty()) return count;
    const ir::VarId var = FreshVar(module_, ir::VarKind::kLet, module_.exprs.Type(count), "count");
    before.push_back({ir::Let{var, count}, loc});
    return module_.VarRef(var);
  }

  // The slot's statements: those of the first stage for iteration `early`, the others for iteration `late`; without one, none of them.
  Block Part(const ir::For& loop, const Slot& slot, size_t cut, std::optional<ExprId> early, std::optional<ExprId> late) {
    Block part;
    std::vector<size_t> started;  // products, in order
    Block stages[] = {Block(loop.body.begin(), loop.body.begin() + ptrdiff_t(cut)), Block(loop.body.begin() + ptrdiff_t(cut), loop.body.end())};
    const std::optional<ExprId> iterations[] = {early, late};
    for (int stage : {0, 1}) {
      if (!iterations[stage]) continue;
      stages[stage] = Repeated(module_, stages[stage]);
      Substitute(module_, stages[stage], loop.vars[0], *iterations[stage]);
    }
    for (const Step& step : slot.steps) {
      const int stage = step.stmt < cut ? 0 : 1;
      if (!iterations[stage]) continue;
      Stmt& stmt = stages[stage][step.stmt - (stage == 0 ? 0 : cut)];
      if (step.wait) {
        const auto at = std::ranges::find(started, step.stmt);
        const auto behind = int32_t(started.end() - at - 1);
        part.push_back({ir::AsyncWait{behind, false, std::get<ir::Gemm>(loop.body[step.stmt].op).c.buffer}, stmt.loc});
        continue;
      }
      if (MayRunOn(stmt, *context_.target)) {
        std::get<ir::Gemm>(stmt.op).plan->in_flight = true;
        started.push_back(step.stmt);
      }
      part.push_back(std::move(stmt));
    }
    return part;
  }

  void Report(const ir::For& loop, ir::SourceLoc loc, double before, const Slot& slot, size_t cut) {
    const std::string what = cut == loop.body.size() ? "products run while the threads compute"
                                                     : "products of one iteration run beside the first products and the arithmetic of the next";
    kernel_.decisions.push_back({"schedule", std::nullopt, fmt::format("loop over {}: {}", module_[loop.vars[0]].name, what),
                                 fmt::format("{:.0f} cycles an iteration instead of {:.0f}", slot.cycles, before), loc});
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  Facts facts_;
  bool is_full_ = false;  // all fragments of the kernel together do not fit into the registers
  Block allocs_;          // of the loops' bodies, for the kernel's begin: a part of a body that stands before or behind its loop uses them, too
};

}  // namespace

void Schedule(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (kernel.producers != 0) Scheduler(module, kernel, context).Run();
}

}  // namespace kiln::compiler
