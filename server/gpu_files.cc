// SPDX-License-Identifier: Apache-2.0
#include "server/gpu_files.h"

#include <unistd.h>

#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace kiln::server {
namespace {

namespace fs = std::filesystem;

// The files below `folder` whose names begin so.
void Gather(const fs::path& folder, std::string_view prefix, std::vector<fs::path>& found) {
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (at->path().filename().native().starts_with(prefix) && !at->is_directory(ignored)) found.push_back(at->path());
  }
}

}  // namespace

std::vector<fs::path> GpuFiles() {
  std::vector<fs::path> files;
  for (const std::string_view prefix : {"nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "nvidia5", "nvidia6", "nvidia7", "nvidia8",
                                        "nvidia9", "nvidiactl", "nvidia-uvm", "kfd"}) {
    Gather("/dev", prefix, files);
  }
  Gather("/dev/dri", "renderD", files);
  return files;
}

std::string GpuFilesProblem() {
  const auto files = GpuFiles();
  if (files.empty()) return "there is neither /dev/nvidiactl nor /dev/kfd: load the driver's kernel module, or pass the GPU to the container";
  for (const fs::path& file : files) {
    if (::access(file.c_str(), R_OK | W_OK) == 0) continue;
    return fmt::format("user {} of the GPU workers may not open {}: put kilnd's user into the file's group, or name another with --worker-user",
                       ::geteuid(), file.native());
  }
  return {};
}

}  // namespace kiln::server
