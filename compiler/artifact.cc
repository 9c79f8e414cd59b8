// SPDX-License-Identifier: Apache-2.0
#include "compiler/artifact.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "compiler/analysis/access.h"
#include "compiler/rules/tensor.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

using ir::BufferId;
using ir::ExprId;
using ir::ExprOp;
using ir::VarId;

std::vector<uint32_t> Symbols(const ir::Module& module) {
  std::vector<uint32_t> symbols;
  for (uint32_t id = 0; id < module.vars.size(); ++id)
    if (module.vars[id].kind == ir::VarKind::kSymbol) symbols.push_back(id);
  return symbols;
}

std::vector<uint32_t> Workspaces(const ir::Module& module) {
  std::vector<uint32_t> workspaces;
  for (uint32_t id = 0; id < module.buffers.size(); ++id)
    if (module.buffers[id].space == ir::Space::kGlobal && module.buffers[id].workspace) workspaces.push_back(id);
  return workspaces;
}

// Translates index arithmetic for the launcher.
class HostExprWriter {
 public:
  explicit HostExprWriter(const ir::Module& module) : module_(module) {
    const std::vector<uint32_t> symbols = Symbols(module);
    for (uint32_t i = 0; i < symbols.size(); ++i) symbols_[symbols[i]] = i;
    for (uint32_t i = 0; i < module.params.size(); ++i)
      if (const auto* scalar = std::get_if<VarId>(&module.params[i])) scalars_[ir::Index(*scalar)] = i;
  }

  v1::HostExpr Write(ExprId id) {
    v1::HostExpr out;
    std::map<uint32_t, uint32_t> memo;
    Node(id, out, memo);
    return out;
  }

 private:
  uint32_t Leaf(v1::HostExpr& out, v1::HostExpr::Op op, int64_t value) {
    v1::HostExpr::Node& node = *out.add_nodes();
    node.set_op(op);
    node.set_value(value);
    return uint32_t(out.nodes_size()) - 1;
  }

  uint32_t Node(ExprId id, v1::HostExpr& out, std::map<uint32_t, uint32_t>& memo) {
    if (const auto it = memo.find(ir::Index(id)); it != memo.end()) return it->second;
    const ir::ExprNode& node = module_.exprs[id];
    uint32_t result;
    switch (node.op) {
      case ExprOp::kConstInt: result = Leaf(out, v1::HostExpr::CONST, node.int_value); break;
      case ExprOp::kVar:
        result = symbols_.contains(node.ref) ? Leaf(out, v1::HostExpr::SYMBOL, symbols_.at(node.ref))
                                             : Leaf(out, v1::HostExpr::SCALAR, scalars_.at(node.ref));
        break;
      case ExprOp::kCast: result = Node(node.args[0], out, memo); break;
      default: {
        const uint32_t a = Node(node.args[0], out, memo), b = Node(node.args[1], out, memo);
        v1::HostExpr::Node& arithmetic = *out.add_nodes();
        arithmetic.set_op(OpOf(node.op));
        arithmetic.set_a(a);
        arithmetic.set_b(b);
        result = uint32_t(out.nodes_size()) - 1;
      }
    }
    memo[ir::Index(id)] = result;
    return result;
  }

  // The verifier admits no others in shapes, strides and grids. Sizes are not negative, and `regions` asks the launcher for what it divides: both
  // divisions agree.
  static v1::HostExpr::Op OpOf(ExprOp op) {
    switch (op) {
      case ExprOp::kSub: return v1::HostExpr::SUB;
      case ExprOp::kMul: return v1::HostExpr::MUL;
      case ExprOp::kDiv:
      case ExprOp::kFloorDiv: return v1::HostExpr::FLOOR_DIV;
      case ExprOp::kMod:
      case ExprOp::kFloorMod: return v1::HostExpr::FLOOR_MOD;
      case ExprOp::kMin: return v1::HostExpr::MIN;
      case ExprOp::kMax: return v1::HostExpr::MAX;
      default: return v1::HostExpr::ADD;
    }
  }

