// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/device.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <charconv>
#include <utility>

namespace kiln::runtime {
namespace {

// CUdevice_attribute.
constexpr int kL2CacheSize = 38;
constexpr int kComputeMajor = 75;
constexpr int kComputeMinor = 76;

std::string VersionText(DriverKind kind, int version) {
  // CUDA: 1000·major + 10·minor. HIP: 10^7·major + 10^5·minor + patch.
  return kind == DriverKind::kCuda ? fmt::format("{}.{}", version / 1000, version % 1000 / 10)
                                   : fmt::format("{}.{}", version / 10'000'000, version / 100'000 % 100);
}

// hipDeviceProp_t grew between releases and gcnArchName moved, so it is looked for: the first "gfx…" after the name.
Result<std::string> HipArch(const Driver& driver, int index) {
  constexpr size_t kNameBytes = 256;
  std::string properties(16384, '\0');
  const auto call = driver.device_properties ? driver.device_properties : driver.device_properties_old;
  if (!call) return std::unexpected(Error{Error::Kind::kDriver, "the HIP runtime lacks hipGetDeviceProperties; update ROCm", {}, {}});
  if (auto ok = driver.Check(call(properties.data(), index), "read device properties"); !ok) return std::unexpected(ok.error());
  const size_t at = properties.find("gfx", kNameBytes);
  if (at == std::string::npos)
    return std::unexpected(Error{Error::Kind::kDriver, fmt::format("HIP device {} does not say its gfx architecture", index), {}, {}});
  std::string arch = properties.c_str() + at;
  return "hip:" + arch.substr(0, arch.find(':'));  // without ":sramecc+:xnack-"
}

Result<std::string> CudaArch(const Driver& driver, int handle) {
  int major = 0, minor = 0;
  if (auto ok = driver.Check(driver.device_attribute(&major, kComputeMajor, handle), "read compute capability"); !ok)
    return std::unexpected(ok.error());
  if (auto ok = driver.Check(driver.device_attribute(&minor, kComputeMinor, handle), "read compute capability"); !ok)
    return std::unexpected(ok.error());
  return fmt::format("cuda:sm_{}{}{}", major, minor, major >= 9 ? "a" : "");
}

Result<DeviceInfo> Describe(const Driver& driver, int index, int* handle_out) {
  DeviceInfo info{.kind = driver.kind(), .index = index};
  int handle = 0, version = 0;
  size_t bytes = 0;
  char name[256] = {};
  const std::string what = fmt::format("query {} device {}", Name(driver.kind()), index);
  for (int status : {driver.device_get(&handle, index), driver.device_name(name, sizeof name - 1, handle), driver.device_memory(&bytes, handle),
                     driver.driver_version(&version)})
    if (auto ok = driver.Check(status, what); !ok) return std::unexpected(ok.error());
  info.name = name;
  int cache = 0;
  if (driver.device_attribute != nullptr && driver.device_attribute(&cache, kL2CacheSize, handle) == 0)
    info.cache_bytes = static_cast<uint64_t>(cache);
  char pci[64] = {};
  if (driver.device_pci != nullptr && driver.device_pci(pci, sizeof pci - 1, handle) == 0) info.pci = pci;
  info.memory_bytes = bytes;
  info.driver_version = VersionText(driver.kind(), version);
  auto arch = driver.kind() == DriverKind::kCuda ? CudaArch(driver, handle) : HipArch(driver, index);
  if (!arch) return std::unexpected(arch.error());
  info.arch = *arch;
  if (handle_out) *handle_out = handle;
  return info;
}

Result<int> Count(const Driver& driver) {
  int count = 0;
  if (auto ok = driver.Check(driver.device_count(&count), "count devices"); !ok) return std::unexpected(ok.error());
  return count;
}

struct SmArch {
  int number = 0;
  std::string suffix;
};
std::optional<SmArch> ParseSm(std::string_view target) {
  constexpr std::string_view kPrefix = "cuda:sm_";
  if (!target.starts_with(kPrefix)) return std::nullopt;
  target.remove_prefix(kPrefix.size());
  SmArch arch;
  const auto [end, status] = std::from_chars(target.data(), target.data() + target.size(), arch.number);
  if (status != std::errc()) return std::nullopt;
  arch.suffix = std::string(end, target.data() + target.size());
  return arch;
}

}  // namespace

Result<std::vector<DeviceInfo>> ListDevices(const Driver& driver) {
  auto count = Count(driver);
  if (!count) return std::unexpected(count.error());
  std::vector<DeviceInfo> devices;
  for (int i = 0; i < *count; ++i) {
    auto info = Describe(driver, i, nullptr);
    if (!info) return std::unexpected(info.error());
    devices.push_back(std::move(*info));
  }
  return devices;
}

Result<void> CheckTarget(std::string_view target, const DeviceInfo& device) {
  if (target == device.arch) return {};
  const auto wanted = ParseSm(target);
  const auto present = ParseSm(device.arch);
  if (wanted && present) {
    // PTX runs on the same and on newer architectures; "a" binds it to one, "f" to a family (CUDA C++ Guide, 6.1.1).
    if (wanted->suffix.empty() && wanted->number <= present->number) return {};
    if (wanted->suffix == "f" && wanted->number <= present->number && wanted->number / 10 == present->number / 10) return {};
  }
  return ArtifactError(fmt::format("the artifact is for {}, but device {} ({}) is {}; compile it for {}", target, device.index, device.name,
                                   device.arch, device.arch));
}

Result<std::shared_ptr<Device>> Device::Open(std::shared_ptr<const Driver> driver, int index) {
  auto count = Count(*driver);
  if (!count) return std::unexpected(count.error());
  if (index < 0 || index >= *count)
    return ArgumentError(fmt::format("there is no {} device {}: {} {} visible", Name(driver->kind()), index, *count, *count == 1 ? "is" : "are"));
  int handle = 0;
  auto info = Describe(*driver, index, &handle);
  if (!info) return std::unexpected(info.error());
  std::shared_ptr<Device> device(new Device(driver, std::move(*info)));
  device->handle_ = handle;
  if (driver->kind() == DriverKind::kCuda) {
    void* context = nullptr;
    if (auto ok = driver->Check(driver->context_retain(&context, handle), fmt::format("open device {}", index)); !ok)
      return std::unexpected(ok.error());
    device->context_ = context;
  }
  return device;
}

Device::~Device() {
  // Fails only where the driver is being unloaded at the process's end, and then there is nothing left to release.
  if (context_) driver_->context_release(handle_);
}

Result<Device::Scope> Device::Enter() const {
  if (info_.kind == DriverKind::kCuda) {
    void* before = nullptr;
    if (driver_->context_get(&before) == 0 && before == context_) return Scope(nullptr, nullptr);
    if (auto ok = driver_->Check(driver_->context_set(context_), "make the device current"); !ok) return std::unexpected(ok.error());
    // A thread that had none keeps ours: the next call finds it there.
    return Scope(before ? this : nullptr, before);
  }
  int before = 0;
  if (auto ok = driver_->Check(driver_->get_device(&before), "ask for the current device"); !ok) return std::unexpected(ok.error());
  if (before == info_.index) return Scope(nullptr, nullptr);
  if (auto ok = driver_->Check(driver_->set_device(info_.index), "make the device current"); !ok) return std::unexpected(ok.error());
  return Scope(this, reinterpret_cast<void*>(intptr_t(before)));
}

Device::Scope::~Scope() {
  if (!device_) return;
  const Driver& driver = *device_->driver_;
  if (driver.kind() == DriverKind::kCuda) {
    driver.context_set(before_);
  } else {
    driver.set_device(int(reinterpret_cast<intptr_t>(before_)));
  }
}

Result<void> Device::Synchronize() const {
  auto scope = Enter();
  if (!scope) return std::unexpected(scope.error());
  return driver_->Check(driver_->synchronize(), fmt::format("wait for device {}", info_.index));
}

}  // namespace kiln::runtime
