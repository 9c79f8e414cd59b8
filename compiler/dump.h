// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <span>
#include <string>

#include "ir/module.h"

namespace kiln::compiler {

// The module's text. Behind each statement that comes from the program stands a comment with its line there: "# line 12".
// `numbers`: what the line of a location stands for; empty: it is a line.
std::string DumpText(const ir::Module& module, std::span<const ir::SourceLoc> numbers);

}  // namespace kiln::compiler
