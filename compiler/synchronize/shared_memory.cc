// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "compiler/analysis/access.h"
#include "compiler/analysis/declaration.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/signals.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/rewrite/packing.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/reduce.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;

// Whether the loop is serial and no other one is within it.
bool IsInnermost(const ir::For& loop) {
  bool alone = loop.kind == ir::LoopKind::kSerial;
  ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
    const auto* inner = std::get_if<ir::For>(&stmt.op);
    alone &= !std::holds_alternative<ir::While>(stmt.op) && (inner == nullptr || IsOneStatement(*inner));
  });
  return alone;
}

// By statements in preorder. A buffer used inside of a loop lives as long as the loop, because an iteration may read what an earlier one
// wrote. If each iteration writes the whole buffer before it reads any of it, the buffer lives for that part of the body only. `apart`: no
// buffer lives for a part of a serial loop's body only, so that threads need not wait for each other where one buffer's part ends and
// another's begins.
class LifetimeFinder {
 public:
  LifetimeFinder(const ir::Module& module, bool apart) : module_(module), apart_(apart) {}

  std::map<BufferId, Lifetime> Of(const ir::Kernel& kernel) {
    Visit(kernel.body);
    // The producers fill rings ahead of everything else, so rings live throughout the kernel.
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      if (const auto* step = std::get_if<ir::RingStep>(&stmt.op)) lifetimes_[step->ring.barriers] = {0, clock_};
      const auto* copy = std::get_if<ir::Copy>(&stmt.op);
      if (copy != nullptr && copy->plan && copy->plan->ring) lifetimes_[copy->dst.buffer] = {0, clock_};
      // Another block of the cluster may write here at any time.
      const auto* reduce = std::get_if<ir::Reduce>(&stmt.op);
      if (reduce != nullptr && reduce->cluster) lifetimes_[*reduce->scratch] = {0, clock_};
      const auto* atomic = std::get_if<ir::Atomic>(&stmt.op);
      if (atomic != nullptr && atomic->block) lifetimes_[atomic->buffer] = {0, clock_};
      const auto* alloc = std::get_if<ir::Alloc>(&stmt.op);
      if (alloc != nullptr && !module_[alloc->buffer].arrivals.empty()) lifetimes_[alloc->buffer] = {0, clock_};
      if (copy != nullptr && copy->signals) lifetimes_[copy->dst.buffer] = {0, clock_};
    });
    // Where the program has barriers of its own, threads of one branch may be anywhere while those of another use a buffer.
    if (HasSignals(kernel)) {
      for (const BufferId buffer : in_branches_) lifetimes_[buffer] = {0, clock_};
    }
    return std::move(lifetimes_);
  }

 private:
  // When a block of statements first touches a buffer, and whether it then writes the whole buffer.
  struct First {
    int64_t at;
    bool writes_whole;
  };
  using Firsts = std::map<BufferId, First>;

  Firsts Visit(const ir::Block& block) {
    Firsts firsts;
    for (size_t i = 0; i < block.size(); ++i) {
      const ir::Stmt& stmt = block[i];
      const int64_t start = clock_++;
      for (const Access& access : AccessesOf(module_, stmt)) Touch(access.buffer, start, WritesWhole(stmt, access.buffer), firsts);
      // Reductions that share one barrier use their scratch at the same time.
      for (const ir::Stmt& other : std::span(block).subspan(i, ExchangeTogether(std::span(block).subspan(i)))) {
        Touch(*std::get<ir::Reduce>(other.op).scratch, start, true, firsts);
      }
      if (const auto* sum = std::get_if<ir::PairSum>(&stmt.op); sum != nullptr && sum->scratch) Touch(*sum->scratch, start, true, firsts);
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        const Firsts then = Visit(branch->then_body), otherwise = Visit(branch->else_body);
        Merge(then, /*always=*/false, firsts);
        Merge(otherwise, /*always=*/false, firsts);
        // The threads of the two branches run at the same time.
        if (branch->IsNarrowed()) KeepThrough(start, then), KeepThrough(start, otherwise);
      }
      const ir::Block* body = nullptr;
      if (const auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && !IsOneStatement(*loop)) body = &loop->body;
      if (const auto* loop = std::get_if<ir::While>(&stmt.op)) body = &loop->body;
      if (body == nullptr) continue;
      const Firsts inside = Visit(*body);
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      const bool apart = apart_ && loop != nullptr && IsInnermost(*loop);
      for (const auto& [buffer, first] : inside) {
        Lifetime& life = lifetimes_.at(buffer);
        if (first.writes_whole && life.first >= start && !apart) continue;
        life.first = std::min(life.first, start);
        life.last = std::max(life.last, clock_ - 1);
      }
      // What a condition reads is read again after each iteration.
      if (std::holds_alternative<ir::While>(stmt.op)) {
        for (const Access& access : AccessesOf(module_, stmt)) Touch(access.buffer, clock_ - 1, false, firsts);
      }
      const bool always = loop != nullptr && module_.exprs.ConstInt(loop->extents[0]).value_or(0) >= 1;
      Merge(inside, always, firsts);
    }
    return firsts;
  }

  // The buffers used since `start` live from then until now.
  void KeepThrough(int64_t start, const Firsts& inside) {
    for (const auto& [buffer, first] : inside) {
      Lifetime& life = lifetimes_.at(buffer);
      life.first = std::min(life.first, start);
      life.last = std::max(life.last, clock_ - 1);
      in_branches_.insert(buffer);
    }
  }

  static void Merge(const Firsts& inside, bool always, Firsts& firsts) {
    for (const auto& [buffer, first] : inside) firsts.try_emplace(buffer, First{first.at, always && first.writes_whole});
  }

  void Touch(BufferId buffer, int64_t at, bool writes_whole, Firsts& firsts) {
    if (module_[buffer].space != ir::Space::kShared) return;
    firsts.try_emplace(buffer, First{at, writes_whole});
    auto [it, added] = lifetimes_.try_emplace(buffer, Lifetime{at, at});
    it->second.last = std::max(it->second.last, at);
  }

  // True of copies to the whole tile, and of loops over the whole tile that store to it and do not read it.
  bool WritesWhole(const ir::Stmt& stmt, BufferId buffer) const {
    if (module_[buffer].space != ir::Space::kShared) return false;
    if (const auto* copy = std::get_if<ir::Copy>(&stmt.op)) {
      return copy->dst.buffer == buffer && copy->dst.extents == module_.ShapeOf(buffer);
    }
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1) return false;
    const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
    if (store == nullptr || store->buffer != buffer) return false;
    std::vector<Access> loads;
    CollectLoads(module_.exprs, store->value, loads);
    if (std::ranges::any_of(loads, [&](const Access& load) { return load.buffer == buffer; })) return false;
    const std::optional<Projection> projection = ProjectionOf(module_, *loop, store->indices);
    return projection && projection->Covers(*loop, module_, buffer);
  }

  const ir::Module& module_;
  const bool apart_;
  std::map<BufferId, Lifetime> lifetimes_;
  std::set<BufferId> in_branches_;  // used under conditions that only some threads fulfil
  int64_t clock_ = 0;
};

