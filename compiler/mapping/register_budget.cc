// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/register_budget.h"

#include <algorithm>
#include <functional>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/declaration.h"
#include "compiler/rewrite/live_fragments.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;

int64_t WordsOf(const ir::Buffer& buffer) { return (buffer.layout->Registers() * ir::Bits(buffer.dtype) + 31) / 32; }

// The most registers that live fragments take at a time.
int64_t MostWords(const ir::Module& module, const ir::Kernel& kernel, const std::optional<ir::ThreadRange>& threads,
                  const std::function<int64_t(BufferId)>& words_of) {
  int64_t most = 0;
  ForEachMoment(module, kernel, threads, words_of, [&](int64_t words, const LiveFragments&) { most = std::max(most, words); });
  return most;
}

bool IsParallel(const ir::Stmt& stmt) {
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  return loop != nullptr && loop->kind == ir::LoopKind::kParallel;
}

// Fragments that parallel loops of a block write and read one after the other, or a reduction behind them: LLVM computes and uses each element in
// turn, so that few are in registers at a time. `blocks` counts the blocks whose own statements touch a fragment.
void FindPassing(const ir::Module& module, const ir::Block& block, std::map<BufferId, int>& blocks, std::set<BufferId>& passing) {
  std::map<BufferId, std::pair<size_t, size_t>> spans;
  std::set<BufferId> read_first;
  for (size_t i = 0; i < block.size(); ++i) {
    for (const Access& access : AccessesOf(module, block[i])) {
      if (module[access.buffer].space != ir::Space::kFragment) continue;
      const auto [at, first] = spans.try_emplace(access.buffer, i, i);
      at->second.second = i;
      if (first && !access.write) read_first.insert(access.buffer);
    }
    if (!IsParallel(block[i])) ir::ForEachBody(block[i].op, [&](const ir::Block& body) { FindPassing(module, body, blocks, passing); });
  }
  for (const auto& [id, span] : spans) {
    ++blocks[id];
    bool passes = !read_first.contains(id);
    for (size_t i = span.first; i < span.second; ++i)
      passes &= IsParallel(block[i]) || ir::IsOneOf<ir::Barrier, ir::AsyncCommit, ir::AsyncWait>(block[i].op);
    passes &= IsParallel(block[span.second]) || std::holds_alternative<ir::Reduce>(block[span.second].op);
    if (passes) passing.insert(id);
  }
}

// The statements that touch each fragment; a parallel loop is one.
void CountUses(const ir::Module& module, const ir::Block& block, std::map<BufferId, int>& uses) {
  for (const ir::Stmt& stmt : block) {
    std::set<BufferId> touched;
    for (const Access& access : AccessesOf(module, stmt)) touched.insert(access.buffer);
    for (const BufferId id : touched) ++uses[id];
    if (!IsParallel(stmt)) ir::ForEachBody(stmt.op, [&](const ir::Block& body) { CountUses(module, body, uses); });
  }
}

// Bits of an element as it is loaded, of fragments that one statement fills with what it loads, converted, and one other uses: it is converted there.
std::map<BufferId, int64_t> LoadedBits(const ir::Module& module, const ir::Kernel& kernel) {
  std::map<BufferId, int64_t> bits;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* store = std::get_if<ir::Store>(&stmt.op);
    if (store == nullptr || module.exprs[store->value].op != ir::ExprOp::kCast) return;
    const ir::ExprNode& from = module.exprs[module.exprs[store->value].args[0]];
    if (from.op == ir::ExprOp::kLoad && module[BufferId(from.ref)].space != ir::Space::kFragment) bits[store->buffer] = ir::Bits(from.dtype);
  });
  std::map<BufferId, int> uses;
  CountUses(module, kernel.body, uses);
  std::erase_if(bits, [&](const auto& known) { return uses[known.first] > 2; });
  return bits;
}

}  // namespace

int64_t MostFragmentWords(const ir::Module& module, const ir::Kernel& kernel) {
  const std::map<BufferId, int64_t> bits = LoadedBits(module, kernel);
  std::map<BufferId, int> blocks;
  std::set<BufferId> passing;
  FindPassing(module, kernel.body, blocks, passing);
  const auto words_of = [&](BufferId id) -> int64_t {
    if (!module[id].layout || (passing.contains(id) && blocks[id] == 1)) return 0;
    const auto narrower = bits.find(id);
    return narrower == bits.end() ? WordsOf(module[id]) : (module[id].layout->Registers() * narrower->second + 31) / 32;
  };
  return MostWords(module, kernel, {}, words_of);
}

int64_t MostEvenWords(const ir::Module& module, const ir::Kernel& kernel, const ir::ThreadRange& threads) {
  const auto words_of = [&](BufferId id) {
    int64_t bits = ir::Bits(module[id].dtype);
    for (int64_t extent : module.ShapeOf(id)) bits *= extent;
    return bits / 32 / threads.Count();
  };
  return MostWords(module, kernel, threads, words_of);
}

void CheckRegisters(const ir::Module& module, const ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics) {
  const auto words_of = [&](BufferId id) { return module[id].layout ? WordsOf(module[id]) : 0; };
  const int64_t words = MostWords(module, kernel, {}, words_of);
  if (words <= context.max_fragment_registers()) return;
  LiveFragments live;
  ForEachMoment(module, kernel, {}, words_of, [&](int64_t then, const LiveFragments& now) {
    if (then == words) live = now;
  });
  const BufferId largest = *std::ranges::max_element(live, {}, words_of);
  std::string table;
  for (const BufferId id : live)
    if (module[id].layout) table += "\n  " + module[id].name + ": " + std::to_string(WordsOf(module[id]));
  SizeError(module, kernel, largest,
            "fragments take " + std::to_string(words) + " registers of each thread at a time; a thread of " + std::string(context.target->name) +
                " has " + std::to_string(context.target->registers_per_thread) + ", and max_fragment_registers is " +
                std::to_string(context.max_fragment_registers()) + ":" + table,
            "use smaller tiles or more threads; a larger max_fragment_registers lets most of them spill", diagnostics);
}

}  // namespace kiln::compiler
