// SPDX-License-Identifier: Apache-2.0
//
// What the ops of the family elementwise mean: what an element of the tile that they write becomes.
#pragma once

#include <functional>

#include "ir/module.h"
#include "ir/visit.h"

namespace kiln::ir {

// The element of a region that belongs to the one of the destination.
using ElementOf = std::function<ExprId(const Region&)>;

// Defined for the ops of the family elementwise, beside their checks: ir/ops/elementwise.cc.
#define KILN_OP(number, type, name, family, since) ExprId Becomes(Module& module, const type& op, const ElementOf& element);
#include "ir/ops.def"

// The one tile that such an op writes.
const Region& Destination(const Elementwise auto& op) {
  const Region* written = nullptr;
  ForEachRegion(op, [&](const Region& region, Use use) {
    if (use != Use::kRead) written = &region;
  });
  return *written;
}

}  // namespace kiln::ir
