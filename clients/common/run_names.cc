// SPDX-License-Identifier: Apache-2.0
#include "clients/common/run_names.h"

#include <variant>

#include "ir/codec/decode.h"
#include "ir/text/print.h"

namespace kiln {

void NameParameters(std::string_view bytes, runtime::LaunchInfo& launch) {
  for (std::size_t i = 0; i < launch.params.size(); ++i) {
    if (launch.params[i].name.empty()) launch.params[i].name = "parameter " + std::to_string(i);
  }
  for (std::size_t i = 0; i < launch.symbols.size(); ++i) {
    if (launch.symbols[i].name.empty()) launch.symbols[i].name = "symbol " + std::to_string(i);
  }
  for (std::size_t i = 0; i < launch.workspaces.size(); ++i) launch.workspaces[i].name = "workspace " + std::to_string(i);
  ir::Diagnostics ignored;
  const auto module = bytes.empty() ? std::unexpected(ir::Failed()) : ir::DecodeModule(bytes, ignored);
  if (!module || module->params.size() != launch.params.size()) return;
  const ir::Names names(*module);
  for (std::size_t i = 0; i < launch.params.size(); ++i) {
    launch.params[i].name = std::visit([&](auto id) { return names.Of(id); }, module->params[i]);
  }
  std::size_t workspace = 0;  // the compiler's own come behind
  for (std::uint32_t id = 0; id < module->buffers.size() && workspace < launch.workspaces.size(); ++id) {
    if (module->buffers[id].workspace) launch.workspaces[workspace++].name = names.Of(ir::BufferId(id));
  }
  std::size_t symbol = 0;
  for (std::uint32_t id = 0; id < module->vars.size() && symbol < launch.symbols.size(); ++id) {
    if (module->vars[id].kind == ir::VarKind::kSymbol) launch.symbols[symbol++].name = names.Of(ir::VarId(id));
  }
}

}  // namespace kiln
