// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace kiln::cli {

// Of a command line that was not understood: what its first unknown command or option may have meant, as a line to be printed. Empty where
// nothing is near.
std::string DidYouMean(const CLI::App& app);

}  // namespace kiln::cli