  const ir::Module& module_;
  std::map<uint32_t, uint32_t> symbols_, scalars_;
};

// Whether an expression uses only symbols and scalars, and only operations that the launcher computes as the kernel does.
bool IsForHost(const ir::Module& module, ExprId id) {
  const ir::ExprNode& node = module.exprs[id];
  if (node.dtype != ir::DType::kI32 && node.dtype != ir::DType::kI64) return false;
  switch (node.op) {
    case ExprOp::kConstInt:
    case ExprOp::kCast:
    case ExprOp::kAdd:
    case ExprOp::kSub:
    case ExprOp::kMul:
    case ExprOp::kFloorDiv:
    case ExprOp::kFloorMod:
    case ExprOp::kMin:
    case ExprOp::kMax: return true;
    case ExprOp::kVar: return module.vars[node.ref].kind == ir::VarKind::kSymbol || module.vars[node.ref].kind == ir::VarKind::kScalar;
    default: return false;
  }
}

// The same for an expression and all its parts, of which there may not be too many.
bool IsAllForHost(const ir::Module& module, ExprId root) {
  constexpr size_t kMost = 256;
  std::vector<ExprId> todo{root};
  std::set<uint32_t> seen;
  while (!todo.empty()) {
    const ExprId id = todo.back();
    todo.pop_back();
    if (!seen.insert(ir::Index(id)).second) continue;
    if (seen.size() > kMost || !IsForHost(module, id)) return false;
    const auto args = module.exprs[id].Args();
    todo.insert(todo.end(), args.begin(), args.end());
  }
  return true;
}

void AddAssumptions(const ir::Module& module, HostExprWriter& host, ExprId cond, Assumptions& out) {
  const ir::ExprNode& node = module.exprs[cond];
  if (node.op == ExprOp::kAnd) {
    for (const ExprId part : node.Args()) AddAssumptions(module, host, part, out);
    return;
  }
  if (node.op < ExprOp::kEq || node.op > ExprOp::kGe) return;
  ExprId left = node.args[0], right = node.args[1];
  if (!IsAllForHost(module, left) || !IsAllForHost(module, right)) return;
  if (node.op == ExprOp::kGt || node.op == ExprOp::kGe) std::swap(left, right);
  v1::Assumption& assumption = *out.Add();
  *assumption.mutable_left() = host.Write(left);
  *assumption.mutable_right() = host.Write(right);
  const bool strict = node.op == ExprOp::kLt || node.op == ExprOp::kGt;
  assumption.set_relation(node.op == ExprOp::kEq   ? v1::Assumption::EQ
                          : node.op == ExprOp::kNe ? v1::Assumption::NE
                          : strict                 ? v1::Assumption::LT
                                                   : v1::Assumption::LE);
}

struct Accessed {
  std::set<BufferId> written, any;
};

Accessed AccessedBy(const ir::Module& module) {
  Accessed accessed;
  for (const ir::Kernel& kernel : module.kernels) {
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      for (const Access& access : AccessesOf(module, stmt)) {
        accessed.any.insert(module.RootOf(access.buffer));
        // Whether two tensors overlap is for the call to decide.
        if (access.write && !access.of_alias) accessed.written.insert(module.RootOf(access.buffer));
      }
    });
  }
  return accessed;
}

