// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/shared_memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>

#include "compiler/analysis/access.h"
#include "compiler/analysis/declaration.h"
#include "compiler/analysis/definitions.h"
#include "compiler/analysis/grid_barriers.h"
#include "compiler/analysis/signals.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/mapping/residents.h"
#include "compiler/rewrite/lifetimes.h"
#include "compiler/rewrite/packing.h"
#include "compiler/rewrite/versions.h"
#include "compiler/rules/reduce.h"
#include "compiler/rules/roles.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;

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

// Where as many blocks fit beside each other all the same, the buffers of an innermost loop share no bytes. What the program says of registers, or
// needs all blocks at a time for, may let more fit than their fragments.
void PlaceApart(ir::Module& module, ir::Kernel& kernel, const std::map<BufferId, Lifetime>& together, const Context& context) {
  const target::Target& target = *context.target;
  const bool by_fragments = kernel.min_blocks == 0 && context.options.max_registers() == 0 && !OrdersBlocks(kernel.body);
  const auto most = [&] { return by_fragments ? MostBlocks(module, kernel, target) : MostBlocks(kernel, target); };
  const int64_t blocks = std::max<int64_t>(most(), 1);
  Place(module, kernel, LifetimesOf(module, kernel, {.apart = true}).buffers, {});
  if (kernel.shared_bytes > int64_t(target.max_shared_bytes) || most() < blocks) Place(module, kernel, together, {});
}

void Place(ir::Module& module, ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics) {
  // A large block whose warps have roles is alone on its multiprocessor: nobody else gets the shared memory that it leaves.
  if (kernel.producers != 0 && kernel.threads >= kLargeBlock) {
    const std::map<BufferId, Lifetime> apart = LifetimesOf(module, kernel, {.apart = true}).buffers;
    const Refilled refilled = RefilledIn(module, kernel);
    Place(module, kernel, apart, refilled);
    if (kernel.shared_bytes <= int64_t(context.target->max_shared_bytes)) return Alternate(module, kernel, refilled);
    Place(module, kernel, apart, {});
    if (kernel.shared_bytes <= int64_t(context.target->max_shared_bytes)) return;
  }
  const std::map<BufferId, Lifetime> lifetimes = LifetimesOf(module, kernel).buffers;
  Place(module, kernel, lifetimes, {});
  if (kernel.shared_bytes > int64_t(context.target->max_shared_bytes)) {
    const auto largest = std::ranges::max_element(lifetimes, {}, [&](const auto& life) { return SharedBytes(module[life.first]); });
    SizeError(module, kernel, largest->first,
              fmt::format("kernel '{}' needs {} bytes of shared memory; {} has {} for a block:{}", kernel.name, kernel.shared_bytes,
                          context.target->name, context.target->max_shared_bytes, Table(module, lifetimes)),
              "use smaller tiles or fewer pipeline stages", diagnostics);
  } else if (kernel.producers == 0) {
    PlaceApart(module, kernel, lifetimes, context);
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
