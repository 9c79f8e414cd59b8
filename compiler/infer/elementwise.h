// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops that say what a copy or a fill does, so that one lowering serves them all.
#pragma once

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// for i… in extents: body(i…); fresh variables.
struct ElementLoop {
  ir::For loop;
  std::vector<ir::ExprId> indices;  // the variables
};
ElementLoop MakeElementLoop(ir::Module& module, std::span<const int64_t> extents, std::string_view name);

// dst[…] = cast(src[…]) over the tile; dimensions of extent 1 are not looped over.
ir::For CopyLoop(ir::Module& module, const ir::Copy& copy);
ir::For FillLoop(ir::Module& module, const ir::Fill& fill);

}  // namespace kiln::compiler
