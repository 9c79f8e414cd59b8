// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/layouts/staged_operands.h"

#include <algorithm>
#include <numeric>
#include <vector>

#include "compiler/regions/ahead.h"
#include "compiler/rewrite/lifetimes.h"
#include "compiler/rules/gemm.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;

constexpr size_t kMostTried = 16;  // choices of a kernel

// The innermost loop that threads run one iteration after the other, around each parallel loop and each product; null: none.
using Nests = std::map<const void*, const ir::Stmt*>;

void FindNests(const ir::Block& block, const ir::Stmt* around, Nests& nests) {
  for (const ir::Stmt& stmt : block) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) {
      nests[loop] = around;
      continue;
    }
    if (const auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) nests[gemm] = around;
    const bool repeats = loop != nullptr || std::holds_alternative<ir::While>(stmt.op);
    ir::ForEachBody(stmt.op, [&](const ir::Block& body) { FindNests(body, repeats ? &stmt : around, nests); });
  }
}

// A fragment of all threads that products take, all of it, and which is computed as often as they are. (A branch's threads may have no barrier.)
struct Operand {
  BufferId buffer;
  const ir::Stmt* nest;
  int64_t read = 0;  // bytes of a thread, by all the products
};

class Chooser {
 public:
  Chooser(const ir::Module& module, ir::Kernel& kernel, const Context& context, const FragmentUses& uses, const MemoryRuns& runs)
      : module_(module), kernel_(kernel), context_(context), uses_(uses), runs_(runs) {
    FindNests(kernel.body, nullptr, nests_);
    FindOperands();
    shared_bytes_ = MostShared();
  }

  Inferred Run() {
    best_ = Infer({});
    std::vector<const ir::Stmt*> nests;
    for (const Operand& operand : operands_)
      if (std::ranges::find(nests, operand.nest) == nests.end()) nests.push_back(operand.nest);
    for (const ir::Stmt* nest : nests) ChooseIn(nest);
    for (const BufferId id : staged_)
      kernel_.decisions.push_back({"layouts", id, "goes to its product through shared memory", "loads in the instruction's order cost more"});
    best_.staged = std::move(staged_);
    return std::move(best_);
  }

 private:
  // Operands that are computed from the same loads gain nothing one by one: first all of them are tried, then without each, else each.
  void ChooseIn(const ir::Stmt* nest) {
    std::vector<const Operand*> all;
    for (const Operand& operand : operands_)
      if (operand.nest == nest) all.push_back(&operand);
    const int64_t least = Passage(**std::ranges::min_element(all, {}, [&](const Operand* operand) { return Passage(*operand); }));
    if (MemoryCostIn(nest, best_) <= least) return;
    std::set<BufferId> whole = staged_;
    for (const Operand* operand : all) whole.insert(operand->buffer);
    const bool staged_all = Try(nest, whole);
    if (all.size() == 1) return;
    for (const Operand* operand : all) {
      std::set<BufferId> other = staged_;
      if (staged_all) other.erase(operand->buffer);
      else other.insert(operand->buffer);
      Try(nest, other);
    }
  }

  // Keeps the layouts with these operands staged if they cost less.
  bool Try(const ir::Stmt* nest, const std::set<BufferId>& staged) {
    if (++tried_ > kMostTried || !HasRoom(staged)) return false;
    Inferred other = Infer(staged);
    if (other.misfits > best_.misfits || Words(other) > Words(best_)) return false;
    if (MemoryCostIn(nest, other) + Passages(nest, staged) >= MemoryCostIn(nest, best_) + Passages(nest, staged_)) return false;
    best_ = std::move(other), staged_ = staged;
    return true;
  }

  Inferred Infer(const std::set<BufferId>& staged) const { return InferLayouts(module_, context_, uses_, runs_, staged); }

