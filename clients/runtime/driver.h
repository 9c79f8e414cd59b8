// SPDX-License-Identifier: Apache-2.0
//
// A GPU driver opened at run time: libcuda.so.1 or libamdhip64.so. Nothing of CUDA or ROCm is needed to build. Prototypes and
// constants follow NVIDIA's "CUDA Driver API" and AMD's "HIP Runtime API" references.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <type_traits>

#include "clients/runtime/error.h"

namespace kiln::runtime {

enum class DriverKind : uint8_t { kCuda, kHip };
std::string_view Name(DriverKind kind);  // "cuda", "hip"

// How libraries are opened; tests put another one in its place.
struct Loader {
  std::function<std::expected<void*, std::string>(const std::string& library)> open;
  std::function<void*(void* library, const char* symbol)> symbol;
  static Loader System();  // dlopen, dlsym
};

// CUlaunchAttribute and CUlaunchConfig.
struct LaunchAttribute {
  static constexpr int kCooperative = 2, kClusterDimension = 4;
  int id = 0;
  char pad[4] = {};
  uint32_t value[16] = {};
};
static_assert(sizeof(LaunchAttribute) == 72);
struct LaunchConfig {
  unsigned grid[3];
  unsigned block[3];
  unsigned shared_bytes;
  void* stream;
  const LaunchAttribute* attributes;
  unsigned attribute_count;
};

// Numbers that CUDA and HIP share.
enum FunctionAttribute : int {
  kMaxThreadsPerBlock = 0,
  kSharedBytes = 1,
  kLocalBytes = 3,
  kRegisters = 4,
  kMaxDynamicSharedBytes = 8,
  kNonPortableCluster = 14,
};
enum JitOption : int {
  kJitInfoLog = 3,
  kJitInfoLogBytes = 4,
  kJitErrorLog = 5,
  kJitErrorLogBytes = 6,
  kJitOptimizationLevel = 7,  // 0 to 4, which is the default
  kJitLogVerbose = 12,
};

class Driver {
 public:
  // Opens the library (empty: the usual names) and initialises the driver.
  static Result<std::shared_ptr<const Driver>> Open(DriverKind kind, const Loader& loader = Loader::System(), const std::string& library = {});

  DriverKind kind() const { return kind_; }

  // Success for 0; else an error with the driver's name for it, `operation`, and a hint where there is one.
  Result<void> Check(int status, std::string_view operation) const {
    if (status == 0) [[likely]]
      return {};
    return std::unexpected(MakeError(status, operation));
  }
  Error MakeError(int status, std::string_view operation) const;

#define KILN_DRIVER_CALL(member, signature, cuda, hip) std::add_pointer_t<signature> member = nullptr;
#include "clients/runtime/driver_calls.def"

 private:
  Driver() = default;
  Result<void> Resolve(const Loader& loader, void* library, const std::string& name);
  std::string ErrorName(int status) const;

  DriverKind kind_ = DriverKind::kCuda;
  int (*cuda_error_name_)(int, const char**) = nullptr;
  const char* (*hip_error_name_)(int) = nullptr;
};

}  // namespace kiln::runtime
