// SPDX-License-Identifier: Apache-2.0
//
// One HTML page that shows what the compiler decided. It needs nothing beside itself: no network, no other file.
#pragma once

#include <expected>
#include <string>

#include "clients/cpp/client.h"

namespace kiln::cli {

// The pass whose dump the page is made from: the last, when all is decided.
inline constexpr char kPageDump[] = "threads";

// `compiled` is what `request` became, with the dump after kPageDump.
std::expected<std::string, Error> MakePage(const CompileRequest& request, const Compiled& compiled);

}  // namespace kiln::cli
