// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <filesystem>
#include <string>
#include <vector>

#include "cache/signature.h"

namespace kiln::server {

// The keys in the file of --trusted-keys. The error names file and line.
std::expected<std::vector<cache::PublicKey>, std::string> ReadTrustedKeys(const std::filesystem::path& path);

}  // namespace kiln::server
