// SPDX-License-Identifier: Apache-2.0
#include "server/config/request_limits.h"

#include <algorithm>
#include <array>
#include <string_view>

#include <fmt/format.h>

#include "ir/visit.h"

namespace kiln::server {
namespace {

using ir::ModuleSize;

// The reader bounds the depth, so recursion does.
void Measure(const ir::Block& block, std::size_t depth, ModuleSize& size) {
  size.nesting = std::max(size.nesting, depth);
  size.statements += block.size();
  for (const ir::Stmt& stmt : block) {
    ir::ForEachBody(stmt.op, [&](const ir::Block& nested) { Measure(nested, depth + 1, size); });
  }
}

Failure Over(std::string_view what, std::size_t has, std::size_t limit, std::string_view setting, std::string_view hint) {
  Failure failure{.kind = Failure::Kind::kInvalid, .message = fmt::format("{} {}; this kilnd takes {} ({})", what, has, limit, setting)};
  v1::Diagnostic& diagnostic = failure.diagnostics.emplace_back();
  diagnostic.set_message(failure.message);
  diagnostic.set_hint(std::string(hint));
  return failure;
}

}  // namespace

std::optional<Failure> OverLimit(const ir::Module& module, std::size_t bytes, const RequestLimits& limits) {
  ModuleSize size{.buffers = module.buffers.size(), .expressions = module.exprs.size(), .kernels = module.kernels.size()};
  for (const ir::Kernel& kernel : module.kernels) Measure(kernel.body, 1, size);
  return OverLimit(size, bytes, limits);
}

std::optional<Failure> OverLimit(const ModuleSize& size, std::size_t bytes, const RequestLimits& limits) {
  struct Row {
    std::string_view what;
    std::size_t has, limit;
    std::string_view setting, hint;
  };
  const std::array rows = {
      Row{"the bytes of the module are", bytes, limits.module_bytes, "--max-module", "split the module"},
      Row{"the kernels of the module are", size.kernels, limits.kernels, "--max-kernels", "split the module"},
      Row{"the statements of the module are", size.statements, limits.statements, "--max-statements",
          "use loops instead of unrolling in the front end"},
      Row{"the depth to which statements are nested is", size.nesting, limits.nesting, "--max-nesting", "merge loops, or split the kernel"},
      Row{"the expressions of the module are", size.expressions, limits.expressions, "--max-expressions",
          "use loops instead of unrolling in the front end"},
      Row{"the buffers of the module are", size.buffers, limits.buffers, "--max-buffers", "split the module"},
  };
  const auto over = std::ranges::find_if(rows, [](const Row& row) { return row.has > row.limit; });
  if (over == rows.end()) return std::nullopt;
  return Over(over->what, over->has, over->limit, over->setting, over->hint);
}

Failure RequestTooLarge(std::size_t bytes, const RequestLimits& limits) {
  return {.kind = Failure::Kind::kMalformed,
          .message = fmt::format("the request has {} bytes; this kilnd takes {} (--max-request)", bytes, limits.request_bytes)};
}

Failure ArtifactTooLarge(std::size_t bytes, const RequestLimits& limits) {
  return Over("the bytes of the compiled artifact are", bytes, limits.artifact_bytes, "--max-artifact", "unroll less");
}

}  // namespace kiln::server
