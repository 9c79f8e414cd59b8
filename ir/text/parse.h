// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <string_view>

#include "ir/diagnostic.h"
#include "ir/module.h"

namespace kiln::ir {

// Reads the text form (print.h). Every line that is wrong is reported, with the column and what was expected there. Statements
// get the text's lines as their source lines. Text may come from anyone; what it means is left to the verifier.
std::expected<Module, Failed> Parse(std::string_view text, Diagnostics& diagnostics);

}  // namespace kiln::ir
