// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/gathers.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <numeric>
#include <optional>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/analysis/digits.h"
#include "compiler/analysis/threads/own_run.h"
#include "compiler/analysis/threads/register_map.h"
#include "compiler/analysis/threads/thread_loop.h"
#include "compiler/analysis/threads/vector_width.h"
#include "compiler/analysis/threads/walk_together.h"
#include "ir/op.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprOp;
using ir::Space;

constexpr int64_t kMostBytes = 16;  // of one cp.async; 4 is the least

class Finder {
 public:
  Finder(ir::Module& module, ir::Kernel& kernel, const Context& context)
      : module_(module), kernel_(kernel), context_(context), digits_(module, kernel) {}

  void Run() {
    ir::Walk(kernel_.body, [&](const ir::Stmt& stmt) {
      const auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop == nullptr || loop->kind != ir::LoopKind::kPipelined || loop->num_stages < 2) return;
      for (const ir::Stmt& inner : loop->body) ahead_.insert(&inner);
    });
    WalkTogether(module_, kernel_, [this](ir::Stmt& stmt, const Facts& facts, const ir::ThreadRange& threads) {
      if (ir::Store* store = StoreOfEach(module_, stmt, digits_, threads)) return ConsiderOwn(stmt, std::get<ir::For>(stmt.op), *store, facts);
      auto* loop = std::get_if<ir::For>(&stmt.op);
      if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1) return;
      if (auto* store = std::get_if<ir::Store>(&loop->body[0].op)) Consider(stmt, *loop, *store, facts, threads);
    });
  }

 private:
  // What each thread moves for itself: the elements need no registers on their way.
  void ConsiderOwn(ir::Stmt& stmt, ir::For& loop, ir::Store& store, const Facts& outside) {
    const std::optional<ir::Read> read = ReadOf(store);
    if (!read || !Moves(store, read->load)) return;
    Facts facts = outside;
    facts.EnterLoop(loop);
    const int64_t vector = Width(loop, store, *read, facts, /*clipped=*/false), bytes = vector * ir::Bytes(module_[store.buffer].dtype);
    if (!IsCopied(bytes)) return;
    const ir::For before = loop;
    MakeRun(module_, loop, vector);
    store.value = read->value;
    store.async = true;
    if (!ThreadLoop(module_, facts, stmt).Split(store.buffer, store.indices)) {
      loop = before;
      return;
    }
    kernel_.decisions.push_back(
        {"gathers", store.buffer, fmt::format("asynchronous copies of {} bytes", bytes), "each thread copies for itself", stmt.loc});
  }

  static bool IsCopied(int64_t bytes) { return bytes >= 4 && bytes <= kMostBytes && std::has_single_bit(uint64_t(bytes)); }

  void Consider(ir::Stmt& stmt, ir::For& loop, ir::Store& store, const Facts& outside, const ir::ThreadRange& threads) {
    const std::optional<ir::Read> read = ReadOf(store);
    if (!read || !Moves(store, read->load)) return;
    Facts facts = outside;
    facts.EnterLoop(loop);
    const int64_t vector = Width(loop, store, *read, facts, /*clipped=*/!read->mask), bytes = vector * ir::Bytes(module_[store.buffer].dtype);
    // Where nothing runs ahead and no row has to be found, loads and stores of short vectors do as well.
    if (bytes < kMostBytes && !ahead_.contains(&stmt) && !read->mask && !FindsRows(read->load)) return;
    // A loop that finds its rows in a fragment has a layout already.
    if (!IsCopied(bytes) || (loop.layout && !HasRuns(*loop.layout, vector))) return;
    const ir::For before = loop;
    if (!loop.layout) loop.layout = ir::Layout::Distributed(ExtentsOf(module_, loop), threads.Count(), vector).Normalized();
    loop.coalesced_width = uint32_t(vector);
    store.value = read->value;
    store.async = true;
    if (!ThreadLoop(module_, facts, stmt).Split(store.buffer, store.indices)) {
      loop = before;
      return;
    }
    const std::string why = read->mask              ? "each row has its own place; zeros where the mask does not hold"
                            : FindsRows(read->load) ? "each row has its own place"
                                                    : "the elements need no registers on their way";
    kernel_.decisions.push_back({"gathers", store.buffer, fmt::format("asynchronous copies of {} bytes", bytes), why, stmt.loc});
  }

  // Whether each thread has registers for so many neighbours in the last variable, one behind another.
  static bool HasRuns(const ir::Layout& layout, int64_t vector) {
    const auto& last = layout.dims().back();
    return vector == 1 || (!last.empty() && last[0].place == ir::Place::kRegister && last[0].stride == 1 && last[0].size % vector == 0);
  }

  // The one read that becomes the element, a choice between it and zero as a masked load. nullopt: the value is something else.
  std::optional<ir::Read> ReadOf(const ir::Store& store) {
    const ir::ExprNode node = module_.exprs[store.value];
    if (node.op == ExprOp::kLoad) return ir::Read{store.value, store.value, {}};
    if (!ir::Chooses(node.op) || module_.exprs[node.args[1]].op != ExprOp::kLoad || !IsZero(node.args[2])) return std::nullopt;
    return ir::Read{module_.exprs.Make(ExprOp::kMasked, {node.args[0], node.args[1], node.args[2]}), node.args[1], node.args[0]};
  }

  // Zero as memory holds it: no bit is set.
  bool IsZero(ExprId id) const {
    const ir::ExprNode& node = module_.exprs[id];
    if (node.op == ExprOp::kConstInt) return node.int_value == 0;
    return node.op == ExprOp::kConstFloat && node.FloatValue() == 0 && !std::signbit(node.FloatValue());
  }

  bool Moves(const ir::Store& store, ExprId load) const {
    const ir::ExprNode& node = module_.exprs[load];
    const ir::Buffer &from = module_[ir::BufferId(node.ref)], &to = module_[store.buffer];
    if (from.space != Space::kGlobal || to.space != Space::kShared || !to.layout || from.dtype != to.dtype || ir::Bits(to.dtype) < 8) return false;
    if (from.pad_value.value_or(0) != 0) return false;
    // An index or a mask that reads the tile itself reads what the loop overwrites.
    std::vector<Access> reads;
    CollectLoads(module_.exprs, store.value, reads);
    for (ExprId index : store.indices) CollectLoads(module_.exprs, index, reads);
    return std::ranges::none_of(reads, [&](const Access& read) { return read.buffer == store.buffer; });
  }

  bool FindsRows(ExprId load) const {
    std::vector<Access> reads;
    for (ExprId index : module_.exprs[load].Args()) CollectLoads(module_.exprs, index, reads);
    return !reads.empty();
  }

  // Neighbours that one copy takes: they are neighbours on both sides, and one mask decides on all of them. `clipped`: the copy may
  // stop at the end of a row.
  int64_t Width(const ir::For& loop, const ir::Store& store, const ir::Read& read, const Facts& facts, bool clipped) const {
    const ir::ExprNode& node = module_.exprs[read.load];
    const int64_t alignment = context_.pointer_alignment();
    int64_t most = std::gcd(kMostBytes / ir::Bytes(node.dtype), ExtentsOf(module_, loop).back());
    if (loop.coalesced_width > 0) most = std::gcd<int64_t>(most, loop.coalesced_width);
    if (most <= 0) return 0;
    const Access from{ir::BufferId(node.ref), false, false, {node.Args().begin(), node.Args().end()}, false, {}, read.load, read.mask};
    const size_t last = loop.vars.size() - 1;
    const int64_t width =
        clipped ? OwnWidth(module_, facts, loop, last, from, most, alignment) : AccessWidth(module_, facts, loop, last, from, most, alignment);
    return std::min(width, VectorWidth(module_, facts, loop, store.buffer, store.indices, most, alignment));
  }

  ir::Module& module_;
  ir::Kernel& kernel_;
  const Context& context_;
  const Digits digits_;
  std::set<const ir::Stmt*> ahead_;  // statements of pipelined loops
};

