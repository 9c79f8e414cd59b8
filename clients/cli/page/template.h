// SPDX-License-Identifier: Apache-2.0
//
// The files of template/ as they are in the executable.
#pragma once

#include <string_view>

namespace kiln::cli {

extern const std::string_view kPageFrame;  // with {{title}}, {{style}}, {{data}} and {{script}} in it
extern const std::string_view kPageStyle;
extern const std::string_view kPageScript;

}  // namespace kiln::cli
