// SPDX-License-Identifier: Apache-2.0
//
// The bundles that kilnd serves as they lie there (--bundle).
#pragma once

#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "cache/bundle/bundle_tier.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

using TakeIn = std::function<std::expected<cache::Entry, std::string>(const cache::Entry&)>;

// The error says which of them is no bundle that kilnd may serve from. One that is damaged is served in part, and the log says so.
std::expected<std::shared_ptr<cache::BundleTier>, std::string> OpenBundles(const std::vector<std::filesystem::path>& files,
                                                                           const Telemetry& telemetry, TakeIn take_in);

// Logs what each has. Tries one result of each, so that it is told at the start, and not by the first request, when nobody here trusts whose they
// are, or another build of the compiler made them.
void DescribeBundles(cache::BundleTier& bundles, const Telemetry& telemetry, std::string_view build);

// What is wrong with them, as far as it can be known without reading all of them.
std::vector<std::string> ProblemsOfBundles(const std::vector<std::filesystem::path>& files);

}  // namespace kiln::server
