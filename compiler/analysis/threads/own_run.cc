// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/threads/own_run.h"

#include <algorithm>
#include <array>
#include <optional>
#include <vector>

#include "compiler/analysis/access.h"

namespace kiln::compiler {
namespace {

constexpr int64_t kMostElements = 64;  // which are written out one after another

}  // namespace

ir::Store* StoreOfEach(const ir::Module& module, ir::Stmt& stmt, const Digits& digits, const ir::ThreadRange& threads) {
  auto* loop = std::get_if<ir::For>(&stmt.op);
  if (loop == nullptr || (loop->kind != ir::LoopKind::kSerial && loop->kind != ir::LoopKind::kUnroll)) return nullptr;
  if (loop->vars.size() != 1 || loop->body.size() != 1) return nullptr;
  auto* store = std::get_if<ir::Store>(&loop->body[0].op);
  const std::optional<int64_t> extent = module.exprs.ConstInt(loop->extents[0]);
  if (store == nullptr || !extent || *extent < 2 || *extent > kMostElements) return nullptr;
  const std::vector<Access> accesses = AccessesOf(module, loop->body[0]);
  // A fragment's elements are found by the layout of the loop that uses them, which has no threads here.
  const bool cannot = std::ranges::any_of(accesses, [&](const Access& access) {
    return module[access.buffer].space == ir::Space::kFragment || (!access.write && access.buffer == store->buffer);
  });
  if (cannot || !digits.TellIteration(store->indices, loop->vars[0], threads) || !digits.TellThread(store->indices, threads)) return nullptr;
  return store;
}

void MakeRun(const ir::Module& module, ir::For& loop, int64_t width) {
  const std::array<int64_t, 1> extents{*module.exprs.ConstInt(loop.extents[0])};
  loop.kind = ir::LoopKind::kVectorized;
  loop.layout = ir::Layout::Distributed(extents, 1, width).Normalized();
  loop.coalesced_width = uint32_t(width);
}

}  // namespace kiln::compiler
