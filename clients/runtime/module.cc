// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/module.h"

#include <fmt/format.h>

#include <algorithm>

namespace kiln::runtime {
namespace {

constexpr size_t kLogBytes = 16384;
constexpr uint64_t kPortableCluster = 8;  // CUDA C++ Programming Guide, "Thread Block Clusters"
constexpr uint64_t kLargestCluster = 16;

std::string Trimmed(const std::string& log) {
  const std::string text = log.c_str();
  const size_t end = text.find_last_not_of(" \n\r\t");
  return end == std::string::npos ? "" : text.substr(0, end + 1);
}

}  // namespace

Result<std::unique_ptr<Module>> Module::Load(std::shared_ptr<const Device> device, const Artifact& artifact) {
  if (auto fits = CheckTarget(artifact.target, device->info()); !fits) return std::unexpected(fits.error());
  auto scope = device->Enter();
  if (!scope) return std::unexpected(scope.error());
  const Device::BesideCaptures beside(*device);
  std::unique_ptr<Module> module(new Module(device));
  if (auto ok = module->LoadCode(artifact); !ok) return std::unexpected(ok.error());
  for (const auto& launch : artifact.launch.launches)
    if (auto ok = module->PrepareLaunch(launch); !ok) return std::unexpected(ok.error());
  return module;
}

Module::~Module() {
  if (!handle_) return;
  // As for memory: a failure repeats one that was reported.
  auto scope = device_->Enter();
  if (!scope) return;
  const Device::BesideCaptures beside(*device_);
  device_->driver().module_unload(handle_);
}

Result<void> Module::LoadCode(const Artifact& artifact) {
  const bool hip = device_->info().kind == DriverKind::kHip;
  if (hip) {
    if (artifact.kind != CodeKind::kHsaco) return ArtifactError("the artifact's code is not HSACO, but its target is a HIP one");
    return LoadImage(artifact.code, "hsaco");
  }
  if (artifact.kind != CodeKind::kPtx && artifact.kind != CodeKind::kCubin)
    return ArtifactError("the artifact's code is neither PTX nor cubin, but its target is a CUDA one");
  const std::string& cubin = artifact.kind == CodeKind::kCubin ? artifact.code : artifact.cubin;
  if (!cubin.empty()) {
    auto loaded = LoadImage(cubin, "cubin");
    // A cubin is for one architecture and not for older drivers; the PTX beside it is for all newer ones.
    if (loaded || artifact.kind == CodeKind::kCubin) return loaded;
  }
  // Not optimized, code takes more registers, which may be too many.
  if (!artifact.unoptimized) return LoadImage(artifact.code, "ptx", Jit::kOptimized);
  auto loaded = LoadImage(artifact.code, "ptx", Jit::kUnoptimized);
  return loaded || loaded.error().name != "CUDA_ERROR_INVALID_PTX" ? loaded : LoadImage(artifact.code, "ptx", Jit::kOptimized);
}

Result<void> Module::LoadImage(const std::string& image, std::string_view what, Jit jit) {
  if (image.empty()) return ArtifactError(fmt::format("the artifact holds no {}", what));
  std::string info(kLogBytes, '\0'), errors(kLogBytes, '\0');
  int options[] = {kJitInfoLog, kJitInfoLogBytes, kJitErrorLog, kJitErrorLogBytes, kJitLogVerbose, kJitOptimizationLevel};
  void* const size = reinterpret_cast<void*>(kLogBytes);
  void* values[] = {info.data(), size, errors.data(), size, reinterpret_cast<void*>(1), reinterpret_cast<void*>(0)};
  const unsigned count = jit == Jit::kNone ? 0 : jit == Jit::kOptimized ? 5 : 6;
  const Driver& driver = device_->driver();
  const int status = driver.module_load(&handle_, image.c_str(), count, count == 0 ? nullptr : options, count == 0 ? nullptr : values);
  log_ = Trimmed(info);
  if (status == 0) {
    loaded_from_ = what;
    return {};
  }
  handle_ = nullptr;
  Error error = driver.MakeError(status, fmt::format("load the {}", what));
  if (const std::string log = Trimmed(errors); !log.empty()) error.message += fmt::format("\nthe driver's compiler says:\n{}", log);
  return std::unexpected(std::move(error));
}

Result<void> Module::PrepareLaunch(const LaunchSpec& launch) {
  const Driver& driver = device_->driver();
  void* function = nullptr;
  if (auto ok =
          driver.Check(driver.module_function(&function, handle_, launch.entry.c_str()), fmt::format("find kernel {} in the code", launch.entry));
      !ok)
    return ok;
  EntryResources resources{.entry = launch.entry, .dynamic_shared_bytes = int(launch.dynamic_shared_bytes)};
  const std::pair<FunctionAttribute, int*> queries[] = {{kRegisters, &resources.registers},
                                                        {kLocalBytes, &resources.local_bytes},
                                                        {kSharedBytes, &resources.shared_bytes},
                                                        {kMaxThreadsPerBlock, &resources.max_threads}};
  for (const auto& [attribute, value] : queries)
    if (auto ok = driver.Check(driver.function_get(value, attribute, function), fmt::format("inspect kernel {}", launch.entry)); !ok) return ok;
  uint64_t cluster = 1;
  for (uint32_t extent : launch.cluster) cluster *= std::clamp<uint64_t>(extent, 1, kLargestCluster + 1);
  if (cluster > kLargestCluster)
    return ArtifactError(fmt::format("kernel {} asks for a cluster of more than {} blocks", launch.entry, kLargestCluster));
  if (driver.function_set && launch.dynamic_shared_bytes > 0)
    if (auto ok = driver.Check(driver.function_set(function, kMaxDynamicSharedBytes, int(launch.dynamic_shared_bytes)),
                               fmt::format("give kernel {} {} bytes of shared memory", launch.entry, launch.dynamic_shared_bytes));
        !ok)
      return ok;
  if (driver.function_set && cluster > kPortableCluster)
    if (auto ok = driver.Check(driver.function_set(function, kNonPortableCluster, 1), "allow a large cluster"); !ok) return ok;
  functions_.push_back(function);
  resources_.push_back(std::move(resources));
  return {};
}

}  // namespace kiln::runtime
