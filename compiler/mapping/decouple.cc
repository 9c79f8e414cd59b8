// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/decouple.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <functional>
#include <limits>
#include <numeric>
#include <optional>
#include <set>
#include <tuple>
#include <vector>

#include "compiler/analysis/contains.h"
#include "compiler/analysis/definitions.h"
#include "compiler/rewrite/division.h"
#include "compiler/rewrite/parts.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/arithmetic.h"
#include "compiler/rules/gemm.h"
#include "compiler/rules/roles.h"
#include "compiler/target/instructions.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::Space;
using ir::Stmt;

// A choice: warps of their own must be worth the barriers between them.
constexpr double kWorth = 0.9;
// Groups of statements of which all divisions are looked at.
constexpr size_t kMostGroups = 10;
// A choice: registers of a thread that only gathers, for the addresses of its rows.
constexpr int64_t kGatheringRegisters = 32;

// A division of a loop's statements and what it costs.
struct Plan {
  Parts parts;
  double before = 0, after = 0;  // cycles of an iteration
};

class Decoupler {
 public:
  Decoupler(ir::Module& module, ir::Kernel& kernel, const Context& context) : module_(module), kernel_(kernel), context_(context) {}

  void Run() {
    if (!MayShareOut()) return;
    const auto is_pipelined = [](const Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      return loop != nullptr && loop->kind == ir::LoopKind::kPipelined && loop->num_stages >= 2;
    };
    const auto at = std::ranges::find_if(kernel_.body, is_pipelined);
    if (at == kernel_.body.end()) return;
    const std::optional<Plan> plan = PlanOf(std::get<ir::For>(at->op), size_t(at - kernel_.body.begin()));
    if (!plan) return;
    Report(std::get<ir::For>(at->op), *plan, at->loc);
    Block allocs;
    TakeAllocs(kernel_.body, allocs);
    RunApart(module_, kernel_, plan->parts, size_t(std::ranges::find_if(kernel_.body, is_pipelined) - kernel_.body.begin()));
    kernel_.body.insert(kernel_.body.begin(), allocs.begin(), allocs.end());
  }

 private:
  // --- whether and how ---

  // Whether the kernel's threads and registers are the compiler's to share out: it has them all, one loop that is to be pipelined, for the others
  // would lose their stages, and says nothing of threads.
  bool MayShareOut() const {
    const v1::CompileOptions& options = context_.options;
    const bool asks =
        options.disable_warp_specialization() || options.disable_async_copy() || options.disable_wgmma() || options.max_registers() != 0;
    if (!context_.target->Has(target::Feature::kTma) || asks) return false;
    if (kernel_.ClusterBlocks() > 1 || kernel_.min_blocks > 1 || kernel_.threads % kGroupThreads != 0) return false;
    size_t pipelined = 0;
    ir::Walk(kernel_.body, [&](const Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      pipelined += loop != nullptr && loop->kind == ir::LoopKind::kPipelined;
    });
    return pipelined == 1 && !TellsThreadsApart();
  }

  // Statements of one thread, of a range, or of each thread for itself: such a program has its own idea of who does what.
  bool TellsThreadsApart() const {
    bool tells = false;
    ir::Walk(kernel_.body, [&](const Stmt& stmt) {
      const auto* branch = std::get_if<ir::If>(&stmt.op);
      tells |= branch != nullptr && branch->IsNarrowed();
      const auto* atomic = std::get_if<ir::Atomic>(&stmt.op);
      tells |= atomic != nullptr && atomic->each_thread;
      ir::ForEachExpr(stmt.op, [&](ExprId id) {
        tells |= Contains(module_.exprs, id, [&](ExprId part) {
          const ir::ExprNode& node = module_.exprs[part];
          return node.op == ExprOp::kVar && module_[ir::VarId(node.ref)].kind == ir::VarKind::kThread;
        });
      });
    });
    return tells;
  }

