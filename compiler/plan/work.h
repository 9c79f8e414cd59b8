// SPDX-License-Identifier: Apache-2.0
//
// What one statement takes of a multiprocessor when all threads of a block run it once.
#pragma once

#include <array>
#include <cstddef>
#include <map>
#include <set>
#include <span>
#include <utility>

#include "compiler/analysis/facts.h"
#include "compiler/options.h"
#include "compiler/plan/scalars.h"
#include "compiler/target/boards.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// What a multiprocessor has one of, for all its blocks. kMatrix: products. kIssue: the schedulers. kLanes: arithmetic. kSpecial: special
// functions. kShared: the path to shared memory and the first cache. kCopier: what makes
// tensor copies' addresses and fills what is outside of tensors. kPort: the way to the L2. kMemory: its part of what memory brings and takes.
enum class Unit : uint8_t { kMatrix, kIssue, kLanes, kSpecial, kShared, kCopier, kPort, kMemory };
inline constexpr size_t kUnits = 8;

struct Work {
  std::array<double, kUnits> cycles{};  // of each unit
  double products = 0;                  // cycles in which the matrix units multiply
  double latency = 0;                   // cycles that its own steps wait for each other
  double read = 0, written = 0;         // bytes of global memory, as whole sectors
  double asked = 0;                     // bytes for which what is read keeps the way to the L2 busy
  bool loads_only = false;              // it brings elements to registers and computes nothing of them: others run until they are needed

  double& operator[](Unit unit) { return cycles[size_t(unit)]; }
  double operator[](Unit unit) const { return cycles[size_t(unit)]; }
  // The busiest unit's of those that a statement waits for: copies are under way by themselves.
  double Busiest() const;
};

class Worker {
 public:
  Worker(const ir::Module& module, const ir::Kernel& kernel, const Context& context);

  // Of a statement without statements in it, or of a parallel loop. `scalars`: values of the variables around it.
  Work Of(const ir::Stmt& stmt, Scalars& scalars) const;

 private:
  Work Loop(const ir::For& loop, Scalars& scalars) const;
  Work Product(const ir::Gemm& gemm) const;
  Work Reduction(const ir::Reduce& reduce) const;
  Work Copy(const ir::Copy& copy, Scalars& scalars) const;
  Work Exchange(ir::BufferId sum, int64_t others) const;
  void FindGuarded(const ir::Block& block, const Facts& facts);
  double IndexOperations(std::span<const ir::ExprId> indices) const;
  // Instructions that each of `warps` warps issues.
  double Issued(double instructions, double warps) const { return instructions * warps / machine_.issue; }

  const ir::Module& module_;
  const ir::Kernel& kernel_;
  const target::Target& target_;
  const target::Machine& machine_;
  std::map<std::pair<const ir::For*, ir::ExprId>, double> indices_;  // operations of loads whose indices a thread computes for each by itself
  std::set<std::pair<const ir::For*, ir::ExprId>> guarded_;          // loads behind a condition: a mask, or that they are inside of their tensor
};

}  // namespace kiln::compiler
