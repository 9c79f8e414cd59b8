// SPDX-License-Identifier: Apache-2.0
#include "compiler/mapping/register_budget.h"

#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "compiler/analysis/access.h"
#include "compiler/analysis/declaration.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;

struct Lifetime {
  int64_t first, last;
};

// The span of the program in which each fragment holds values that are still needed. The span may be too short: a fragment that only one
// loop uses may have to keep its values from one iteration to the next, which this does not examine.
class Lifetimes {
 public:
  // `all`: of fragments without a layout too. `threads`: only of what some of these come to.
  explicit Lifetimes(const ir::Module& module, bool all = false, std::optional<ir::ThreadRange> threads = {})
      : module_(module), all_(all), threads_(threads) {}

  std::map<BufferId, Lifetime> Of(const ir::Kernel& kernel) {
    Visit(kernel.body);
    return std::move(lifetimes_);
  }

 private:
  void Visit(const ir::Block& block) {
    for (const ir::Stmt& stmt : block) {
      const int64_t start = ++clock_;
      for (const Access& access : AccessesOf(module_, stmt)) Touch(access.buffer);
      if (const auto* branch = std::get_if<ir::If>(&stmt.op)) {
        if (Come(branch->then_threads)) Visit(branch->then_body);
        if (Come(branch->else_threads)) Visit(branch->else_body);
      }
      if (const auto* loop = std::get_if<ir::While>(&stmt.op)) VisitLoop(loop->body, start);
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop != nullptr && loop->kind != ir::LoopKind::kParallel) VisitLoop(loop->body, start);
    }
  }

  bool Come(const std::optional<ir::ThreadRange>& branch) const {
    return !threads_ || !branch || (branch->begin < threads_->end && threads_->begin < branch->end);
  }

  // A value from before the loop that the loop uses lives to the loop's end.
  void VisitLoop(const ir::Block& body, int64_t start) {
    loops_.push_back(start);
    Visit(body);
    loops_.pop_back();
    for (const BufferId id : std::exchange(carried_[start], {})) lifetimes_.at(id).last = clock_;
    carried_.erase(start);
  }

  void Touch(BufferId id) {
    if (module_[id].space != ir::Space::kFragment || (!all_ && !module_[id].layout)) return;
    Lifetime& life = lifetimes_.try_emplace(id, Lifetime{clock_, clock_}).first->second;
    life.last = clock_;
    for (const int64_t start : loops_)
      if (life.first < start) carried_[start].insert(id);
  }

  const ir::Module& module_;
  const bool all_;
  const std::optional<ir::ThreadRange> threads_;
  int64_t clock_ = 0;
  std::vector<int64_t> loops_;  // where those around begin
  std::map<int64_t, std::set<BufferId>> carried_;
  std::map<BufferId, Lifetime> lifetimes_;
};

int64_t WordsOf(const ir::Buffer& buffer) { return (buffer.layout->Registers() * ir::Bits(buffer.dtype) + 31) / 32; }

// The moment at which the live fragments take the most registers, and how many.
struct Moment {
  int64_t when = 0, words = 0;
};
template <typename Words>
Moment Fullest(const std::map<BufferId, Lifetime>& lifetimes, const Words& words_of) {
  std::map<int64_t, int64_t> changes;
  for (const auto& [id, life] : lifetimes) {
    const int64_t words = words_of(id);
    changes[life.first] += words, changes[life.last + 1] -= words;
  }
  int64_t words = 0;
  Moment most;
  for (const auto& [time, change] : changes)
    if ((words += change) > most.words) most = {time, words};
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
  std::map<BufferId, Lifetime> lifetimes = Lifetimes(module).Of(kernel);
  const std::map<BufferId, int64_t> bits = LoadedBits(module, kernel);
  std::map<BufferId, int> blocks;
  std::set<BufferId> passing;
  FindPassing(module, kernel.body, blocks, passing);
  for (const BufferId id : passing)
    if (blocks[id] == 1) lifetimes.erase(id);
  return Fullest(lifetimes,
                 [&](BufferId id) {
                   const auto narrower = bits.find(id);
                   return narrower == bits.end() ? WordsOf(module[id]) : (module[id].layout->Registers() * narrower->second + 31) / 32;
                 })
      .words;
}

int64_t MostEvenWords(const ir::Module& module, const ir::Kernel& kernel, const ir::ThreadRange& threads) {
  return Fullest(Lifetimes(module, /*all=*/true, threads).Of(kernel),
                 [&](BufferId id) {
                   int64_t bits = ir::Bits(module[id].dtype);
                   for (int64_t extent : module.ShapeOf(id)) bits *= extent;
                   return bits / 32 / threads.Count();
                 })
      .words;
}

void CheckRegisters(const ir::Module& module, const ir::Kernel& kernel, const Context& context, ir::Diagnostics& diagnostics) {
  const std::map<BufferId, Lifetime> lifetimes = Lifetimes(module).Of(kernel);
  const int64_t when = Fullest(lifetimes, [&](BufferId id) { return WordsOf(module[id]); }).when;
  int64_t words = 0, most = 0;
  std::optional<BufferId> largest;
  std::string table;
  for (const auto& [id, life] : lifetimes) {
    if (when < life.first || when > life.last) continue;
    const int64_t own = WordsOf(module[id]);
    words += own;
    if (own > most) most = own, largest = id;
    table += "\n  " + module[id].name + ": " + std::to_string(own);
  }
  if (words <= context.max_fragment_registers()) return;
  SizeError(module, kernel, *largest,
            "fragments take " + std::to_string(words) + " registers of each thread at a time; a thread of " + std::string(context.target->name) +
                " has " + std::to_string(context.target->registers_per_thread) + ", and max_fragment_registers is " +
                std::to_string(context.max_fragment_registers()) + ":" + table,
            "use smaller tiles or more threads; a larger max_fragment_registers lets most of them spill", diagnostics);
}

}  // namespace kiln::compiler
