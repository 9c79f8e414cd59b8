// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace kiln::cli {

// For a command line that was not understood: what its first unknown command or option may have meant, as a line to print. Empty if nothing
// is near.
std::string DidYouMean(const CLI::App& app);

}  // namespace kiln::cli
