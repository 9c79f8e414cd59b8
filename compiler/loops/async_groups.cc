// SPDX-License-Identifier: Apache-2.0
#include "compiler/loops/async_groups.h"

#include <optional>
#include <utility>

#include "compiler/loops/gathers.h"

namespace kiln::compiler {
namespace {

using ir::Block;
using ir::BufferId;
using ir::Stmt;

// The tile of an async copy; nullopt: the statement is none.
std::optional<BufferId> AsyncInto(const Stmt& stmt) {
  if (const ir::Store* gather = AsyncGather(stmt)) return gather->buffer;
  const auto* copy = std::get_if<ir::Copy>(&stmt.op);
  return copy != nullptr && IsAsync(*copy) ? std::optional(copy->dst.buffer) : std::nullopt;
}

void Close(Block& block, bool in_group) {
  Block result;
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
    Stmt& stmt = block[i];
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

void CloseGroups(Block& block) { Close(block, false); }

}  // namespace kiln::compiler
