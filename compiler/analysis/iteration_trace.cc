// SPDX-License-Identifier: Apache-2.0
#include "compiler/analysis/iteration_trace.h"

#include "compiler/analysis/leaves.h"
#include "ir/visit.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <unordered_set>

namespace kiln::compiler {
namespace {

using ir::ExprId;
using ir::ExprOp;

class Tracer {
 public:
  Tracer(ir::Module& module, const ir::For& loop) : module_(module) {
    ir::Walk(loop.body, [&](const ir::Stmt& stmt) {
      if (const auto* store = std::get_if<ir::Store>(&stmt.op)) written_.insert(store->buffer);
      const auto* atomic = std::get_if<ir::Atomic>(&stmt.op);
      if (atomic != nullptr) written_.insert(atomic->buffer);
      if (atomic != nullptr && atomic->old) written_.insert(atomic->old->buffer);
    });
  }

  void Bind(ir::VarId var, ExprId value) { values_[ir::Index(var)] = value; }
  std::vector<Touched> Take() { return std::move(touched_); }

  void Run(const ir::Block& body) {
    for (const ir::Stmt& stmt : body) {
      stmt_ = &stmt;
      std::visit(ir::Overloaded{[&](const ir::Let& op) { Name(op); }, [&](const ir::Store& op) { Write(op); }, [&](const ir::If& op) { Choose(op); },
                                [&](const ir::For& op) { FirstRound(op); },
                                ir::Ignored<ir::Alloc, ir::While, ir::Assume, ir::Copy, ir::Gemm, ir::Mma, ir::Call, ir::AnyElementwise, ir::Reduce,
                                            ir::Atomic, ir::Barrier, ir::Break, ir::Continue, ir::Arrive, ir::Await, ir::Registers, ir::AsyncCommit,
                                            ir::AsyncWait, ir::RingStep, ir::PairSum, ir::StreamSum>{}},
                 stmt.op);
    }
  }

 private:
  ExprId At(ExprId id) {
    return module_.exprs.Rewrite(id, [this](ExprId leaf) -> std::optional<ExprId> {
      const ir::ExprNode& node = module_.exprs[leaf];
      const auto it = node.op == ExprOp::kVar ? values_.find(node.ref) : values_.end();
      return it == values_.end() ? std::nullopt : std::optional(it->second);
    });
  }

  ExprId Read(ExprId id) {
    const ExprId value = At(id);
    std::unordered_set<uint32_t> seen;
    Loads(value, seen);
    return value;
  }

  // What the let loads is loaded here, and not again where its name is used.
  void Name(const ir::Let& op) {
    const ExprId value = Read(op.value);
    Bind(op.var, value);
    read_.insert(ir::Index(value));
  }

  void Write(const ir::Store& op) {
    std::vector<ExprId> indices;
    for (const ExprId index : op.indices) indices.push_back(Read(index));
    const ExprId value = Read(op.value);
    Touch(op.buffer, std::move(indices), value, true);
  }

  void Choose(const ir::If& op) {
    const std::optional<int64_t> holds = module_.exprs.ConstInt(Read(op.cond));
    if (holds) Run(*holds != 0 ? op.then_body : op.else_body);
  }

  void FirstRound(const ir::For& op) {
    const std::optional<int64_t> rounds = module_.exprs.ConstInt(At(op.extents[0]));
    if (!rounds || *rounds < 1 || LeavesLoop(op.body)) return;
    for (const ir::VarId var : op.vars) Bind(var, module_.exprs.Int(0, module_[var].dtype));
    Run(op.body);
  }

  void Loads(ExprId id, std::unordered_set<uint32_t>& seen) {
    if (read_.contains(ir::Index(id)) || !seen.insert(ir::Index(id)).second) return;
    const ir::ExprNode& node = module_.exprs[id];
    const bool chooses = ir::Chooses(node.op) || node.op == ExprOp::kAnd || node.op == ExprOp::kOr;
    for (const ExprId arg : chooses ? node.Args().first(1) : node.Args()) Loads(arg, seen);
    if (node.op == ExprOp::kLoad) Touch(ir::BufferId(node.ref), {node.Args().begin(), node.Args().end()}, id, false);
  }

  void Touch(ir::BufferId buffer, std::vector<ExprId> indices, ExprId value, bool write) {
    if (module_[buffer].space == ir::Space::kLocal || !std::ranges::all_of(indices, [&](ExprId index) { return IsSettled(index); })) return;
    touched_.push_back({stmt_, buffer, std::move(indices), value, write});
  }

  // Whether the expression is the same in every iteration: it uses nothing that differs between threads and nothing that the loop writes.
  bool IsSettled(ExprId id) {
    const auto [known, added] = settled_.try_emplace(ir::Index(id), false);
    if (added) known->second = ComputeSettled(id);
    return known->second;
  }

  bool ComputeSettled(ExprId id) {
    const ir::ExprNode& node = module_.exprs[id];
    const bool var = node.op == ExprOp::kVar;
    if (var && (module_.vars[node.ref].kind == ir::VarKind::kThread || module_.vars[node.ref].kind == ir::VarKind::kLet)) return false;
    if (node.op == ExprOp::kLoad && (written_.contains(ir::BufferId(node.ref)) || module_.buffers[node.ref].space == ir::Space::kLocal)) return false;
    return std::ranges::all_of(node.Args(), [&](ExprId arg) { return IsSettled(arg); });
  }

  ir::Module& module_;
  std::set<ir::BufferId> written_;
  std::map<uint32_t, ExprId> values_;  // of variables
  std::map<uint32_t, bool> settled_;
  std::unordered_set<uint32_t> read_;  // values of lets
  std::vector<Touched> touched_;
  const ir::Stmt* stmt_ = nullptr;
};

}  // namespace

std::vector<Touched> TraceIteration(ir::Module& module, const ir::For& loop, std::span<const int64_t> iteration) {
  Tracer tracer(module, loop);
  for (size_t v = 0; v < loop.vars.size(); ++v) tracer.Bind(loop.vars[v], module.exprs.Int(iteration[v], module[loop.vars[v]].dtype));
  tracer.Run(loop.body);
  return tracer.Take();
}

}  // namespace kiln::compiler
