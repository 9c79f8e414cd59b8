// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/traffic.h"

#include <algorithm>
#include <cmath>
#include <map>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/contains.h"
#include "compiler/analysis/threads/register_map.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::Stmt;
using ir::VarId;

constexpr double kManyTurns = 64;  // assumed iterations of a loop whose extent is not known

// Counts the traffic of one block. What every block reads stays in the L2 and does not count.
class Counter {
 public:
  Counter(const ir::Module& module, const ir::Kernel& kernel) : module_(module), by_block_(kernel.block_vars.begin(), kernel.block_vars.end()) {
    Visit(kernel.body, 1);
  }

  bool plain = true;  // no tensor copies, products, or sums of several blocks
  double read = 0, written = 0;
  std::set<BufferId> outputs;

 private:
  void Visit(const ir::Block& block, double turns) {
    for (const Stmt& stmt : block) {
      std::visit(ir::Overloaded{
                     [&](const ir::For& op) {
                       if (op.kind == ir::LoopKind::kParallel) return Count(stmt, op, turns);
                       const auto extent = module_.exprs.ConstInt(op.extents[0]);
                       Visit(op.body, turns * (extent ? double(*extent) : kManyTurns));
                     },
                     [&](const ir::While& op) { Visit(op.body, turns * kManyTurns); },
                     [&](const ir::If& op) { Visit(op.then_body, turns), Visit(op.else_body, turns); },
                     [&](const ir::Let& op) {
                       if (ContainsVar(module_.exprs, op.value, by_block_)) by_block_.insert(op.var);
                     },
                     [&](const ir::Copy&) { plain = false; },
                     [&](const ir::Gemm&) { plain = false; },
                     [&]<ir::OneOf<ir::Mma, ir::Call> T>(const T&) { plain = false; },
                     [&](const ir::StreamSum&) { plain = false; },
                     ir::Ignored<ir::Alloc, ir::Store, ir::Assume, ir::AnyElementwise, ir::Reduce, ir::Atomic, ir::Barrier, ir::Break, ir::Continue,
                                 ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit, ir::AsyncWait, ir::RingStep, ir::PairSum>{},
                 },
                 stmt.op);
    }
  }

  // The variables of the loop that the indices use, directly or through lets, determine how many elements the access touches.
  void Count(const Stmt& stmt, const ir::For& loop, double turns) {
    const std::vector<int64_t> extents = ExtentsOf(module_, loop);
    std::vector<std::set<VarId>> by_loop;  // for each of its variables: itself and those that lets derive from it
    for (VarId var : loop.vars) by_loop.push_back(WithLets(loop.body, {var}));
    by_block_ = WithLets(loop.body, std::move(by_block_));
    std::set<std::pair<BufferId, std::vector<ExprId>>> seen;
    for (const Access& access : AccessesOf(module_, stmt)) {
      const ir::Buffer& buffer = module_[access.buffer];
      if (buffer.space != ir::Space::kGlobal || (!access.write && !ByBlock(access))) continue;
      if (!access.write && !seen.insert({access.buffer, access.indices}).second) continue;
      double bytes = turns * double(ir::Bits(buffer.dtype)) / 8;
      for (size_t i = 0; i < extents.size(); ++i)
        if (Uses(access, by_loop[i])) bytes *= double(extents[i]);
      (access.write ? written : read) += bytes;
      if (access.write) outputs.insert(access.buffer);
    }
  }

  std::set<VarId> WithLets(const ir::Block& body, std::set<VarId> vars) const {
    ir::Walk(body, [&](const Stmt& stmt) {
      const auto* let = std::get_if<ir::Let>(&stmt.op);
      if (let != nullptr && ContainsVar(module_.exprs, let->value, vars)) vars.insert(let->var);
    });
    return vars;
  }

  bool ByBlock(const Access& access) const { return Uses(access, by_block_); }
  bool Uses(const Access& access, const std::set<VarId>& vars) const {
    return std::ranges::any_of(access.indices, [&](ExprId index) { return ContainsVar(module_.exprs, index, vars); });
  }

  const ir::Module& module_;
  std::set<VarId> by_block_;
};

}  // namespace

std::set<BufferId> KeptTensors(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target) {
  if (target.emulated || !target.Has(target::Feature::kTma) || kernel.producers > 0) return {};
  Counter counter(module, kernel);
  const bool alike = std::abs(counter.read - counter.written) <= target.costs.reads_alike * counter.written;
  return counter.plain && alike ? std::move(counter.outputs) : std::set<BufferId>{};
}

std::set<BufferId> ReadOnceTensors(const ir::Module& module, const ir::Kernel& kernel, const target::Target& target) {
  if (target.emulated || target.family != target::Family::kNvptx || kernel.producers > 0) return {};
  std::map<BufferId, int64_t> read;  // elements of the shortest loop
  int64_t most_read = 0, most_written = 0;
  std::set<BufferId> once, written;
  ir::Walk(kernel.body, [&](const Stmt& stmt) {
    const auto* loop = std::get_if<ir::For>(&stmt.op);
    int64_t elements = 1;
    const bool parallel = loop != nullptr && loop->kind == ir::LoopKind::kParallel;
    if (parallel)
      for (int64_t extent : ExtentsOf(module, *loop)) elements *= extent;
    for (const Access& access : AccessesOf(module, stmt)) {
      if (access.write) written.insert(access.buffer);
      if (!parallel || module[access.buffer].space != ir::Space::kGlobal) continue;
      int64_t& most = access.write ? most_written : most_read;
      most = std::max(most, elements);
      if (access.write) continue;
      int64_t& least = read.try_emplace(access.buffer, elements).first->second;
      least = std::min(least, elements);
    }
  });
  if (most_written * target.costs.mostly_reads > most_read) return {};
  for (const auto& [buffer, least] : read)
    if (least * target.costs.mostly_reads > most_read && !written.contains(buffer)) once.insert(buffer);
  return once;
}

}  // namespace kiln::compiler
