// SPDX-License-Identifier: Apache-2.0
#include "compiler/synchronize/insert_needs.h"

#include <fmt/format.h>

#include <optional>
#include <string>
#include <utility>

#include "compiler/analysis/definitions.h"
#include "ir/op.h"

namespace kiln::compiler {

void InsertNeeds(ir::Kernel& kernel, ir::Block& block, const Needs& needs) {
  ir::Block result;
  for (ir::Stmt& stmt : block) {
    if (const auto it = needs.before.find(&stmt); it != needs.before.end()) {
      const Need& need = it->second;
      if (need.Has(Need::kCommit)) result.push_back({ir::AsyncCommit{}, stmt.loc});
      if (need.Has(Need::kCopies)) {
        result.push_back({ir::AsyncWait{need.groups}, stmt.loc});
        const std::string what = fmt::format("waits for all but {} of the async copy groups", need.groups);
        kernel.decisions.push_back({"synchronize", std::nullopt, what, "", stmt.loc});
      }
      if (need.Has(Need::kStores)) result.push_back({ir::AsyncWait{0, /*stores=*/true}, stmt.loc});
      if (need.Meets()) {
        const bool shared_only = needs.by_memory && need.Has(Need::kBarrier) && !need.Has(Need::kGlobal);
        result.push_back({ir::Barrier{.by_group = !need.Has(Need::kBarrier), .shared_only = shared_only}, stmt.loc});
      }
    }
    if (auto* loop = std::get_if<ir::For>(&stmt.op); loop != nullptr && !IsOneStatement(*loop)) InsertNeeds(kernel, loop->body, needs);
    if (auto* loop = std::get_if<ir::While>(&stmt.op)) InsertNeeds(kernel, loop->body, needs);
    if (auto* branch = std::get_if<ir::If>(&stmt.op)) InsertNeeds(kernel, branch->then_body, needs), InsertNeeds(kernel, branch->else_body, needs);
    if (auto* arrive = std::get_if<ir::Arrive>(&stmt.op); arrive != nullptr && needs.after_copies.contains(&stmt)) {
      arrive->after_copies = true;
      arrive->after_accesses = needs.after_accesses.contains(&stmt);
      kernel.decisions.push_back({"synchronize", arrive->buffer, "is told by the copies themselves", "their threads go on", stmt.loc});
    }
    result.push_back(std::move(stmt));
  }
  block = std::move(result);
}

}  // namespace kiln::compiler
