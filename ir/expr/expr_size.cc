// SPDX-License-Identifier: Apache-2.0
#include "ir/expr/expr_size.h"

#include <algorithm>

namespace kiln::ir {

ExprSize ExprSizes::Of(ExprId id) {
  constexpr uint64_t kMost = uint64_t{1} << 40;
  while (sizes_.size() <= Index(id)) {
    ExprSize size{1, 1};
    for (ExprId arg : pool_[ExprId(sizes_.size())].Args()) {
      size.depth = std::max(size.depth, sizes_[Index(arg)].depth + 1);
      size.nodes = std::min(kMost, size.nodes + sizes_[Index(arg)].nodes);
    }
    sizes_.push_back(size);
  }
  return sizes_[Index(id)];
}

}  // namespace kiln::ir
