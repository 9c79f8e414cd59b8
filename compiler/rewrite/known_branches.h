// SPDX-License-Identifier: Apache-2.0
//
// Branches of which it is known which one all threads take: a program that is written for all sizes asks what holds for these.
#pragma once

#include "compiler/analysis/facts.h"
#include "ir/module.h"
#include "ir/op.h"

namespace kiln::compiler {

// The branch that all threads take where the facts hold; nullptr: the statement is no condition, or it is not known.
ir::Block* TakenBranch(const ir::Module& module, const Facts& facts, ir::Stmt& stmt);

// Puts the statements of each such branch in the condition's place.
void ReplaceKnownBranches(const ir::Module& module, ir::Kernel& kernel);

}  // namespace kiln::compiler
