// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string_view>

namespace kiln::server::testing {

// The name under which the fake worker hangs when it is asked for GPUs.
inline constexpr std::string_view kHangingLister = "kiln-hanging-lister";

}  // namespace kiln::server::testing
