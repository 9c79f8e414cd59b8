// SPDX-License-Identifier: Apache-2.0
//
// State that the checks of the op families (ir/ops) share: the current place, what is in scope, and the diagnostics.
#pragma once

#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "ir/op.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"

namespace kiln::ir {

class Verifier {
 public:
  Verifier(const Module& module, Diagnostics& diagnostics);
  void Run();

  const Module& module() const { return module_; }
  const ExprPool& exprs() const { return module_.exprs; }
  std::string Name(BufferId id) const { return "%" + names_.Of(id); }
  std::string Name(VarId id) const { return "%" + names_.Of(id); }

  // hint: what to try.
  void Error(std::string message, std::string hint) { Report(FaultKind::kInvalid, std::move(message), std::move(hint)); }
  void Unsupported(std::string message, std::string hint) { Report(FaultKind::kUnsupported, std::move(message), std::move(hint)); }

  // Types, scopes and loads of everything in `id`. False: reported, and its type must not be relied on.
  bool CheckExpr(ExprId id);
  bool CheckTyped(ExprId id, DType dtype, std::string_view what);
  bool CheckInteger(ExprId id, std::string_view what);
  bool CheckCondition(ExprId id) { return CheckTyped(id, DType::kBool, "the condition"); }
  // One element: `buffer` in scope and accessible, as many integer indices as dimensions, constant ones inside.
  bool CheckElement(BufferId buffer, const std::vector<ExprId>& indices);
  // A box: rank, extents, and constant offsets inside where leaving is an error.
  bool CheckRegion(const Region& region, std::string_view what);
  bool CheckUsable(BufferId buffer);
  bool CheckHolder(BufferId fragment);
  void CheckRing(const Ring& ring);
  // One of the program's barriers.
  bool CheckSignal(BufferId barriers, const std::vector<ExprId>& indices);
  // A statement of the cluster's blocks: the kernel has one; `rank`, where there is such, is that of a block in it.
  void CheckCluster(const std::optional<ExprId>& rank, std::string_view what);
  // Reports a statement that all threads must do together but that stands inside a parallel loop's iterations.
  bool CheckTogether(std::string_view what);

  bool Bind(VarId var, VarKind kind, std::string_view what);
  void Bring(BufferId buffer);  // into scope
  bool InScope(BufferId buffer) const { return buffer_scope_[Index(buffer)]; }
  bool WasAllocated(BufferId buffer) const { return allocated_[Index(buffer)]; }

  // Shape, strides and attributes.
  void CheckBuffer(BufferId id);
  // Reports an expression that reads a tile which its statement writes, or a tensor that may share memory with it.
  void CheckOwnReads(const Op& op);
  // Checks a nested block, whose bindings end with it.
  void CheckBlock(const Block& block);
  // Checks a branch; `threads`, if set, are the only ones that come to it.
  void CheckBranch(const Block& block, const std::optional<ThreadRange>& threads);
  // A loop's variables and body.
  void CheckLoop(const For& op);

  // The loops around the statement, outermost first; a While counts as kSerial.
  std::vector<LoopKind> loops;
  bool InParallel() const;
  // Number of enclosing branches. Within a branch, faults that may not happen, such as an index outside its buffer, are not reported.
  int branches = 0;
  ThreadRange threads;    // that may come to the statement
  bool narrowed = false;  // by a branch around it
  int64_t cluster = 0;    // blocks of the kernel's cluster; 0: the program asks for none

 private:
  void Report(FaultKind kind, std::string message, std::string hint);
  void Unbind(size_t bound);
  void CheckParams();
  void CheckOutputs();
  void CheckSymbols();
  void CheckFunctions();
  void CheckVars();
  void CheckPosition(VarId id, std::string_view what);
  template <typename Which>
  void CheckBuffers(Which&& which);
  void CheckTile(BufferId id);
  void CheckArrivals(BufferId id);
  void CheckTensor(BufferId id);
  void CheckView(BufferId id);
  void CheckKernel(const Kernel& kernel);
  void CheckGrid(const Kernel& kernel);
  void CheckHostExpr(ExprId id, bool scalars, std::string_view what);
  bool CheckNode(ExprId id);
  bool CheckVar(const ExprNode& node);
  bool CheckLoad(const ExprNode& node);
  bool CheckIndices(BufferId buffer, std::span<const ExprId> indices);

  const Module& module_;
  Diagnostics& diagnostics_;
  Names names_;
  std::map<BufferId, ThreadRange> holders_;  // of fragments with a layout: who uses them
  const Stmt* stmt_ = nullptr;
  std::string place_;  // outside statements: "kernel @main"
  std::vector<bool> var_scope_, buffer_scope_, checked_buffer_, allocated_, is_param_;
  std::vector<VarId> bound_;  // since the outermost block, to unbind at its end
  std::vector<BufferId> brought_;
  std::vector<uint32_t> checked_;  // expression → the round that checked it
  std::vector<bool> sound_;        // and found it right
  uint32_t round_ = 0;
};

#define KILN_OP(number, type, name, family, since) void Check(Verifier& verifier, const type& op);
#include "ir/ops.def"

}  // namespace kiln::ir