  std::optional<Plan> PlanOf(const ir::For& loop, size_t at) {
    Plan plan;
    std::vector<Touches> touches;
    std::vector<size_t> computing;
    touches_.clear();
    for (const Stmt& stmt : loop.body) touches_.push_back(TouchesOf(module_, stmt));
    bool gathers = false;
    double filling = 0;
    for (size_t i = 0; i < loop.body.size(); ++i) {
      if (!MayRunApart(loop.body[i], touches_[i])) return std::nullopt;
      if (const std::optional<BufferId> tile = FilledBy(loop.body, i)) {
        gathers |= !std::holds_alternative<ir::Copy>(loop.body[i].op);
        plan.parts.statements[kFilling].push_back(i);
        plan.parts.tiles.insert(*tile);
        filling += double(BytesOf(*tile)) / double(context_.target->costs.line) * context_.target->costs.line_cycles;
      } else {
        computing.push_back(i);
        touches.push_back(touches_[i]);
      }
    }
    // Tiles that tensor copies bring have rings (loops/rings.h), in which registers keep what goes from one product to the next.
    if (!gathers) return std::nullopt;
    const Groups groups(touches);
    if (groups.count() > kMostGroups) return std::nullopt;
    const double products = Products(loop.body, computing);
    plan.before = products + Arithmetic(loop.body, computing);
    if (filling > context_.target->costs.hidden * products) return std::nullopt;
    std::optional<Plan> best;
    for (uint32_t last = 1; last + 1 < (uint32_t{1} << groups.count()); ++last) {
      if (!groups.MayBeLast(last)) continue;
      Plan next = plan;
      for (size_t i = 0; i < computing.size(); ++i) next.parts.statements[(last >> groups.Of(i) & 1) != 0 ? kLast : kFirst].push_back(computing[i]);
      if (!Complete(next, loop, at, products)) continue;
      const auto rank = [&](const Plan& of) { return std::tuple(of.after, BytesOf(of.parts.crossing) + BytesOf(of.parts.left)); };
      if (!best || rank(next) < rank(*best)) best = std::move(next);
    }
    if (!best || best->after >= kWorth * best->before) return std::nullopt;
    return best;
  }

