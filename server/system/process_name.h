// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <fstream>
#include <string>

#include "server/system/utf8.h"

namespace kiln::server {

// What the host calls the process: at most 15 bytes. Empty where it has none of that number, or does not tell.
inline std::string ProcessName(std::uint32_t pid) {
  std::ifstream file("/proc/" + std::to_string(pid) + "/comm");
  std::string name;
  std::getline(file, name);
  return Utf8(name);
}

}  // namespace kiln::server