std::string Table(const ir::Module& module, const std::map<BufferId, Lifetime>& lifetimes) {
  std::string table;
  for (const auto& [id, life] : lifetimes) {
    table += fmt::format("\n  {:<24} {:>8} bytes", module[id].name, SharedBytes(module[id]));
  }
  return table;
}

// Tiles that each iteration of a loop fills and then multiplies, and that nothing else touches: buffer → loop. With a version for every other
// iteration, a group of warps may fill the next one while another group's product still reads this one.
using Refilled = std::map<BufferId, ir::For*>;

Refilled RefilledIn(const ir::Module& module, ir::Kernel& kernel) {
  Refilled refilled;
  const auto fills = [&](const ir::Stmt& stmt, BufferId id) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    const auto* store = loop == nullptr || loop->body.size() != 1 ? nullptr : std::get_if<ir::Store>(&loop->body[0].op);
    return store != nullptr && !store->async && CoversElements(module, *loop, id) && IsOwnElement(module, *loop, store->indices);
  };
  const AccessCounts everywhere = CountAllAccesses(module, kernel.body);
  ir::Walk(kernel.body, [&](ir::Stmt& stmt) {
    auto* loop = std::get_if<ir::For>(&stmt.op);
    if (loop == nullptr || !IsInnermost(*loop)) return;
    const AccessCounts within = CountAllAccesses(module, loop->body);
    std::map<BufferId, int> uses;  // 1: filled; 2: then multiplied; 3: otherwise
    for (const ir::Stmt& inner : loop->body) {
      for (const auto& [id, count] : CountAllAccesses(module, ir::Block{inner})) {
        if (module[id].space != ir::Space::kShared || module[id].versions != 1) continue;
        int& use = uses[id];
        const bool multiplied = use != 0 && std::holds_alternative<ir::Gemm>(inner.op);
        use = use == 0 && count.reads == 0 && fills(inner, id) ? 1 : multiplied && use != 3 ? 2 : 3;
      }
    }
    for (const auto& [id, use] : uses)
      if (use == 2 && within.at(id).all() == everywhere.at(id).all()) refilled.emplace(id, loop);
  });
  return refilled;
}

