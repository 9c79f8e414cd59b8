// SPDX-License-Identifier: Apache-2.0
//
// An NVML for tests: two GPUs where the fake driver has its own. The first takes 300 W and the second 200 W at all times, which its counter of energy
// tells fifty times a second, as long as the process runs. By the environment: KILN_FAKE_DRIVER_NO_ENERGY is a GPU without the counter,
// KILN_FAKE_DRIVER_ENERGY_FALLS one whose counter steps back each time, KILN_FAKE_DRIVER_NVML_BROKEN a library that does not start.
#include <chrono>
#include <cstdlib>
#include <cstring>

namespace {

constexpr int kInvalidArgument = 2, kNotSupported = 3, kNotFound = 6, kInsufficientSize = 7, kDriverNotLoaded = 9;
constexpr const char* kPlaces[] = {"0000:0A:00.0", "0000:0B:00.0"};
constexpr unsigned kWatts[] = {300, 200};
char devices[2];

int IndexOf(const void* device) { return static_cast<int>(static_cast<const char*>(device) - devices); }

struct Process {
  unsigned pid;
  unsigned long long used_memory;
  unsigned gpu_instance, compute_instance;
};

}  // namespace

extern "C" {
int nvmlInit_v2() { return std::getenv("KILN_FAKE_DRIVER_NVML_BROKEN") != nullptr ? kDriverNotLoaded : 0; }
const char* nvmlErrorString(int status) {
  return status == kDriverNotLoaded ? "Driver Not Loaded"
         : status == kNotSupported  ? "Not Supported"
         : status == kNotFound      ? "Not Found"
                                    : "Unknown Error";
}
int nvmlDeviceGetHandleByPciBusId_v2(const char* place, void** device) {
  for (int i = 0; i < 2; ++i) {
    if (std::strcmp(place, kPlaces[i]) == 0) return *device = &devices[i], 0;
  }
  return kNotFound;
}
int nvmlDeviceGetClockInfo(void* device, int type, unsigned* megahertz) {
  if (type != 1 && type != 2) return kInvalidArgument;
  *megahertz = (type == 1 ? 1700U : 2600U) + static_cast<unsigned>(IndexOf(device));
  return 0;
}
int nvmlDeviceGetMaxClockInfo(void*, int type, unsigned* megahertz) {
  *megahertz = type == 1 ? 1980 : 2619;
  return 0;
}
int nvmlDeviceGetTemperature(void* device, int, unsigned* celsius) {
  *celsius = 40 + static_cast<unsigned>(IndexOf(device));
  return 0;
}
int nvmlDeviceGetMemoryInfo(void*, unsigned long long* memory) {
  memory[0] = 1ULL << 30, memory[1] = 3ULL << 28, memory[2] = 1ULL << 28;
  return 0;
}
int nvmlDeviceGetPowerUsage(void* device, unsigned* milliwatts) {
  *milliwatts = kWatts[IndexOf(device)] * 1000;
  return 0;
}
int nvmlDeviceGetEnforcedPowerLimit(void*, unsigned* milliwatts) {
  *milliwatts = 700'000;
  return 0;
}
int nvmlDeviceGetUtilizationRates(void*, unsigned* percent) {
  percent[0] = 37, percent[1] = 5;
  return 0;
}
int nvmlDeviceGetTotalEnergyConsumption(void* device, unsigned long long* millijoules) {
  if (std::getenv("KILN_FAKE_DRIVER_NO_ENERGY") != nullptr) return kNotSupported;
  constexpr long long kTick = 20;  // milliseconds
  const auto now = std::chrono::duration_cast<std::chrono::milliseconds>(std::chrono::steady_clock::now().time_since_epoch()).count();
  *millijoules = static_cast<unsigned long long>(now / kTick * kTick) * kWatts[IndexOf(device)];
  if (std::getenv("KILN_FAKE_DRIVER_ENERGY_FALLS") != nullptr) *millijoules = ~0ULL - *millijoules;
  return 0;
}
// More than a caller has room for at first.
int nvmlDeviceGetComputeRunningProcesses_v3(void*, unsigned* count, Process* processes) {
  constexpr unsigned kProcesses = 20;
  if (*count < kProcesses) return *count = kProcesses, kInsufficientSize;
  *count = kProcesses;
  for (unsigned i = 0; i < kProcesses; ++i) processes[i] = {i + 1, i == 1 ? ~0ULL : 1ULL << 20, 0, 0};
  return 0;
}
}
