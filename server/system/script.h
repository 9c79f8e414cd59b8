// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <array>
#include <filesystem>
#include <fstream>

namespace kiln::server {

// Whether a file begins with "#!". A worker that Landlock confines may start one program, and a script starts others: its interpreter, and what it
// calls.
inline bool IsScript(const std::filesystem::path& file) {
  std::array<char, 2> first{};
  return std::ifstream(file, std::ios::binary).read(first.data(), first.size()) && first == std::array{'#', '!'};
}

}  // namespace kiln::server
