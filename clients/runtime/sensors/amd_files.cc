// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/sensors/amd_files.h"

#include <algorithm>
#include <cctype>
#include <charconv>
#include <cstdint>
#include <cstdio>
#include <fstream>
#include <system_error>
#include <utility>

#include <fmt/format.h>

namespace kiln::runtime {
namespace {

namespace fs = std::filesystem;

std::optional<std::uint64_t> NumberIn(const fs::path& file) {
  std::uint64_t value = 0;
  if (!(std::ifstream(file) >> value)) return std::nullopt;
  return value;
}

std::optional<std::uint64_t> FirstOf(const fs::path& folder, std::initializer_list<const char*> files) {
  for (const char* file : files) {
    if (const auto value = NumberIn(folder / file)) return value;
  }
  return std::nullopt;
}

std::optional<double> Scaled(std::optional<std::uint64_t> value, double unit) {
  return value ? std::optional(static_cast<double>(*value) * unit) : std::nullopt;
}

std::optional<std::uint32_t> Megahertz(std::optional<std::uint64_t> hertz) {
  return hertz ? std::optional(static_cast<std::uint32_t>(*hertz / 1'000'000)) : std::nullopt;
}

// The first folder in it: a device has one hwmon.
fs::path FolderIn(const fs::path& parent) {
  std::error_code error;
  for (fs::directory_iterator at(parent, error), end; !error && at != end; at.increment(error)) return at->path();
  return {};
}

class AmdFiles final : public Sensor {
 public:
  AmdFiles(fs::path device, fs::path kfd) : device_(std::move(device)), hwmon_(FolderIn(device_ / "hwmon")), kfd_(std::move(kfd)) {}

  GpuState Read() const override {
    return {.clocks = Clocks(),
            .most = {},
            .celsius = Scaled(NumberIn(hwmon_ / "temp1_input"), 1e-3),
            .watts = Scaled(FirstOf(hwmon_, {"power1_average", "power1_input"}), 1e-6),
            .watts_limit = Scaled(NumberIn(hwmon_ / "power1_cap"), 1e-6),
            .memory_used_bytes = NumberIn(device_ / "mem_info_vram_used"),
            .busy_percent = Percent(),
            .joules = std::nullopt,
            .processes = Processes()};
  }

  GpuClocks Clocks() const override {
    return {.compute_mhz = Megahertz(NumberIn(hwmon_ / "freq1_input")), .memory_mhz = Megahertz(NumberIn(hwmon_ / "freq2_input"))};
  }

  std::expected<std::uint64_t, std::string> Millijoules() const override { return std::unexpected("AMD's driver tells no energy"); }

 private:
  std::optional<std::uint32_t> Percent() const {
    const auto percent = NumberIn(device_ / "gpu_busy_percent");
    return percent ? std::optional(static_cast<std::uint32_t>(*percent)) : std::nullopt;
  }

  // KFD numbers GPUs by an id of its own: it is the node at the same place of the bus (location_id) that has it.
  std::optional<std::uint64_t> KfdId() const {
    unsigned bus = 0, slot = 0, function = 0;
    const std::string name = device_.filename();
    if (std::sscanf(name.c_str(), "%*x:%x:%x.%x", &bus, &slot, &function) != 3) return std::nullopt;
    const std::uint64_t place = std::uint64_t{bus} << 8 | slot << 3 | function;
    std::error_code error;
    for (fs::directory_iterator at(kfd_ / "topology/nodes", error), end; !error && at != end; at.increment(error)) {
      std::ifstream properties(at->path() / "properties");
      std::string key;
      for (std::uint64_t value = 0; properties >> key >> value;) {
        if (key == "location_id" && value == place && value != 0) return NumberIn(at->path() / "gpu_id");
      }
    }
    return std::nullopt;
  }

  std::optional<std::vector<GpuProcess>> Processes() const {
    const auto gpu = KfdId();
    if (!gpu) return std::nullopt;
    std::vector<GpuProcess> processes;
    std::error_code error;
    for (fs::directory_iterator at(kfd_ / "proc", error), end; !error && at != end; at.increment(error)) {
      const std::string name = at->path().filename();
      std::uint32_t pid = 0;
      const auto parsed = std::from_chars(name.data(), name.data() + name.size(), pid);
      const auto bytes = NumberIn(at->path() / fmt::format("vram_{}", *gpu));
      if (parsed.ec == std::errc() && bytes) processes.push_back({pid, bytes});
    }
    if (error) return std::nullopt;
    std::ranges::sort(processes, {}, &GpuProcess::pid);
    return processes;
  }

  const fs::path device_, hwmon_, kfd_;
};

}  // namespace

std::expected<std::unique_ptr<Sensor>, std::string> OpenAmdFiles(const std::string& pci, const SensorPlaces& places) {
  std::string name = pci;
  std::ranges::transform(name, name.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });  // as the kernel writes it
  std::error_code error;
  fs::path device = places.pci / name;
  if (!fs::exists(device / "hwmon", error)) return std::unexpected(fmt::format("the kernel tells nothing of the GPU in {}", device.native()));
  return std::make_unique<AmdFiles>(std::move(device), places.kfd);
}

}  // namespace kiln::runtime