// Gives the tiles two versions.
void Alternate(ir::Module& module, ir::Kernel& kernel, const Refilled& refilled) {
  for (const auto& [id, loop] : refilled) {
    ir::ExprPool& pool = module.exprs;
    const ir::ExprId var = module.VarRef(loop->vars[0]);
    const ir::ExprId version = pool.Make(ir::ExprOp::kFloorMod, {var, pool.Int(2, pool.Type(var))});
    AddVersions(module, id, 2);
    UseVersion(module, loop->body, id, pool.Cast(ir::DType::kI32, version));
    kernel.decisions.push_back({"shared_memory", id, "two versions, in turn", "a group of warps fills one while another's product reads the other"});
  }
}

// Each buffer's offset, and the kernel's bytes. `twice`: these buffers are to have two versions.
void Place(ir::Module& module, ir::Kernel& kernel, const std::map<BufferId, Lifetime>& lifetimes, const Refilled& twice) {
  std::vector<BufferId> order;
  for (const auto& [id, life] : lifetimes) order.push_back(id);
  // Large ones first, then by id: the same places in every process.
  std::ranges::stable_sort(order, std::ranges::greater(), [&](BufferId id) { return SharedBytes(module[id]); });
  std::vector<Packed> buffers;
  for (BufferId id : order) {
    const int64_t bytes = SharedBytes(module[id]) + (twice.contains(id) ? VersionBytes(module, id) : 0);
    buffers.push_back({bytes, SharedAlignment(module[id]), lifetimes.at(id)});
  }
  const Packing packing = Pack(buffers);
  for (size_t i = 0; i < order.size(); ++i) module[order[i]].shared_offset = packing.offsets[i];
  kernel.shared_bytes = packing.bytes;
}

void Place(ir::Module& module, ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics) {
  // A large block whose warps have roles is alone on its multiprocessor: nobody else gets the shared memory that it leaves.
  if (kernel.producers != 0 && kernel.threads >= kLargeBlock) {
    const std::map<BufferId, Lifetime> apart = LifetimeFinder(module, /*apart=*/true).Of(kernel);
    const Refilled refilled = RefilledIn(module, kernel);
    Place(module, kernel, apart, refilled);
    if (kernel.shared_bytes <= int64_t(context.target->max_shared_bytes)) return Alternate(module, kernel, refilled);
    Place(module, kernel, apart, {});
    if (kernel.shared_bytes <= int64_t(context.target->max_shared_bytes)) return;
  }
  const std::map<BufferId, Lifetime> lifetimes = LifetimeFinder(module, /*apart=*/false).Of(kernel);
  Place(module, kernel, lifetimes, {});
  if (kernel.shared_bytes > int64_t(context.target->max_shared_bytes)) {
    const auto largest = std::ranges::max_element(lifetimes, {}, [&](const auto& life) { return SharedBytes(module[life.first]); });
    SizeError(module, kernel, largest->first,
              fmt::format("kernel '{}' needs {} bytes of shared memory; {} has {} for a block:{}", kernel.name, kernel.shared_bytes,
                          context.target->name, context.target->max_shared_bytes, Table(module, lifetimes)),
              "use smaller tiles or fewer pipeline stages", diagnostics);
  }
}

}  // namespace

int64_t SharedBytes(const ir::Buffer& buffer) {
  const int64_t bytes = (buffer.layout->Addresses() * ir::Bits(buffer.dtype) + 7) / 8;
  return Align(bytes, 128);
}

ir::Result SharedMemory(ir::Module& module, const Context& context, ir::Diagnostics& diagnostics) {
  for (ir::Buffer& buffer : module.buffers) {
    if ((buffer.space != ir::Space::kShared && buffer.arrivals.empty()) || buffer.layout) continue;
    std::vector<int64_t> shape, strides;
    for (ir::ExprId extent : buffer.shape) shape.push_back(module.exprs.ConstInt(extent).value_or(1));
    strides.assign(shape.size(), 1);
    for (size_t d = shape.size(); d-- > 1;) strides[d - 1] = strides[d] * shape[d];
    buffer.layout = ir::Layout::Strided(shape, strides);
  }
  for (ir::Kernel& kernel : module.kernels) Place(module, kernel, context, diagnostics);
  if (diagnostics.HasErrors()) return std::unexpected(ir::Failed{});
  return {};
}

}  // namespace kiln::compiler
