// SPDX-License-Identifier: Apache-2.0
//
// The launcher's arithmetic (kiln.v1.HostExpr): grid extents, shapes and strides over symbols and scalars, in 64 bits. Expressions
// come from artifacts and are checked once, at Parse; evaluation reports overflow and division by zero.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "clients/runtime/artifact.h"
#include "clients/runtime/error.h"

namespace kiln::runtime {

// What an expression may refer to. A symbol's or scalar's value is absent until it is known.
struct HostValues {
  std::span<const std::optional<int64_t>> symbols;
  std::span<const std::optional<int64_t>> scalars;  // by index of parameter
};

class HostExpr {
 public:
  static constexpr size_t kMaxNodes = 4096;

  // `scalar_param` says which of LaunchInfo.params may be referred to: scalars of an integer type.
  static Result<HostExpr> Parse(const HostNodes& proto, size_t symbol_count, const std::vector<bool>& scalar_param);

  // Absent: a symbol or scalar it needs is not known yet. Error: overflow or division by zero.
  Result<std::optional<int64_t>> Evaluate(const HostValues& values) const;

  struct Solution {
    size_t symbol;
    int64_t value;
  };
  // The one unknown symbol's value that makes the expression equal to `target`. Absent: there is no unknown, more than one,
  // or the expression is not linear in it. Error: no integer solves it.
  Result<std::optional<Solution>> Solve(const HostValues& values, int64_t target) const;

  void MarkScalars(std::vector<bool>& used) const;  // sets the entries of the parameters it refers to
  void MarkSymbols(std::vector<bool>& used) const;  // likewise, of the symbols
  std::optional<int64_t> Constant() const;          // where it is nothing but a constant

  // "m + 2 * n", with names from `info`.
  std::string Text(const LaunchInfo& info) const;

 private:
  HostNodes nodes_;
};

// Division that rounds towards minus infinity, and its remainder. Absent: b is 0 or the result overflows.
std::optional<int64_t> FloorDiv(int64_t a, int64_t b);
std::optional<int64_t> FloorMod(int64_t a, int64_t b);

}  // namespace kiln::runtime
