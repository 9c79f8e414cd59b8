// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <optional>

#include "compiler/options.h"
#include "ir/module.h"
#include "kiln/v1/plan.pb.h"

namespace kiln::compiler {

// The planner's estimate of a module as the last pass leaves it, as messages say it. Nothing where a size is given that the program does not
// have, or that no tensor has: `diagnostics` says which.
std::optional<v1::Estimate> Rank(const ir::Module& module, const Context& context, const v1::EstimateOptions& options, ir::Diagnostics& diagnostics);

}  // namespace kiln::compiler
