// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/lower/proxy_fences.h"

#include <algorithm>

#include "compiler/analysis/access.h"
#include "compiler/analysis/signals.h"
#include "compiler/rules/gemm.h"
#include "compiler/synchronize/shared_memory.h"
#include "ir/visit.h"

namespace kiln::llvm_ir {
namespace {

// Loops in more loops than these are taken to begin with everything touched.
constexpr int kMostNested = 3;

bool IsTensorCopy(const ir::Stmt& stmt) {
  const auto* copy = std::get_if<ir::Copy>(&stmt.op);
  return copy != nullptr && copy->plan && copy->plan->instruction == ir::CopyInstruction::kTensor;
}

}  // namespace

ProxyFences::ProxyFences(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target) : module_(module), target_(target) {
  follows_ = kernel.producers == 0 && kernel.ClusterBlocks() == 1 && !compiler::HasSignals(kernel);
  if (!follows_) return;
  FindRanges(kernel.body);
  Behind(kernel.body, {}, 0);
}

bool ProxyFences::IsByUnit(const ir::Stmt& stmt) const {
  const auto* gemm = std::get_if<ir::Gemm>(&stmt.op);
  return gemm != nullptr && RowOf(*gemm, target_).in_flight && !gemm->plan->by_warps;
}

ProxyFences::Range ProxyFences::RangeOf(ir::BufferId buffer) const {
  const int64_t begin = *module_[buffer].shared_offset;
  return {begin, begin + compiler::SharedBytes(module_[buffer])};
}

void ProxyFences::FindRanges(const ir::Block& block) {
  ir::Walk(block, [&](const ir::Stmt& stmt) {
    follows_ &= !std::holds_alternative<ir::RingStep>(stmt.op);
    const auto add = [&](ir::BufferId buffer, std::vector<Range>& ranges) {
      if (module_[buffer].space == ir::Space::kShared) ranges.push_back(RangeOf(buffer));
    };
    if (IsByUnit(stmt)) {
      const auto& gemm = std::get<ir::Gemm>(stmt.op);
      add(gemm.a.buffer, read_), add(gemm.b.buffer, read_);
    } else if (IsTensorCopy(stmt)) {
      const auto& copy = std::get<ir::Copy>(stmt.op);
      add(copy.src.buffer, read_), add(copy.dst.buffer, written_);
    }
  });
}

const ProxyFences::State& ProxyFences::TouchedBy(const ir::Stmt& stmt) {
  const auto [it, added] = touched_.try_emplace(&stmt);
  if (!added || IsByUnit(stmt) || IsTensorCopy(stmt)) return it->second;
  const auto touch = [&](ir::BufferId buffer, bool write, bool async) {
    if (module_[buffer].space != ir::Space::kShared) return;
    const Range range = RangeOf(buffer);
    const auto meets = [&](const Range& other) { return range.first < other.second && other.first < range.second; };
    if (!(write && std::ranges::any_of(read_, meets)) && std::ranges::none_of(written_, meets)) return;
    (async ? it->second.copying : it->second.touched) = true;
  };
  for (const compiler::Access& access : compiler::AccessesOf(module_, stmt)) touch(access.buffer, access.write, access.async);
  if (const auto scratch = compiler::ScratchOf(stmt)) touch(*scratch, /*write=*/true, /*async=*/false);
  return it->second;
}

ProxyFences::State ProxyFences::Behind(const ir::Block& block, State state, int depth) {
  for (const ir::Stmt& stmt : block) state = Behind(stmt, state, depth);
  return state;
}

// The body begins as the loop does, or as an iteration ends.
ProxyFences::State ProxyFences::BehindLoop(const ir::Block& body, State state, int depth) {
  if (depth >= kMostNested) state = {true, true};
  for (State before = state;; before = state) {
    const State behind = Behind(body, before, depth + 1);
    state = before | behind | left_;
    if (state == before) return state;
  }
}

ProxyFences::State ProxyFences::Behind(const ir::Stmt& stmt, State state, int depth) {
  const State own = TouchedBy(stmt);
  state = state | own;
  if (const auto* branch = std::get_if<ir::If>(&stmt.op)) return Behind(branch->then_body, state, depth) | Behind(branch->else_body, state, depth);
  if (const auto* wait = std::get_if<ir::AsyncWait>(&stmt.op); wait != nullptr && !wait->stores && !wait->product) state.touched |= state.copying;
  if (ir::IsOneOf<ir::Break, ir::Continue>(stmt.op)) left_ = left_ | state;
  if (std::holds_alternative<ir::Barrier>(stmt.op) || compiler::ScratchOf(stmt)) {
    if (state.touched) needed_.insert(&stmt);
    state.touched = own.touched;  // behind the barrier, too
    return state;
  }
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop != nullptr && loop->kind == ir::LoopKind::kParallel) return state;
  ir::ForEachBody(stmt.op, [&](const ir::Block& body) { state = BehindLoop(body, state, depth); });
  return state;
}

}  // namespace kiln::llvm_ir