void WriteParams(const ir::Module& module, const Context& context, v1::LaunchInfo& info) {
  HostExprWriter host(module);
  const Accessed accessed = AccessedBy(module);
  for (uint32_t i = 0; i < module.params.size(); ++i) {
    v1::LaunchParam& param = *info.add_params();
    param.set_output(std::ranges::count(module.outputs, i) > 0);
    if (const auto* scalar = std::get_if<VarId>(&module.params[i])) {
      param.set_dtype(v1::DType(int(module[*scalar].dtype)));
      continue;
    }
    const BufferId id = std::get<BufferId>(module.params[i]);
    const ir::Buffer& buffer = module[id];
    param.set_tensor(true);
    param.set_dtype(v1::DType(int(buffer.dtype)));
    for (ExprId extent : buffer.shape) *param.add_shape() = host.Write(extent);
    for (ExprId stride : buffer.strides) *param.add_strides() = host.Write(stride);
    param.set_written(accessed.written.contains(id));
    param.set_unused(!accessed.any.contains(id));
    param.set_alignment(uint32_t(context.pointer_alignment()));
    param.set_may_alias(buffer.may_alias);
  }
}

// The memory in which the blocks of the kernel count who has come to a barrier of the grid.
std::optional<uint32_t> CounterOf(const ir::Kernel& kernel) {
  std::optional<uint32_t> counter;
  ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
    const auto* barrier = std::get_if<ir::Barrier>(&stmt.op);
    if (barrier != nullptr && barrier->counter) counter = ir::Index(*barrier->counter);
  });
  return counter;
}

void WriteArgs(const ir::Module& module, const ir::Kernel& kernel, const std::set<uint32_t>& zeroed, v1::Launch& launch) {
  for (uint32_t i = 0; i < module.params.size(); ++i) {
    if (std::holds_alternative<BufferId>(module.params[i])) {
      launch.add_args()->set_tensor(i);
    } else {
      launch.add_args()->set_scalar(i);
    }
  }
  for (uint32_t i = 0; i < Symbols(module).size(); ++i) launch.add_args()->set_symbol(i);
  const std::vector<uint32_t> workspaces = Workspaces(module);
  const std::optional<uint32_t> counter = CounterOf(kernel);
  for (uint32_t i = 0; i < workspaces.size(); ++i) {
    v1::KernelArg& arg = *launch.add_args();
    if (workspaces[i] == counter) arg.set_block_counter(i);
    else zeroed.contains(workspaces[i]) ? arg.set_zeroed_workspace(i) : arg.set_workspace(i);
  }
  for (uint32_t i = 0; i < TensorMapsOf(module).size(); ++i) launch.add_args()->set_tensor_map(i);
}

// The buffers by which blocks tell each other that data is there, or that they have come.
std::set<uint32_t> Flags(const ir::Module& module) {
  std::set<uint32_t> flags;
  for (const ir::Kernel& kernel : module.kernels) {
    if (const std::optional<uint32_t> counter = CounterOf(kernel)) flags.insert(*counter);
    ir::Walk(kernel.body, [&](const ir::Stmt& stmt) {
      if (const auto* sum = std::get_if<ir::StreamSum>(&stmt.op)) flags.insert(ir::Index(sum->flags));
    });
  }
  return flags;
}

std::vector<BufferId> Views(const ir::Module& module) {
  std::vector<BufferId> views;
  for (uint32_t id = 0; id < module.buffers.size(); ++id)
    if (module.buffers[id].view) views.push_back(BufferId(id));
  return views;
}

uint32_t ParamOf(const ir::Module& module, BufferId tensor) {
  return uint32_t(std::ranges::find(module.params, ir::Param(tensor)) - module.params.begin());
}

void WriteViews(const ir::Module& module, v1::LaunchInfo& info) {
  HostExprWriter host(module);
  for (const BufferId id : Views(module)) {
    const ir::Buffer& buffer = module[id];
    v1::View& view = *info.add_views();
    view.set_tensor(ParamOf(module, buffer.view->of));
    for (ExprId extent : buffer.shape) *view.add_shape() = host.Write(extent);
    for (ExprId stride : buffer.strides) *view.add_strides() = host.Write(stride);
    for (ExprId expr : buffer.view->positive) *view.add_positive() = host.Write(expr);
  }
}

