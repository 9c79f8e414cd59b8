// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/statements.h"

#include <algorithm>
#include <iterator>

#include "compiler/analysis/iterations.h"
#include "compiler/rewrite/versions.h"
#include "compiler/synchronize/shared_memory.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ByDepth = std::vector<std::vector<const ir::Stmt*>>;

void Find(const ir::Block& block, size_t depth, ByDepth& all) {
  all.resize(std::max(all.size(), depth + 1));
  for (const ir::Stmt& stmt : block) {
    all[depth].push_back(&stmt);
    if (const auto* branch = std::get_if<ir::If>(&stmt.op)) Find(branch->then_body, depth, all), Find(branch->else_body, depth, all);
    if (const auto* loop = std::get_if<ir::While>(&stmt.op)) Find(loop->body, depth + 1, all);
    if (const auto* loop = std::get_if<ir::For>(&stmt.op)) Find(loop->body, depth + 1, all);
  }
}

}  // namespace

Special FindSpecial(const ir::Module& module, const ir::Block& body) {
  Special special;
  std::set<ir::BufferId> written;
  ir::Walk(body, [&](const ir::Stmt& stmt) {
    for (const Access& access : AccessesOf(module, stmt)) (access.write ? written : special.read_only).insert(access.buffer);
    special.signals |= IsSignal(stmt);
    if (Acquires(stmt)) special.acquire.insert(&stmt);
    if (Releases(stmt)) special.release.insert(&stmt);
    const auto* copy = std::get_if<ir::Copy>(&stmt.op);
    if (copy != nullptr && copy->plan && copy->plan->ring) special.in_rings.insert(copy->dst.buffer);
    if (copy != nullptr && copy->plan && copy->plan->groups_m != 0) special.by_group.insert(copy->src.buffer);
    const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
    if (gemm != nullptr && gemm->plan && gemm->plan->in_flight) special.in_flight[gemm->c.buffer].push_back(&stmt);
  });
  std::erase_if(special.read_only,
                [&](ir::BufferId id) { return module[id].space != ir::Space::kGlobal || written.contains(id) || !special.release.empty(); });
  return special;
}

bool IsTensor(const ir::Stmt& stmt) {
  const auto* copy = std::get_if<ir::Copy>(&stmt.op);
  return copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor && !copy->signals;
}

bool IsOfSingleThreads(const ir::Stmt& stmt) {
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  return loop == nullptr || loop->kind != ir::LoopKind::kParallel;
}

bool Overlap(const ir::Module& module, ir::BufferId a, ir::BufferId b) {
  if (a == b) return IsMemory(module[a].space);
  const ir::Buffer &x = module[a], &y = module[b];
  if (x.space != ir::Space::kShared || y.space != ir::Space::kShared || !x.shared_offset || !y.shared_offset) return false;
  return *x.shared_offset < *y.shared_offset + SharedBytes(y) && *y.shared_offset < *x.shared_offset + SharedBytes(x);
}

bool AreElementsApart(const IndexSteps& indices, const ir::Stmt& first, std::span<const Access> of_first, bool writes, const ir::Stmt& second,
                      const Access& access) {
  if (!IsOfSingleThreads(first) || !IsOfSingleThreads(second)) return false;
  bool found = false;  // a pass' own memory, as of a reduction, is not among the accesses of its statement
  for (const Access& before : of_first) {
    if (before.buffer != access.buffer || before.write != writes) continue;
    if (!NeverMeet(indices, before, access)) return false;
    found = true;
  }
  return found;
}

bool HaveTheSameThread(const Digits& digits, const ir::ThreadRange& threads, const ir::Stmt& first, std::span<const Access> of_first, bool writes,
                       const ir::Stmt& second, const Access& access) {
  return HaveTheSameIndices(first, of_first, writes, second, access) && digits.TellThread(access.indices, threads);
}

bool HaveTheSameIndices(const ir::Stmt& first, std::span<const Access> of_first, bool writes, const ir::Stmt& second, const Access& access) {
  if (access.tile || !IsOfSingleThreads(second) || !IsOfSingleThreads(first)) return false;
  return std::ranges::all_of(of_first, [&](const Access& before) {
    return before.buffer != access.buffer || before.write != writes || (!before.tile && before.indices == access.indices);
  });
}

bool Commute(const ir::Stmt& a, const ir::Stmt& b) {
  const auto *one = std::get_if<ir::Atomic>(&a.op), *other = std::get_if<ir::Atomic>(&b.op);
  if (one == nullptr || other == nullptr || one->kind != other->kind || one->buffer != other->buffer) return false;
  return one->kind != ir::AtomicKind::kExchange && one->kind != ir::AtomicKind::kCompareExchange && one->kind != ir::AtomicKind::kStore;
}

bool AreAtomics(const ir::Stmt& a, const ir::Stmt& b) {
  const auto is_in_one_step = [](const ir::Stmt& stmt) {
    const auto* atomic = std::get_if<ir::Atomic>(&stmt.op);
    return atomic != nullptr && atomic->kind != ir::AtomicKind::kStore;
  };
  return is_in_one_step(a) && is_in_one_step(b);
}

bool AreOrdered(const ir::Module& module, const Special& special, const ir::Stmt& first, ir::BufferId before, const ir::Stmt& second,
                ir::BufferId after) {
  const auto is_global = [&](ir::BufferId buffer) { return module[buffer].space == ir::Space::kGlobal; };
  return (is_global(before) && special.release.contains(&second)) || (is_global(after) && special.acquire.contains(&first));
}

std::vector<const ir::Stmt*> OutermostFirst(const ir::Block& body) {
  ByDepth by_depth;
  Find(body, 0, by_depth);
  std::vector<const ir::Stmt*> all;
  for (const auto& those : by_depth) std::ranges::copy(those, std::back_inserter(all));
  return all;
}

void TestReadsInside(ir::Module& module, ir::Block& block) {
  ir::Walk(block, [&](ir::Stmt& stmt) {
    auto* loop = std::get_if<ir::While>(&stmt.op);
    const auto reads_memory = [&](const Access& access) { return IsMemory(module[access.buffer].space); };
    if (loop != nullptr && std::ranges::any_of(AccessesOf(module, stmt), reads_memory)) TestInside(module, *loop, stmt.loc);
  });
}

}  // namespace kiln::compiler
