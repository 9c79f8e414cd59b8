// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>
#include <string_view>

namespace kiln::cli {

// Text that is read as markup nowhere: between tags, and in an attribute within quotes.
std::string Escaped(std::string_view text);

}  // namespace kiln::cli
