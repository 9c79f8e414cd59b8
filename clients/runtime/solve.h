// SPDX-License-Identifier: Apache-2.0
//
// Solving the run-time dimensions from the shapes and strides that were passed. Used by bind.cc alone.
#pragma once

#include "clients/runtime/bind.h"

namespace kiln::runtime {

// One extent or stride that was declared as an expression and passed as a number.
struct Binder::Equation {
  const HostExpr* expr;
  int64_t given;
  size_t param;
  size_t dim;
  bool stride;
  bool binding;  // false: a stride over an extent of at most 1, or of an empty tensor, which addresses nothing
};

class Binder::Solver {
 public:
  Solver(const Binder& binder, std::span<const Arg> args);

  // Solves what can be solved and checks every equation that is fully known.
  Result<void> Run();

  // All symbols. Error: one is not determined.
  Result<std::vector<int64_t>> Symbols() const;

  HostValues values() const { return {.symbols = symbols_, .scalars = scalars_}; }

 private:
  Result<void> AddTensor(size_t param, const Arg& arg);
  Result<bool> SolveOnce(bool binding);
  Result<void> CheckEquation(const Equation& equation) const;
  Result<void> CheckContiguous(size_t param, const Tensor& tensor) const;
  Result<void> CheckAbsent(size_t param) const;
  void EmptyAbsent();
  std::string Where(const Equation& equation) const;
  std::string Known(const HostExpr& expr) const;

  const Binder& binder_;
  std::span<const Arg> args_;
  std::vector<std::optional<int64_t>> symbols_;
  std::vector<std::optional<int64_t>> scalars_;
  std::vector<Equation> equations_;
};

}  // namespace kiln::runtime
