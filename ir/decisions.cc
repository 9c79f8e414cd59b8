// SPDX-License-Identifier: Apache-2.0
#include "ir/decisions.h"

#include <fmt/format.h>

#include "ir/text/print.h"
#include "ir/visit.h"

namespace kiln::ir {
namespace {

struct Decisions : FieldVisitor {
  bool any = false;
  void Decided(bool value, std::string_view) { any |= value; }
  template <typename T>
  void Decided(const std::optional<T>& value, std::string_view) {
    any |= value.has_value();
  }
};

bool HasDecision(const Op& op) {
  Decisions found;
  Fields(op, found);
  return found.any || WireNumber(op) == 0;  // or a statement that only passes make
}

constexpr char kHint[] = "send the program as it was before the passes";

}  // namespace

Result RefuseDecisions(const Module& module, Diagnostics& diagnostics) {
  size_t errors = diagnostics.errors();
  Names names(module);
  for (uint32_t i = 0; i < module.buffers.size(); ++i) {
    const Buffer& buffer = module.buffers[i];
    if (!buffer.layout && !buffer.shared_offset && !buffer.view) continue;
    diagnostics.Error(fmt::format("buffer %{} has a layout or an offset, or is a view, which only passes decide", names.Of(BufferId(i))), kHint);
  }
  for (const Kernel& kernel : module.kernels) {
    if (kernel.shared_bytes != 0 || kernel.producers != 0 || kernel.tried_blocks != 0)
      diagnostics.Error(fmt::format("kernel @{} has shared_bytes, producers or tried_blocks, which only passes decide", kernel.name), kHint);
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
