// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kiln::server {

// The devices without which a driver finds no GPU. Those of its administration, which only root may open, are not among them.
std::vector<std::filesystem::path> GpuFiles();

// What is wrong with them for this process's user, and what to do; empty: nothing that can be seen.
std::string GpuFilesProblem();

}  // namespace kiln::server