  // Whether other threads than those of the rest may run the statement: it leaves nothing in global memory or in arrays of threads, and neither waits
  // for others nor ends the loop.
  bool MayRunApart(const Stmt& stmt, const Touches& touches) const {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop != nullptr && loop->kind != ir::LoopKind::kParallel) return false;
    const bool known = std::visit(
        [&]<typename T>(const T&) { return ir::Elementwise<T> || ir::IsOneOf<ir::For, ir::Gemm, ir::Copy, ir::Reduce>(stmt.op); }, stmt.op);
    const auto here = [&](BufferId id) { return module_[id].space == Space::kFragment || module_[id].space == Space::kShared; };
    return known && !WithAtomics(stmt) && std::ranges::all_of(touches.writes, here);
  }
  static bool WithAtomics(const Stmt& stmt) {
    bool has = false;
    ir::WalkWithin(stmt, [&](const Stmt& inner) { has |= std::holds_alternative<ir::Atomic>(inner.op); });
    return has;
  }

  // The tile in shared memory that the statement alone fills, as a whole and before any use, with what nothing in the kernel writes. Only the loop
  // uses the tile.
  std::optional<BufferId> FilledBy(const Block& body, size_t at) const {
    const Touches& own = touches_[at];
    if (own.writes.size() != 1 || own.whole.empty()) return std::nullopt;
    const BufferId tile = *own.whole.begin();
    if (module_[tile].space != Space::kShared) return std::nullopt;
    AccessCounts counts = CountAllAccesses(module_, kernel_.body);
    for (const BufferId id : own.reads)
      if (module_[id].space != Space::kGlobal || counts[id].writes > 0) return std::nullopt;
    if (counts[tile].writes != 1 || CountAllAccesses(module_, body)[tile].all() != counts[tile].all()) return std::nullopt;
    for (size_t i = 0; i < at; ++i)
      if (touches_[i].Has(tile)) return std::nullopt;
    return tile;
  }

  // Fills in the rest of a division of the statements. False if the program does not allow it, if there is nothing to run beside, or if the parts do
  // not fit.
  bool Complete(Plan& plan, const ir::For& loop, size_t at, double products) {
    Parts& parts = plan.parts;
    const auto &first = parts.statements[kFirst], &last = parts.statements[kLast];
    if (Products(loop.body, first) == 0 || Products(loop.body, last) == 0) return false;
    parts.threads = {ir::ThreadRange{0, kGroupThreads}, ir::ThreadRange{kGroupThreads, kGroupThreads + kernel_.threads},
                     ir::ThreadRange{kGroupThreads + kernel_.threads, kGroupThreads + kernel_.threads + kProducers}};
    if (parts.threads[kFilling].end > uint32_t(context_.target->max_threads)) return false;
    if (!FindCrossing(parts) || !MayHaveVersions(loop.body, parts) || !OwnersAreClear(loop.body, parts, at)) return false;
    if (!Fits(parts, loop) || !HaveRegisters(parts, loop.body)) return false;
    plan.after = products;
    for (const auto& part : {first, last}) plan.after = std::max(plan.after, Products(loop.body, part) + Arithmetic(loop.body, part));
    plan.after += context_.target->costs.step;
    return true;
  }

  // What one part leaves for the other. False if it is nothing, or if the last part needs what the first one has in the middle of an iteration.
  bool FindCrossing(Parts& parts) const {
    const std::set<BufferId> carried = Carried(touches_);
    for (const size_t reader : parts.statements[kLast]) {
      for (const size_t writer : parts.statements[kFirst]) {
        for (const BufferId id : touches_[writer].writes) {
          if (!touches_[reader].Has(id)) continue;
          if (reader < writer || touches_[reader].writes.contains(id) || carried.contains(id)) return false;
          parts.crossing.insert(id);
        }
      }
    }
    return !parts.crossing.empty();
  }

  // Whether every tile has users, which say when it is free, and every statement works on a version of what has several: a reduction takes a whole
  // buffer. Of a fragment that crosses, the last part's copy has them.
  bool MayHaveVersions(const Block& body, const Parts& parts) const {
    for (const BufferId tile : parts.tiles) {
      const auto uses = [&](size_t i) { return touches_[i].Has(tile); };
      if (std::ranges::none_of(parts.statements[kFirst], uses) && std::ranges::none_of(parts.statements[kLast], uses)) return false;
    }
    for (const Part part : {kFirst, kLast, kFilling}) {
      for (const size_t i : parts.statements[part]) {
        if (ir::IsOneOf<ir::For, ir::Gemm, ir::Copy, ir::Fill>(body[i].op)) continue;
        const auto has = [&](BufferId id) { return touches_[i].Has(id) && (part != kFirst || module_[id].space == Space::kShared); };
        if (std::ranges::any_of(parts.tiles, has) || std::ranges::any_of(parts.crossing, has)) return false;
      }
    }
    return true;
  }

  // Whether each fragment of the loop's belongs to one part: what both use crosses, and a statement before the loop touches only those of one part,
  // writes nothing else, and reads nothing that one behind it writes. Behind the loop, all is the last part's.
  bool OwnersAreClear(const Block& body, Parts& parts, size_t at) const {
    for (const size_t i : parts.statements[kLast])
      for (const BufferId id : touches_[i].reads)
        if (OwnerOf(module_, body, parts, id) == kFirst && !parts.crossing.contains(id)) return false;
    std::set<BufferId> read, written;  // by the first part, and in front of the loop by either
    for (const size_t i : parts.statements[kFirst]) Add(touches_[i], read, written);
    std::set<BufferId> late, held;  // read behind statements that stay; fragments of all threads
    for (size_t i = 0; i < at; ++i) {
      const Touches touches = TouchesOf(module_, kernel_.body[i]);
      if (!IsClear(body, parts, touches) || MeetsAny(touches.writes, late)) return false;
      if (!IsOwned(body, parts, touches)) {
        held.insert(touches.writes.begin(), touches.writes.end());
        continue;
      }
      if (ir::IsOneOf<ir::Let, ir::Assume>(kernel_.body[i].op)) return false;  // what they say is everybody's
      for (const BufferId id : touches.reads)
        if (module_[id].space == Space::kGlobal) late.insert(module_.RootOf(id));
    }
    read.insert(late.begin(), late.end());
    for (size_t i = at + 1; i < kernel_.body.size(); ++i) {
      const Touches touches = TouchesOf(module_, kernel_.body[i]);
      parts.awaited |= MeetsAny(touches.reads, written) || MeetsAny(touches.writes, written) || MeetsAny(touches.writes, read);
      for (const auto& ids : {touches.reads, touches.writes})
        for (const BufferId id : ids) {
          if (module_[id].space == Space::kShared && parts.crossing.contains(id)) return false;
          if (module_[id].space == Space::kFragment && held.contains(id)) return false;
          if (OwnerOf(module_, body, parts, id) == kFirst) parts.left.insert(id);
        }
    }
    return true;
  }

  // Adds the memory that threads share.
  void Add(const Touches& touches, std::set<BufferId>& read, std::set<BufferId>& written) const {
    for (const BufferId id : touches.reads)
      if (module_[id].space != Space::kFragment) read.insert(module_.RootOf(id));
    for (const BufferId id : touches.writes)
      if (module_[id].space != Space::kFragment) written.insert(module_.RootOf(id));
  }
  bool MeetsAny(const std::set<BufferId>& ids, const std::set<BufferId>& roots) const {
    return std::ranges::any_of(ids, [&](BufferId id) { return roots.contains(module_.RootOf(id)); });
  }

  bool IsOwned(const Block& body, const Parts& parts, const Touches& touches) const {
    const auto is_owned = [&](BufferId id) { return OwnerOf(module_, body, parts, id).has_value(); };
    return std::ranges::any_of(touches.reads, is_owned) || std::ranges::any_of(touches.writes, is_owned);
  }

  // Of a statement before the loop.
  bool IsClear(const Block& body, const Parts& parts, const Touches& touches) const {
    std::set<std::optional<Part>> owners;
    bool elsewhere = false, crosses = false;
    for (const BufferId id : touches.writes) {
      const std::optional<Part> owner = OwnerOf(module_, body, parts, id);
      owners.insert(owner);
      crosses |= owner && parts.crossing.contains(id);
    }
    for (const BufferId id : touches.reads) {
      const std::optional<Part> owner = OwnerOf(module_, body, parts, id);
      if (owner) owners.insert(owner);
      elsewhere |= !owner && module_[id].space != Space::kGlobal;
    }
    return !IsOwned(body, parts, touches) || (owners.size() == 1 && !elsewhere && !crosses);
  }

  // --- what it costs ---

  // Cycles of the matrix units for the products among the statements, with the instructions that suit each best and run beside the threads.
  double Products(const Block& body, const std::vector<size_t>& statements) const {
    double cycles = 0;
    for (const size_t i : statements)
      if (const auto* gemm = std::get_if<ir::Gemm>(&body[i].op)) cycles += CyclesAtBest(*gemm);
    return cycles;
  }
  double CyclesAtBest(const ir::Gemm& gemm) const {
    const GemmShape shape = ShapeOf(gemm);
    double best = std::numeric_limits<double>::infinity();
    for (const target::MmaInstruction& mma : target::MmaInstructions(*context_.target)) {
      if (mma.in_flight && Suits(mma, module_, gemm))
        best = std::min(best, double(shape.m / mma.m) * double(shape.n / mma.n) * double(shape.k / mma.k) * mma.cycles);
    }
    return std::isinf(best) ? 0 : best;
  }

  double Arithmetic(const Block& body, const std::vector<size_t>& statements) const {
    double cycles = 0;
    for (const size_t i : statements) cycles += ArithmeticCycles(module_, body[i], *context_.target);
    return cycles;
  }

  int64_t BytesOf(BufferId id) const {
    const std::vector<int64_t> shape = module_.ShapeOf(id);
    return std::accumulate(shape.begin(), shape.end(), int64_t{ir::Bits(module_[id].dtype)}, std::multiplies<>()) / 8;
  }
  int64_t BytesOf(const std::set<BufferId>& ids) const {
    int64_t bytes = 0;
    for (const BufferId id : ids) bytes += BytesOf(id);
    return bytes;
  }

  // As many stages as the program asks for, and two versions of what crosses, if shared memory holds them. False if it does not hold two stages, or
  // if it has room for two blocks as they are: then one runs while the other waits.
  bool Fits(Parts& parts, const ir::For& loop) const {
    int64_t fixed = kKernelBarrierRoom, tiles = 0;
    for (const auto& [id, count] : CountAllAccesses(module_, kernel_.body))
      if (module_[id].space == Space::kShared && !parts.crossing.contains(id)) (parts.tiles.contains(id) ? tiles : fixed) += BytesOf(id);
    const int64_t crossing = BytesOf(parts.crossing), most = int64_t(context_.target->max_shared_bytes);
    if (2 * (fixed + crossing + loop.num_stages * tiles) <= most) return false;
    fixed += BytesOf(parts.left);
    parts.stages = std::min<int64_t>(loop.num_stages, (most - fixed - crossing) / tiles);
    if (parts.stages < 2) return false;
    parts.versions = fixed + parts.stages * tiles + 2 * crossing <= most ? 2 : 1;
    return true;
  }

  // Shares out the registers: the threads of the last part get what their fragments need, spread evenly, and what they need beside them; those of the
  // first part get what is left of those that the block starts with. False if that is not enough for theirs.
  bool HaveRegisters(Parts& parts, const Block& body) const {
    const auto need = [&](Part part) {
      std::set<BufferId> fragments;
      for (const size_t i : parts.statements[part])
        for (const auto& ids : {touches_[i].reads, touches_[i].writes})
          for (const BufferId id : ids)
            if (OwnerOf(module_, body, parts, id) == part) fragments.insert(id);
      int64_t words = kFewOtherRegisters;
      for (const BufferId id : fragments) words += std::max<int64_t>(1, BytesOf(id) / 4 / parts.threads[part].Count());
      return (words + 7) / 8 * 8;
    };
    parts.at_start = std::min<int64_t>(int64_t(context_.target->registers_per_multiprocessor) / parts.threads[kFilling].end / 8 * 8, 256);
    const int64_t all = parts.at_start * parts.threads[kFilling].end, last = need(kLast);
    const int64_t rest = all - last * parts.threads[kLast].Count() - kGatheringRegisters * parts.threads[kFilling].Count();
    const int64_t first = std::min(rest / int64_t(parts.threads[kFirst].Count()) / 8 * 8, kMostRegisters);
    parts.registers = {first, last, kGatheringRegisters};
    return last <= kMostRegisters && first >= need(kFirst);
  }

  // --- what is told ---

  void Report(const ir::For& loop, const Plan& plan, ir::SourceLoc loc) const {
    const auto sums = [&](Part part) {
      std::string names;
      for (const size_t i : plan.parts.statements[part])
        if (const auto* gemm = std::get_if<ir::Gemm>(&loop.body[i].op)) names += (names.empty() ? "'" : ", '") + module_[gemm->c.buffer].name + "'";
      const ir::ThreadRange& threads = plan.parts.threads[part];
      return fmt::format("threads {} to {} compute {}", threads.begin, threads.end - 1, names);
    };
    const ir::ThreadRange& filling = plan.parts.threads[kFilling];
    kernel_.decisions.push_back(
        {"decouple", std::nullopt,
         fmt::format("loop over {}: {}, {}, {} to {} gather", module_[loop.vars[0]].name, sums(kFirst), sums(kLast), filling.begin, filling.end - 1),
         fmt::format("{:.0f} cycles an iteration instead of {:.0f}", plan.after, plan.before), loc});
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  std::vector<Touches> touches_;  // of the loop's statements
};

}  // namespace

void Decouple(ir::Module& module, ir::Kernel& kernel, const Context& context) { Decoupler(module, kernel, context).Run(); }

}  // namespace kiln::compiler
