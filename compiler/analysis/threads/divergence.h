// SPDX-License-Identifier: Apache-2.0
//
// Where threads may differ: in values that they compute from their index, and in the statements that they run depending on such values.
// Everywhere else they do the same. The threads of a range that a branch has (ir::If) come to it together, so within it they may do the same
// though the block's threads differ: a local that just they have counted up is one number to them.
#pragma once

#include <map>
#include <optional>
#include <set>
#include <span>
#include <vector>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

class Divergence {
 public:
  Divergence(const ir::Module& module, const ir::Kernel& kernel);

  // Whether threads of the block may see different values of an expression.
  bool Differs(ir::ExprId id) const { return Differs(id, all_); }
  // The same of the threads `among`, who come to it together.
  bool Differs(ir::ExprId id, const ir::ThreadRange& among) const;
  // Of a For or While: of the threads that come to it together, some may leave it, or go on to its next iteration, before others.
  bool IsLeftEarly(const void* loop) const { return left_.contains(loop); }
  // Whether each thread runs this store or atomic, outside of parallel loops, for itself. If not, it runs once for the block.
  bool IsOfEachThread(const ir::Stmt& stmt) const { return of_each_thread_.contains(&stmt); }

  // Whether threads read the fragment together (read_together.h).
  bool IsReadTogether(ir::BufferId fragment) const { return together_.contains(fragment); }
  // Whether threads read elements of the fragment that others may have written: what a thread writes to an element of its own passes through
  // shared memory to the others' copies (compiler/mapping/layouts/stage.h).
  bool IsExchanged(ir::BufferId fragment) const { return together_.contains(fragment) || exchanged_.contains(fragment); }

  // Threads begin to end gave elements of a local, or of their copies of a fragment, what they computed from `exprs` and read in `locals`.
  // `together`: they came at once.
  struct Given {
    uint32_t begin, end;
    bool together;
    std::vector<ir::ExprId> exprs;
    std::vector<ir::BufferId> locals;
    auto operator<=>(const Given&) const = default;
  };
  const std::set<Given>& GivenTo(ir::BufferId local) const;
  // What a let stands for. nullopt: it has no one value, for a parallel loop gives it, or several statements do.
  std::optional<ir::ExprId> ValueOf(ir::VarId let) const;
  // Whether it is not known that `among`, who come together, have the same in a local, or in their copies of a fragment, going by what differs
  // for the threads that wrote it.
  bool IsWrittenApart(ir::BufferId local, const ir::ThreadRange& among) const;

 private:
  // Threads begin to end wrote a local. `together`: at once, and the same value.
  struct Writers {
    uint32_t begin, end;
    bool together;
    auto operator<=>(const Writers&) const = default;
  };

  enum class Of { kThreadOrIteration, kThread };
  bool Differs(ir::ExprId id, const ir::ThreadRange& among, Of of) const;
  // The same, where iterations of parallel loops do not count as threads.
  bool IsOfThread(ir::ExprId id) const { return Differs(id, scope_, Of::kThread); }
  bool IsOfIteration(ir::BufferId local) const { return given_by_iteration_.contains(local) && !kept_by_thread_.contains(local); }
  void Visit(const ir::Block& block, bool divergent);
  void VisitStmt(const ir::Stmt& stmt, bool divergent);
  void VisitBranch(const ir::Block& body, const std::optional<ir::ThreadRange>& threads, bool divergent);
  void TakeAllToDiffer(const ir::Block& body);
  void VisitLoop(const ir::Block& body, const void* loop, std::span<const ir::ExprId> header, bool divergent, bool under_condition);
  void Leave() {
    if (apart_ && !loops_.empty()) left_.insert(loops_.back());
  }
  void Mark(ir::BufferId local, const Writers& writers) { writers_ += locals_[local].insert(writers).second ? 1 : 0; }
  void Bind(const ir::Let& let);
  void Write(const ir::Stmt& stmt, ir::BufferId buffer, bool divergent);
  bool LeavesCopiesApart(const ir::Stmt& stmt, ir::BufferId buffer, bool divergent);
  void TakeOld(ir::BufferId local);
  void GiveInIteration(ir::BufferId local, bool of_thread);
  template <typename T>
  void WriteTiles(const T& op, bool divergent);

  const ir::Module& module_;
  const ir::ThreadRange all_;
  const std::set<ir::BufferId> together_, elsewhere_;  // fragments (read_together.h)
  std::set<ir::BufferId> exchanged_;                   // of those that are read elsewhere: the ones of which a thread writes an element of its own
  ir::ThreadRange scope_ = all_;                       // who come to the current statement, where nothing keeps some of them away
  std::set<ir::VarId> vars_;                           // lets that differ
  std::set<ir::VarId> of_thread_;                      // those of them that depend on the thread, not on the iteration alone
  std::map<ir::BufferId, std::set<Writers>> locals_;   // but for what all threads of the block write together
  size_t writers_ = 0;                                 // of all locals
  // Locals of one element: of those that the iteration of a parallel loop under way has given a value, each has it of the iteration alone, unless
  // some statement gives it one that depends on the thread.
  std::set<ir::BufferId> given_by_iteration_, kept_by_thread_;
  std::map<ir::VarId, std::optional<ir::ExprId>> lets_;
  std::map<ir::BufferId, std::set<Given>> given_;
  std::set<const void*> left_;      // loops that some threads may leave, or go on in, before others
  std::vector<const void*> loops_;  // around
  std::set<const ir::Stmt*> of_each_thread_;
  bool in_parallel_ = false;
  bool under_condition_ = false;  // in an iteration of a parallel loop, which may not come to it, or several times
  bool in_range_ = false;         // in a branch with threads of its own
  bool by_thread_ = false;        // in a branch or loop whose condition depends on the thread, and which has no threads of its own
  bool apart_ = false;            // within the innermost loop, threads that entered together may have taken different paths
};

}  // namespace kiln::compiler