// The tile of an async copy; nullopt: the statement is none.
std::optional<ir::BufferId> AsyncInto(const ir::Stmt& stmt) {
  if (const ir::Store* gather = AsyncGather(stmt)) return gather->buffer;
  const auto* copy = std::get_if<ir::Copy>(&stmt.op);
  return copy != nullptr && IsAsync(*copy) ? std::optional(copy->dst.buffer) : std::nullopt;
}

void Close(ir::Block& block, bool in_group) {
  ir::Block result;
  const auto commits = [&](size_t i) { return i < block.size() && std::holds_alternative<ir::AsyncCommit>(block[i].op); };
  for (size_t i = 0; i < block.size();) {
    if (AsyncInto(block[i])) {
      size_t end = i;
      while (end < block.size() && AsyncInto(block[end])) ++end;
      const bool own = !in_group && !commits(end);  // else a pipeline's
      for (; i < end; ++i) {
        const bool last = i + 1 == end || AsyncInto(block[i + 1]) != AsyncInto(block[i]);
        result.push_back(std::move(block[i]));
        if (own && last) result.push_back({ir::AsyncCommit{}, {}});
      }
      continue;
    }
    ir::Stmt& stmt = block[i];
    // A pipeline commits its guarded copies right after the guard.
    const bool group = commits(++i);
    if (auto* loop = std::get_if<ir::For>(&stmt.op)) Close(loop->body, false);
    if (auto* repeat = std::get_if<ir::While>(&stmt.op)) Close(repeat->body, false);
    if (auto* branch = std::get_if<ir::If>(&stmt.op)) Close(branch->then_body, group), Close(branch->else_body, false);
    result.push_back(std::move(stmt));
  }
  block = std::move(result);
}

}  // namespace

bool IsAsync(const ir::Copy& copy) { return copy.plan && copy.plan->instruction == ir::CopyInstruction::kAsync; }

void CloseGroups(ir::Block& block) { Close(block, false); }

const ir::Store* AsyncGather(const ir::Stmt& stmt) {
  const auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop == nullptr || loop->kind != ir::LoopKind::kParallel || loop->body.size() != 1) return nullptr;
  const auto* store = std::get_if<ir::Store>(&loop->body[0].op);
  return store != nullptr && store->async ? store : nullptr;
}

void Gathers(ir::Module& module, ir::Kernel& kernel, const Context& context) {
  if (!context.target->Has(target::Feature::kCpAsync) || context.options.disable_async_copy()) return;
  Finder(module, kernel, context).Run();
}

}  // namespace kiln::compiler
