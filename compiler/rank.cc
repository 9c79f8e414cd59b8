// SPDX-License-Identifier: Apache-2.0
#include "compiler/rank.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <string>

#include "compiler/plan/estimate.h"

namespace kiln::compiler {
namespace {

constexpr int64_t kLargestSize = int64_t{1} << 40;

void Write(const KernelEstimate& from, v1::KernelEstimate& to) {
  to.set_microseconds(from.microseconds);
  for (size_t u = 0; u < kUnits; ++u) {
    v1::PlanTerm& term = *to.add_units();
    term.set_name(std::string(Name(Unit(u))));
    term.set_microseconds(from.units[u]);
  }
  if (from.power > 0) {
    v1::PlanTerm& term = *to.add_units();
    term.set_name("power");
    term.set_microseconds(from.power);
  }
  for (size_t w = 0; w < kWaits; ++w) {
    v1::PlanTerm& term = *to.add_waits();
    term.set_name(std::string(Name(Wait(w))));
    term.set_microseconds(from.waited[w]);
  }
  to.set_launch(from.launch);
  to.set_turns(from.turns);
  to.set_grid(uint64_t(from.grid));
  to.set_l2_bytes(uint64_t(from.l2_bytes));
  to.set_memory_bytes(uint64_t(from.memory_bytes));
  to.set_registers(uint32_t(from.occupancy.registers));
  to.set_spilled(uint32_t(from.occupancy.spilled));
  to.set_shared_bytes(uint32_t(from.occupancy.shared));
  to.set_blocks(uint32_t(from.occupancy.blocks));
}

// The sizes that a launch with these arguments has: each that is a tensor's whole dimension, or a scalar.
std::map<std::string, int64_t> SizesOf(const ir::Module& module, const v1::EstimateOptions& options) {
  std::map<std::string, int64_t> sizes;
  std::vector<ir::Param> params = module.params;
  if (size_t(options.arguments_size()) != params.size()) {
    for (size_t i = params.size(); i-- > 0;) {
      if (std::ranges::find(module.outputs, uint32_t(i)) != module.outputs.end()) params.erase(params.begin() + ptrdiff_t(i));
    }
  }
  if (size_t(options.arguments_size()) != params.size()) return sizes;
  const auto note = [&](const ir::Var& var, int64_t value) {
    if (IsSize(var) && value >= 0 && value <= kLargestSize) sizes.emplace(var.name, value);
  };
  for (size_t i = 0; i < params.size(); ++i) {
    const v1::EstimateArgument& argument = options.arguments(int(i));
    if (const auto* scalar = std::get_if<ir::VarId>(&params[i])) {
      note(module[*scalar], argument.integer());
      continue;
    }
    const std::vector<ir::ExprId>& shape = module[std::get<ir::BufferId>(params[i])].shape;
    if (shape.size() != size_t(argument.shape_size())) continue;
    for (size_t d = 0; d < shape.size(); ++d) {
      const ir::ExprNode& extent = module.exprs[shape[d]];
      if (extent.op == ir::ExprOp::kVar) note(module[ir::VarId(extent.ref)], argument.shape(int(d)));
    }
  }
  return sizes;
}

}  // namespace

std::optional<v1::Estimate> Rank(const ir::Module& module, const Context& context, const v1::EstimateOptions& options, ir::Diagnostics& diagnostics) {
  for (const auto& [name, value] : std::map<std::string, int64_t>(options.symbols().begin(), options.symbols().end())) {
    const auto is_it = [&](const ir::Var& var) { return IsSize(var) && var.name == name; };
    if (std::ranges::none_of(module.vars, is_it)) {
      diagnostics.Error(fmt::format("the program has no size {}", name), "name a dimension or an integer parameter of its function");
    } else if (value < 0 || value > kLargestSize) {
      diagnostics.Error(fmt::format("size {} is {}; a size is at least 0 and at most 2^40", name, value));
    } else {
      continue;
    }
    return std::nullopt;
  }
  std::map<std::string, int64_t> sizes(options.symbols().begin(), options.symbols().end());
  sizes.merge(SizesOf(module, options));  // what is named counts
  const target::Board& board = target::BoardOf(*context.target, options.board());
  const Estimate estimate = EstimateOf(module, context, board, sizes);
  v1::Estimate said;
  said.set_microseconds(estimate.microseconds);
  said.set_board(std::string(board.name));
  for (const KernelEstimate& kernel : estimate.kernels) Write(kernel, *said.add_kernels());
  return said;
}

}  // namespace kiln::compiler
