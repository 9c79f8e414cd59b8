// SPDX-License-Identifier: Apache-2.0
//
// Parallel loops that say what tile operations do element by element, so that one lowering serves them all.
#pragma once

#include <functional>
#include <span>
#include <string_view>
#include <vector>

#include "ir/elementwise.h"

namespace kiln::compiler {

// for i… in extents: body(i…); fresh variables.
struct ElementLoop {
  ir::For loop;
  std::vector<ir::ExprId> indices;  // the variables
};
ElementLoop MakeElementLoop(ir::Module& module, std::span<const int64_t> extents, std::string_view name);

// Whether a statement names arrays of each thread's own: then each thread does all of it for itself.
bool NamesPrivate(const ir::Module& module, const ir::Op& op);
// Makes of the parallel loop that says what such a statement does one that each thread runs as a whole. It is unrolled, so that arrays become
// registers, unless it is about more elements than a thread's `registers` hold.
void MakePrivate(const ir::Module& module, ir::For& loop, const ir::Op& op, int64_t registers);

// dst[…] = cast(value) over the tile; dimensions of extent 1 are not looped over.
ir::For ElementwiseLoop(ir::Module& module, const ir::Region& dst, const std::function<ir::ExprId(const ir::ElementOf&)>& value);
// dst[…] = cast(src[…])
ir::For CopyLoop(ir::Module& module, const ir::Copy& copy);

}  // namespace kiln::compiler
