// SPDX-License-Identifier: Apache-2.0
//
// Buffers and variables of a pass's own. Each name ends with its own number in the module, so that those of one stem differ.
#pragma once

#include <span>
#include <string_view>
#include <vector>

#include "ir/module.h"

namespace kiln::compiler {

// Adds a buffer that is like `buffer` and named after `stem`.
ir::BufferId FreshBuffer(ir::Module& module, ir::Buffer buffer, std::string_view stem);
// Adds a buffer named after `of`, with the same elements and shape.
ir::BufferId FreshLike(ir::Module& module, ir::BufferId of, ir::Space space, std::string_view suffix);
// Adds a second buffer of all that `of` is, its layout included.
ir::BufferId FreshCopy(ir::Module& module, ir::BufferId of, std::string_view suffix);
// Adds a buffer named after `of`, with elements of the same type and a shape of its own.
ir::BufferId FreshOfShape(ir::Module& module, ir::BufferId of, ir::Space space, std::span<const int64_t> shape, std::string_view suffix);

// Whether a pass may add views of tensors. A launcher takes 256, and may need a tensor map of each that passes add.
bool HasRoomForViews(const ir::Module& module);

ir::VarId FreshVar(ir::Module& module, ir::VarKind kind, ir::DType type, std::string_view stem, uint8_t axis = 0);

// A shape of constants.
std::vector<ir::ExprId> ShapeOfConstants(ir::Module& module, std::span<const int64_t> extents);

}  // namespace kiln::compiler