void WriteTensorMaps(const ir::Module& module, v1::LaunchInfo& info) {
  const std::vector<BufferId> views = Views(module);
  for (const TensorMap& map : TensorMapsOf(module)) {
    v1::TensorMap& out = *info.add_tensor_maps();
    out.set_tensor(ParamOf(module, module.RootOf(map.buffer)));
    if (module[map.buffer].view) out.set_view(uint32_t(std::ranges::find(views, map.buffer) - views.begin()) + 1);
    for (int64_t extent : map.box) out.add_box(uint32_t(extent));
    out.set_swizzle_bytes(uint32_t(map.swizzle));
    if (map.panels > 1) out.set_panels(uint32_t(map.panels));
  }
}

}  // namespace

std::vector<KernelParam> KernelParams(const ir::Module& module) {
  std::vector<KernelParam> params;
  for (const ir::Param& param : module.params) {
    if (const auto* tensor = std::get_if<BufferId>(&param)) {
      params.push_back({true, ir::Index(*tensor), module[*tensor].dtype});
    } else {
      const VarId scalar = std::get<VarId>(param);
      params.push_back({false, ir::Index(scalar), module[scalar].dtype});
    }
  }
  for (uint32_t symbol : Symbols(module)) params.push_back({false, symbol, module.vars[symbol].dtype});
  for (uint32_t workspace : Workspaces(module)) params.push_back({true, workspace, module.buffers[workspace].dtype});
  return params;
}

std::string EntryName(const Context& context, size_t kernel) {
  const std::string& name = context.options.entry_name();
  return fmt::format("{}_{}", name.empty() ? "kernel" : name, kernel);
}

std::vector<Assumptions> AssumptionsOf(const ir::Module& module) {
  std::vector<Assumptions> all;
  HostExprWriter host(module);
  for (const ir::Kernel& kernel : module.kernels) {
    Assumptions& own = all.emplace_back();
    for (const ir::Stmt& stmt : kernel.body) {
      if (const auto* assume = std::get_if<ir::Assume>(&stmt.op)) AddAssumptions(module, host, assume->cond, own);
    }
  }
  return all;
}

v1::LaunchInfo MakeLaunchInfo(const ir::Module& module, const Context& context) {
  v1::LaunchInfo info;
  WriteParams(module, context, info);
  HostExprWriter host(module);
  for (uint32_t symbol : Symbols(module)) info.add_symbols()->set_dtype(v1::DType(int(module.vars[symbol].dtype)));
  const std::set<uint32_t> flags = Flags(module);
  for (uint32_t id : Workspaces(module)) {
    v1::Workspace& workspace = *info.add_workspaces();
    workspace.set_zeroed(flags.contains(id));
    workspace.set_dtype(v1::DType(int(module.buffers[id].dtype)));
    for (ExprId extent : module.buffers[id].shape) *workspace.add_shape() = host.Write(extent);
  }
  for (size_t i = 0; i < module.kernels.size(); ++i) {
    const ir::Kernel& kernel = module.kernels[i];
    v1::Launch& launch = *info.add_launches();
    launch.set_entry(EntryName(context, i));
    for (ExprId extent : kernel.grid) *launch.add_grid() = host.Write(extent);
    launch.set_threads(kernel.threads + kernel.producers);
    if (!kernel.cluster.empty()) {
      launch.set_cluster_x(kernel.cluster[0]);
      launch.set_cluster_y(kernel.cluster.size() > 1 ? kernel.cluster[1] : 1);
      launch.set_cluster_z(kernel.cluster.size() > 2 ? kernel.cluster[2] : 1);
    }
    // AMDGPU code objects carry the size themselves.
    const bool at_launch = context.target->family == target::Family::kNvptx || context.target->emulated;
    if (at_launch) launch.set_dynamic_shared_bytes(uint32_t(kernel.shared_bytes));
    WriteArgs(module, kernel, flags, launch);
  }
  WriteViews(module, info);
  WriteTensorMaps(module, info);
  return info;
}

}  // namespace kiln::compiler
