// SPDX-License-Identifier: Apache-2.0
//
// Changes of loops that several passes make: buffers with several versions, as pipelined loops use them, and what goes with them.
#pragma once

#include <functional>

#include "ir/module.h"
#include "ir/visit.h"

namespace kiln::compiler {

// Bytes from one version of a shared buffer to the next: its layout's size rounded up so that every swizzle stays aligned.
inline constexpr int64_t kVersionAlignment = 1024;
int64_t VersionBytes(const ir::Module& module, ir::BufferId buffer);

// Adds the version dimension to the buffer itself.
void AddVersions(ir::Module& module, ir::BufferId buffer, int64_t versions);
// Makes every access of the buffer in the block use `version`.
void UseVersion(ir::Module& module, ir::Block& block, ir::BufferId buffer, ir::ExprId version);

// Declares the buffers from `first` on, which a pass added, at the start of the kernel.
void Declare(const ir::Module& module, ir::Kernel& kernel, size_t first);

// Moves the allocations of a block, nested ones included, to the end of `allocs`. For a loop's body that is to be repeated, or whose
// buffers are used before the loop.
void TakeAllocs(ir::Block& block, ir::Block& allocs);

// While c { … } becomes while true { if not c { break } … }, so that statements can stand before each test.
void TestInside(ir::Module& module, ir::While& loop, ir::SourceLoc loc);

// The statement's expressions with a variable replaced, nested blocks included.
void Substitute(ir::Module& module, ir::Block& block, ir::VarId var, ir::ExprId value);

// Calls `make` with each load of the buffer in the statement's own expressions, and puts the expression that it returns in its place.
void RewriteLoads(ir::Module& module, ir::Stmt& stmt, ir::BufferId buffer, const std::function<ir::ExprId(const ir::ExprNode&)>& make);

// Replaces every load, store, tile and whole buffer of `from` in the block by one of `to`, which has the same shape.
void ReplaceBuffer(ir::Module& module, ir::Block& block, ir::BufferId from, ir::BufferId to);
void ReplaceBuffer(ir::Module& module, ir::Stmt& stmt, ir::BufferId from, ir::BufferId to);

}  // namespace kiln::compiler
