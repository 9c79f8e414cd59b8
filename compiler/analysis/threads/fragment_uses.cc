// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/fragment_uses.h"

#include <algorithm>
#include <map>
#include <tuple>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/threads/thread_range.h"
#include "ir/op.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::Space;

// The largest fragment of which every thread may hold a copy: 64 registers.
constexpr int64_t kMostReplicatedBits = 64 * 32;

class Collector {
 public:
  Collector(const ir::Module& module, const ir::ThreadRange& threads) : module_(module), threads_(threads) {}

  void Collect(ir::Block& block) {
    for (ir::Stmt& stmt : block) {
      if (auto* loop = std::get_if<ir::For>(&stmt.op)) {
        if (loop->kind == ir::LoopKind::kParallel) {
          AddLoop(stmt, *loop);
          continue;
        }
        Collect(loop->body);
      } else if (auto* branch = std::get_if<ir::If>(&stmt.op)) {
        const ir::ThreadRange outer = threads_;
        threads_ = branch->then_threads.value_or(outer);
        Collect(branch->then_body);
        threads_ = branch->else_threads.value_or(outer);
        Collect(branch->else_body);
        threads_ = outer;
      } else if (auto* loop = std::get_if<ir::While>(&stmt.op)) {
        Collect(loop->body);
      } else if (auto* gemm = std::get_if<ir::Gemm>(&stmt.op)) {
        uses_.gemms.push_back(gemm);
        AddFragment(gemm->a.buffer), AddFragment(gemm->b.buffer), AddFragment(gemm->c.buffer);
        if (gemm->metadata) AddFragment(gemm->metadata->buffer);
        continue;
      } else if (auto* reduce = std::get_if<ir::Reduce>(&stmt.op)) {
        uses_.reduces.push_back(reduce);
        AddFragment(reduce->src.buffer), AddFragment(reduce->dst.buffer);
        continue;
      } else if (auto* sum = std::get_if<ir::PairSum>(&stmt.op); sum != nullptr && sum->half) {
        uses_.halves.push_back(sum);
        AddFragment(sum->sum), AddFragment(*sum->half);
        continue;
      }
      AddScalars(stmt);
    }
  }

  FragmentUses Take() { return std::move(uses_); }

 private:
  void AddFragment(BufferId buffer) {
    if (module_[buffer].space != Space::kFragment || !seen_.insert(buffer).second) return;
    uses_.order.push_back(buffer);
    uses_.threads.emplace(buffer, threads_);
  }

  // Every thread runs a scalar statement, so it needs all of the fragment. Large fragments are staged for it.
  void AddScalars(const ir::Stmt& stmt) {
    for (const Access& access : AccessesOf(module_, stmt)) {
      if (module_[access.buffer].space != Space::kFragment || access.tile) continue;
      AddFragment(access.buffer);
      if (BitsOf(access.buffer) <= kMostReplicatedBits) uses_.whole.insert(access.buffer);
    }
  }

  int64_t BitsOf(BufferId buffer) const {
    int64_t bits = ir::Bits(module_[buffer].dtype);
    for (int64_t extent : module_.ShapeOf(buffer)) bits *= extent;
    return bits;
  }

  void AddLoop(const ir::Stmt& stmt, ir::For& loop) {
    LoopUse use{&loop, {}, ExtentsOf(module_, loop), 0};
    std::map<std::tuple<BufferId, bool, std::vector<int>, std::vector<int64_t>>, size_t> known;
    for (const Access& access : AccessesOf(module_, stmt)) {
      const ir::Buffer& buffer = module_[access.buffer];
      if (access.tile) continue;  // what a tensor of the loop may share memory with
      use.vector = std::max<int64_t>(use.vector, 128 / std::max(ir::Bits(buffer.dtype), 8));
      if (buffer.space == Space::kGlobal) {
        int64_t& narrowest = access.write ? use.written : use.read;
        narrowest = std::min<int64_t>(narrowest, std::max(ir::Bits(buffer.dtype), 8));
      }
      if (buffer.space != Space::kFragment) continue;
      AddFragment(access.buffer);
      if (std::optional<Projection> projection = ProjectionOf(module_, loop, access.indices)) {
        const auto [at, added] = known.try_emplace({access.buffer, access.write, projection->var, projection->offset}, use.fragments.size());
        if (!added) {
          ++use.fragments[at->second].count;
          continue;
        }
        const bool covers = projection->Covers(loop, module_, access.buffer);
        use.fragments.push_back({access.buffer, access.write, covers, *std::move(projection)});
      } else {
        use.elsewhere.insert(access.buffer);
      }
    }
    if (loop.coalesced_width > 0) use.vector = loop.coalesced_width;
    uses_.loops.push_back(std::move(use));
  }

  const ir::Module& module_;
  ir::ThreadRange threads_;  // that come to the statement
  FragmentUses uses_;
  std::set<BufferId> seen_;
};

}  // namespace

FragmentUses FragmentUsesOf(const ir::Module& module, ir::Kernel& kernel) {
  Collector collector(module, AllThreads(kernel));
  collector.Collect(kernel.body);
  return collector.Take();
}

}  // namespace kiln::compiler
