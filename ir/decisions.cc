// SPDX-License-Identifier: Apache-2.0
#include "ir/decisions.h"

#include <fmt/format.h>

#include "ir/print.h"

namespace kiln::ir {
namespace {

bool HasDecision(const Op& op) {
  if (auto* loop = std::get_if<For>(&op)) return loop->layout.has_value();
  if (auto* copy = std::get_if<Copy>(&op)) return copy->plan.has_value();
  if (auto* gemm = std::get_if<Gemm>(&op)) return gemm->plan.has_value();
  if (auto* branch = std::get_if<If>(&op)) return branch->IsNarrowed();
  if (auto* barrier = std::get_if<Barrier>(&op)) return barrier->by_group;
  if (auto* reduce = std::get_if<Reduce>(&op)) return reduce->scratch.has_value() || reduce->cluster;
  return std::holds_alternative<AsyncCommit>(op) || std::holds_alternative<AsyncWait>(op) || std::holds_alternative<RingStep>(op) ||
         std::holds_alternative<PairSum>(op) || std::holds_alternative<StreamSum>(op);
}

constexpr char kHint[] = "send the program as it was before the passes";

}  // namespace

Result RefuseDecisions(const Module& module, Diagnostics& diagnostics) {
  size_t errors = diagnostics.errors();
  Names names(module);
  for (uint32_t i = 0; i < module.buffers.size(); ++i) {
    const Buffer& buffer = module.buffers[i];
    if (!buffer.layout && !buffer.shared_offset) continue;
    diagnostics.Error(
        fmt::format("buffer %{} has a layout or an offset, which only passes decide", names.Of(BufferId(i))), kHint);
  }
  for (const Kernel& kernel : module.kernels) {
    if (kernel.shared_bytes != 0 || kernel.producers != 0)
      diagnostics.Error(fmt::format("kernel @{} has shared_bytes or producers, which only passes decide", kernel.name), kHint);
    Walk(kernel.body, [&](const Stmt& stmt) {
      if (HasDecision(stmt.op)) {
        diagnostics.Error("the statement holds what only passes decide", kHint, stmt.loc, PrintStmt(module, stmt));
      }
    });
  }
  if (diagnostics.errors() > errors) return std::unexpected(Failed{});
  return {};
}

}  // namespace kiln::ir
