// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/sensors/nvml.h"

#include <type_traits>
#include <utility>

#include <fmt/format.h>

namespace kiln::runtime {
namespace {

constexpr int kSuccess = 0, kInsufficientSize = 7;
constexpr int kMultiprocessors = 1, kMemory = 2;  // nvmlClockType_t
constexpr int kDie = 0;                           // nvmlTemperatureSensors_t
constexpr unsigned long long kUnknown = ~0ULL;    // NVML_VALUE_NOT_AVAILABLE

struct NvmlMemory {  // nvmlMemory_t
  unsigned long long total, free, used;
};
struct NvmlUtilization {  // nvmlUtilization_t, in percent
  unsigned gpu, memory;
};
struct NvmlProcess {  // nvmlProcessInfo_t
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};
static_assert(sizeof(NvmlProcess) == 24);

struct Calls {
#define KILN_NVML_CALL(member, signature, symbol) std::add_pointer_t<signature> member = nullptr;
#include "clients/runtime/sensors/nvml_calls.def"
};

// False where a call is missing that must not be.
template <class Function>
bool Resolve(const Loader& loader, void* library, const char* symbol, Function& member) {
  const bool optional = *symbol == '?';
  member = reinterpret_cast<Function>(loader.symbol(library, symbol + (optional ? 1 : 0)));
  return member != nullptr || optional;
}

// The library stays open and initialised until the process ends, as the drivers do.
std::expected<Calls, std::string> Start(const SensorPlaces& places) {
  const auto library = places.loader.open(places.nvml);
  if (!library) return std::unexpected(fmt::format("NVML is not here: {}", library.error()));
  Calls calls;
  std::string missing;
#define KILN_NVML_CALL(member, signature, symbol) \
  if (!Resolve(places.loader, *library, symbol, calls.member)) missing = symbol;
#include "clients/runtime/sensors/nvml_calls.def"
  if (!missing.empty()) return std::unexpected(fmt::format("{} lacks {}", places.nvml, missing));
  if (const int status = calls.init(); status != kSuccess) return std::unexpected(fmt::format("NVML does not start: {}", calls.error_string(status)));
  return calls;
}

class Nvml final : public Sensor {
 public:
  Nvml(const Calls& calls, void* device) : calls_(calls), device_(device) {}

  GpuState Read() const override {
    GpuState state{.clocks = Clocks(),
                   .most = {.compute_mhz = Number(calls_.most_clock, kMultiprocessors), .memory_mhz = Number(calls_.most_clock, kMemory)},
                   .celsius = Number(calls_.temperature, kDie),
                   .watts = Watts(calls_.power),
                   .watts_limit = Watts(calls_.power_limit),
                   .processes = Processes()};
    NvmlMemory memory{};
    if (calls_.memory != nullptr && calls_.memory(device_, &memory) == kSuccess) state.memory_used_bytes = memory.used;
    NvmlUtilization busy{};
    if (calls_.utilization != nullptr && calls_.utilization(device_, &busy) == kSuccess) state.busy_percent = busy.gpu;
    if (const auto energy = Millijoules()) state.joules = static_cast<double>(*energy) / 1000;
    return state;
  }

  GpuClocks Clocks() const override { return {.compute_mhz = Number(calls_.clock, kMultiprocessors), .memory_mhz = Number(calls_.clock, kMemory)}; }

  std::expected<std::uint64_t, std::string> Millijoules() const override {
    unsigned long long energy = 0;
    if (calls_.energy == nullptr) return std::unexpected("this NVML has no counter of energy");
    const int status = calls_.energy(device_, &energy);
    if (status != kSuccess) return std::unexpected(fmt::format("the GPU's counter of energy cannot be read: {}", calls_.error_string(status)));
    return energy;
  }

 private:
  std::optional<std::uint32_t> Number(int (*call)(void*, int, unsigned*), int which) const {
    unsigned value = 0;
    if (call == nullptr || call(device_, which, &value) != kSuccess) return std::nullopt;
    return value;
  }

  std::optional<double> Watts(int (*call)(void*, unsigned*)) const {
    unsigned milliwatts = 0;
    if (call == nullptr || call(device_, &milliwatts) != kSuccess) return std::nullopt;
    return milliwatts / 1000.0;
  }

  // How many there are may change between two calls.
  std::optional<std::vector<GpuProcess>> Processes() const {
    constexpr int kTries = 3;
    constexpr unsigned kMore = 16;
    std::vector<NvmlProcess> found(kMore);
    for (int i = 0; calls_.processes != nullptr && i < kTries; ++i) {
      auto count = static_cast<unsigned>(found.size());
      const int status = calls_.processes(device_, &count, found.data());
      if (status == kInsufficientSize) {
        found.resize(count + kMore);
        continue;
      }
      if (status != kSuccess) return std::nullopt;
      std::vector<GpuProcess> processes;
      for (unsigned at = 0; at < count; ++at) {
        const NvmlProcess& process = found[at];
        processes.push_back({process.pid, process.used_memory == kUnknown ? std::nullopt : std::optional<std::uint64_t>(process.used_memory)});
      }
      return processes;
    }
    return std::nullopt;
  }

  const Calls calls_;
  void* const device_;
};

}  // namespace

void StartNvml(const SensorPlaces& places) { (void)Start(places); }

std::expected<std::unique_ptr<Sensor>, std::string> OpenNvml(const std::string& pci, const SensorPlaces& places) {
  const auto calls = Start(places);
  if (!calls) return std::unexpected(calls.error());
  void* device = nullptr;
  if (const int status = calls->by_pci(pci.c_str(), &device); status != kSuccess) {
    return std::unexpected(fmt::format("NVML does not know the GPU at {}: {}", pci, calls->error_string(status)));
  }
  return std::make_unique<Nvml>(*calls, device);
}

}  // namespace kiln::runtime
