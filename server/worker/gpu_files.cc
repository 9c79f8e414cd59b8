// SPDX-License-Identifier: Apache-2.0
#include "server/worker/gpu_files.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <iterator>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

namespace kiln::server {
namespace {

namespace fs = std::filesystem;

template <class Wanted>
std::vector<fs::path> FilesIn(const fs::path& folder, Wanted wanted) {
  std::vector<fs::path> files;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    std::error_code ignored;
    if (!at->is_directory(ignored) && wanted(*at)) files.push_back(at->path());
  }
  return files;
}

bool IsNvidias(const fs::path& file) {
  constexpr std::string_view kGpu = "nvidia";
  const std::string name = file.filename();
  if (name == "nvidiactl" || name == "nvidia-uvm") return true;
  if (!name.starts_with(kGpu) || name.size() == kGpu.size()) return false;
  return name.find_first_not_of("0123456789", kGpu.size()) == std::string::npos;
}

bool IsNotRootsAlone(const fs::path& file) {
  struct stat status{};
  return ::stat(file.c_str(), &status) == 0 && (status.st_mode & (S_IRGRP | S_IROTH)) != 0;
}

}  // namespace

std::vector<fs::path> GpuFiles(GpuDriver driver, const fs::path& devices) {
  if (driver == GpuDriver::kNvidia) return FilesIn(devices, IsNvidias);
  std::vector<fs::path> files = FilesIn(devices, [](const fs::path& file) { return file.filename() == "kfd"; });
  if (files.empty()) return files;  // what renders is not this driver's
  std::ranges::copy(FilesIn(devices / "dri", [](const fs::path& file) { return file.filename().native().starts_with("renderD"); }),
                    std::back_inserter(files));
  return files;
}

std::vector<fs::path> GpuFiles() {
  std::vector<fs::path> files = GpuFiles(GpuDriver::kNvidia);
  std::ranges::copy(GpuFiles(GpuDriver::kAmd), std::back_inserter(files));
  return files;
}

std::vector<fs::path> GpuPartFiles(const fs::path& devices) { return FilesIn(devices / "nvidia-caps", IsNotRootsAlone); }

std::string GpuFilesProblem(GpuDriver driver) {
  const auto files = GpuFiles(driver);
  if (files.empty()) {
    return fmt::format("there is no {}: load the driver's kernel module, or pass the GPU to the container",
                       driver == GpuDriver::kNvidia ? "/dev/nvidiactl" : "/dev/kfd");
  }
  for (const fs::path& file : files) {
    if (::access(file.c_str(), R_OK | W_OK) == 0) continue;
    return fmt::format("user {} of the GPU workers may not open {}: put kilnd's user into the file's group, or name another with --worker-user",
                       ::geteuid(), file.native());
  }
  return {};
}

}  // namespace kiln::server
