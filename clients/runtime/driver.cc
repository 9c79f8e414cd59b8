// SPDX-License-Identifier: Apache-2.0
#include "clients/runtime/driver.h"

#include <dlfcn.h>
#include <fmt/format.h>

#include <vector>

namespace kiln::runtime {
namespace {

struct Library {
  const char* names[4];  // tried in order, up to the first null
  const char* hint;
};
constexpr Library kLibraries[] = {
    {{"libcuda.so.1", "libcuda.so"},
     "install NVIDIA's driver (`nvidia-smi` shows one that works); in a container, start it with the GPU passed through"},
    {{"libamdhip64.so.7", "libamdhip64.so.6", "libamdhip64.so"},
     "install ROCm's HIP runtime and the amdgpu driver, and add the folder of libamdhip64.so to the loader's path"},
};

struct Hint {
  std::string_view part;  // of the driver's name for the error
  std::string_view text;
};
constexpr Hint kHints[] = {
    {"OUT_OF_MEMORY", "free device memory or use smaller tensors"},
    {"OutOfMemory", "free device memory or use smaller tensors"},
    {"NO_BINARY_FOR_GPU", "compile for this device's architecture"},
    {"NoBinaryForGpu", "compile for this device's architecture"},
    {"UNSUPPORTED_PTX_VERSION", "the driver is older than the PTX; update it, or let the daemon make cubins with ptxas"},
    {"INVALID_PTX", "the driver's compiler refused the PTX; the log says where. This is a defect of the compiler: report it"},
    {"ILLEGAL_ADDRESS",
     "the kernel went outside a tensor; the context is lost, restart the process. Check tensor sizes, or run "
     "under compute-sanitizer"},
    {"MISALIGNED_ADDRESS", "a tensor's data is less aligned than the kernel relies on; the context is lost, restart the process"},
    {"COOPERATIVE_LAUNCH_TOO_LARGE",
     "the blocks of the launch wait for each other, so all must be on the device at one time: launch fewer, at most as many as it "
     "has multiprocessors"},
    {"LAUNCH_FAILED", "the kernel faulted; the context is lost, restart the process. compute-sanitizer shows the instruction"},
    {"LAUNCH_OUT_OF_RESOURCES",
     "the kernel needs more registers or shared memory than a block may have; use fewer threads, a "
     "smaller tile or fewer stages"},
    {"LAUNCH_TIMEOUT", "the kernel ran longer than this device's watchdog allows"},
    {"NO_DEVICE", "no GPU is visible; look at CUDA_VISIBLE_DEVICES and at the container's settings"},
    {"NoDevice", "no GPU is visible; look at HIP_VISIBLE_DEVICES and at the container's settings"},
    {"SYSTEM_DRIVER_MISMATCH", "libcuda and the kernel module differ in version; reboot or reinstall the driver"},
    {"NOT_INITIALIZED", "the driver does not work after fork; start workers with the spawn method"},
    {"IllegalAddress", "the kernel went outside a tensor; the context is lost, restart the process"},
};

Error Absent(DriverKind kind, std::string message) {
  return Error{Error::Kind::kDriver, std::move(message), {}, fmt::format("open the {} driver", Name(kind))};
}

// Fills one member; `symbol` as in driver_calls.def. Returns false where a required symbol is missing.
template <class Function>
bool ResolveOne(const Loader& loader, void* library, const char* symbol, Function& member) {
  if (*symbol == 0) return true;
  const bool optional = *symbol == '?';
  member = reinterpret_cast<Function>(loader.symbol(library, symbol + optional));
  return member != nullptr || optional;
}

}  // namespace

std::string_view Name(DriverKind kind) { return kind == DriverKind::kCuda ? "cuda" : "hip"; }

Loader Loader::System() {
  return {.open = [](const std::string& library) -> std::expected<void*, std::string> {
            if (void* handle = dlopen(library.c_str(), RTLD_NOW | RTLD_LOCAL)) return handle;
            const char* why = dlerror();
            return std::unexpected(std::string(why ? why : "dlopen failed"));
          },
          .symbol = [](void* library, const char* symbol) { return dlsym(library, symbol); }};
}

Result<void> Driver::Resolve(const Loader& loader, void* library, const std::string& name) {
  std::string missing;
  const bool cuda = kind_ == DriverKind::kCuda;
#define KILN_DRIVER_CALL(member, signature, cuda_symbol, hip_symbol)         \
  if (!ResolveOne(loader, library, cuda ? cuda_symbol : hip_symbol, member)) \
    missing += std::string(missing.empty() ? "" : ", ") + (cuda ? cuda_symbol : hip_symbol);
#include "clients/runtime/driver_calls.def"
  if (cuda) {
    ResolveOne(loader, library, "?cuGetErrorName", cuda_error_name_);
  } else {
    ResolveOne(loader, library, "?hipGetErrorName", hip_error_name_);
  }
  if (missing.empty()) return {};
  return std::unexpected(Absent(kind_, fmt::format("{} lacks {}: it is too old or no {} driver; {}", name, missing, Name(kind_),
                                                   cuda ? "CUDA 12 or newer is needed" : "ROCm 5.2 or newer is needed")));
}

Result<std::shared_ptr<const Driver>> Driver::Open(DriverKind kind, const Loader& loader, const std::string& library) {
  const Library& usual = kLibraries[size_t(kind)];
  std::vector<std::string> names;
  if (!library.empty()) {
    names.push_back(library);
  } else {
    for (const char* name : usual.names)
      if (name) names.emplace_back(name);
  }
  std::string why;
  for (const std::string& name : names) {
    auto handle = loader.open(name);
    if (!handle) {
      if (why.empty()) why = handle.error();
      continue;
    }
    std::shared_ptr<Driver> driver(new Driver);
    driver->kind_ = kind;
    if (auto resolved = driver->Resolve(loader, *handle, name); !resolved) return std::unexpected(resolved.error());
    if (auto ready = driver->Check(driver->init(0), "initialise the driver"); !ready) return std::unexpected(ready.error());
    return driver;
  }
  return std::unexpected(Absent(kind, fmt::format("cannot open the {} driver ({}): {}", Name(kind), why, usual.hint)));
}

std::string Driver::ErrorName(int status) const {
  const char* name = nullptr;
  if (cuda_error_name_ && cuda_error_name_(status, &name) != 0) name = nullptr;
  if (hip_error_name_) name = hip_error_name_(status);
  return name ? name : fmt::format("{} error {}", Name(kind_), status);
}

Error Driver::MakeError(int status, std::string_view operation) const {
  Error error{Error::Kind::kDriver, {}, ErrorName(status), std::string(operation)};
  error.message = fmt::format("{}: {}", operation, error.name);
  for (const Hint& hint : kHints) {
    if (error.name.find(hint.part) == std::string::npos) continue;
    error.message += fmt::format("; {}", hint.text);
    break;
  }
  return error;
}

}  // namespace kiln::runtime