  void FindOperands() {
    std::set<BufferId> excluded(uses_.whole.begin(), uses_.whole.end());
    for (const ir::Gemm* gemm : uses_.gemms) {
      excluded.insert(gemm->c.buffer);
      const target::MmaInstruction& mma = RowOf(*gemm, *context_.target);
      const bool plain = !mma.IsScalar() && !gemm->plan->by_warps && !gemm->plan->as_sums && !gemm->metadata;
      const WarpGrid grid = plain ? GridOf(*gemm, uint32_t(uses_.threads.at(gemm->c.buffer).Count()), *context_.target) : WarpGrid{};
      const auto add = [&](const ir::Region& region, bool in_registers,
                           ir::Layout (*layout)(const ir::Gemm&, const target::MmaInstruction&, const WarpGrid&)) {
        if (module_[region.buffer].space != ir::Space::kFragment) return;
        if (!plain || !in_registers || uses_.threads.at(region.buffer).Count() != kernel_.threads ||
            region.extents != module_.ShapeOf(region.buffer) || !IsComputedIn(region.buffer, nests_.at(gemm))) {
          excluded.insert(region.buffer);
          return;
        }
        auto known = std::ranges::find(operands_, region.buffer, &Operand::buffer);
        if (known == operands_.end()) known = operands_.insert(operands_.end(), {region.buffer, nests_.at(gemm)});
        known->read += layout(*gemm, mma, grid).Registers() * ir::Bits(module_[region.buffer].dtype) / 8;
      };
      add(gemm->a, mma.ReadsA(),
          [](const ir::Gemm& g, const target::MmaInstruction& m, const WarpGrid& w) { return OperandALayout(m, ShapeOf(g), w); });
      add(gemm->b, mma.ReadsB(),
          [](const ir::Gemm& g, const target::MmaInstruction& m, const WarpGrid& w) { return OperandBLayout(m, ShapeOf(g), w); });
    }
    std::erase_if(operands_, [&](const Operand& operand) { return excluded.contains(operand.buffer); });
  }

  bool IsComputedIn(BufferId id, const ir::Stmt* nest) const {
    return std::ranges::all_of(uses_.loops, [&](const LoopUse& use) {
      const bool writes = std::ranges::any_of(use.fragments, [&](const LoopUse::Fragment& f) { return f.buffer == id && f.write; });
      return !writes || nests_.at(use.loop) == nest;
    });
  }

  // The most bytes of shared memory that are in use at one time, with tiles that a pipelined loop fills in as many versions as it has stages.
  int64_t MostShared() const {
    const Lifetimes lives = LifetimesOf(module_, kernel_);
    const std::map<BufferId, int64_t> versions = VersionsOf(module_, kernel_);
    int64_t most = 0;
    for (const auto& [begun, life] : lives.buffers) {
      int64_t bytes = 0;
      for (const auto& [other, its] : lives.buffers)
        if (its.first <= life.first && life.first <= its.last) bytes += BytesOf(module_[other]) * (versions.contains(other) ? versions.at(other) : 1);
      most = std::max(most, bytes);
    }
    return most;
  }

  // Whether two blocks have room beside each other, with the staged tiles: no stage of a loop is lost, nor a block where there were two.
  bool HasRoom(const std::set<BufferId>& staged) const {
    int64_t bytes = shared_bytes_;
    for (const BufferId id : staged) bytes += BytesOf(module_[id]);
    return 2 * bytes <= int64_t(context_.target->max_shared_bytes);
  }

  // What loops move to and from global memory as often as the products of the nest are computed.
  int64_t MemoryCostIn(const ir::Stmt* nest, const Inferred& inferred) const {
    int64_t cost = 0;
    for (const auto& [loop, runs] : runs_) {
      const auto layout = inferred.loops.find(loop);
      if (layout != inferred.loops.end() && nests_.at(loop) == nest) cost += MemoryCost(layout->second, runs, context_.target->warp_size);
    }
    return cost;
  }

  int64_t Passages(const ir::Stmt* nest, const std::set<BufferId>& staged) const {
    int64_t cost = 0;
    for (const Operand& operand : operands_)
      if (operand.nest == nest && staged.contains(operand.buffer)) cost += Passage(operand);
    return cost;
  }

  int64_t Passage(const Operand& operand) const {
    const int64_t threads = uses_.threads.at(operand.buffer).Count();
    return PassageCost((BytesOf(module_[operand.buffer]) + threads - 1) / threads, operand.read, context_.target->warp_size);
  }

  // Of a thread, for all fragments.
  int64_t Words(const Inferred& inferred) const {
    return std::accumulate(inferred.fragments.begin(), inferred.fragments.end(), int64_t{0}, [&](int64_t bits, const auto& fragment) {
      return bits + fragment.second.Registers() * ir::Bits(module_[fragment.first].dtype);
    });
  }

  int64_t BytesOf(const ir::Buffer& buffer) const {
    int64_t bits = ir::Bits(buffer.dtype);
    for (const ir::ExprId extent : buffer.shape) bits *= module_.exprs.ConstInt(extent).value_or(1);
    return (bits + 7) / 8;
  }

  const ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const FragmentUses& uses_;
  const MemoryRuns& runs_;
  Nests nests_;
  std::vector<Operand> operands_;  // in program order
  int64_t shared_bytes_ = 0;       // of tiles in all their versions, without staged operands
  std::set<BufferId> staged_;
  Inferred best_;
  size_t tried_ = 0;
};

}  // namespace

Inferred WithStagedOperands(const ir::Module& module, ir::Kernel& kernel, const Context& context, const FragmentUses& uses, const MemoryRuns& runs) {
  return Chooser(module, kernel, context, uses, runs).Run();
}

}  // namespace kiln::compiler
