// SPDX-License-Identifier: Apache-2.0
//
// The device files of GPU drivers. Those of a driver's administration, which only root may open, are not among them.
#pragma once

#include <filesystem>
#include <string>
#include <vector>

namespace kiln::server {

enum class GpuDriver { kNvidia, kAmd };

// Without which a driver finds no GPU: /dev/nvidia0 and so on, nvidiactl and nvidia-uvm; /dev/kfd and what renders beside it.
std::vector<std::filesystem::path> GpuFiles(GpuDriver driver, const std::filesystem::path& devices = "/dev");
std::vector<std::filesystem::path> GpuFiles();  // of both

// What says, by being readable, which parts of NVIDIA's GPUs (MIG) somebody may use. Where they are not parted it takes none.
std::vector<std::filesystem::path> GpuPartFiles(const std::filesystem::path& devices = "/dev");

// What is wrong with the driver's files for this process's user, and what to do; empty: nothing that can be seen.
std::string GpuFilesProblem(GpuDriver driver);

}  // namespace kiln::server
