// SPDX-License-Identifier: Apache-2.0
//
// Index arithmetic as a sum of products, each of a constant, of factors that the launcher knows, and of a part that it does not know. So a
// row's number is found beside its stride, which Linear (compiler/analysis/facts.h) leaves in one opaque term. As there, indices do not
// overflow.
#pragma once

#include <compare>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <vector>

#include "ir/module.h"

namespace kiln::compiler {

// Whether the launcher can compute it: of symbols, scalars and constants only.
bool IsForHost(const ir::ExprPool& pool, const std::vector<ir::Var>& vars, ir::ExprId id);

struct Product {
  std::vector<uint32_t> factors;     // expressions for the launcher, by number, sorted
  std::optional<ir::ExprId> device;  // what else it is a multiple of
  auto operator<=>(const Product&) const = default;
};
using Sum = std::map<Product, int64_t>;  // coefficients, never 0; the launcher's order is the map's

// Adds `factor` times another sum.
void Add(Sum& to, const Sum& other, int64_t factor);
inline Sum Minus(Sum a, const Sum& b) { return Add(a, b, -1), a; }
// Whether the launcher knows all of it.
bool IsForHost(const Sum& sum);

class Sums {
 public:
  // `canonical`: parts that are no sums (quotients, remainders, …) are made of sums again, so that two which are equal as such are one part.
  explicit Sums(ir::Module& module, bool canonical = false) : module_(module), canonical_(canonical) {}

  // nullopt: it has too many products, or a coefficient is too large.
  std::optional<Sum> Of(ir::ExprId id);
  // The sum as an expression, i64.
  ir::ExprId Write(const Sum& sum);
  // constant · factors, i64.
  ir::ExprId Write(int64_t constant, std::span<const uint32_t> factors);

 private:
  std::optional<Sum> Compute(ir::ExprId id);
  static std::optional<Sum> Times(const Sum& a, const Sum& b);
  ir::ExprId OfSums(ir::ExprNode node);

  ir::Module& module_;
  const bool canonical_;
  std::map<uint32_t, std::optional<Sum>> known_;
};

}  // namespace kiln::compiler
