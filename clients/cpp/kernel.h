// SPDX-License-Identifier: Apache-2.0
//
// kiln::Kernel: a compiled program on a GPU of this process. The driver is opened at run time; no toolkit is needed.
//
//   auto devices = kiln::Devices();                                        // devices->front().target is what to compile for
//   auto kernel = kiln::Kernel::Load(*compiled, {.parameters = builder.ParameterNames()});
//   kernel->Launch({kiln::Tensor{x, kiln::DType::kF16, {m, 64}}, kiln::Tensor{y, kiln::DType::kF16, {m, 64}}});
#pragma once

#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <variant>
#include <vector>

#include "clients/cpp/client.h"
#include "clients/cpp/expr.h"

namespace kiln {

struct DeviceDescription {
  int index = 0;
  std::string name;    // "NVIDIA H200"
  std::string target;  // "cuda:sm_90a": what to compile for
  std::uint64_t memory_bytes = 0;
  std::string driver_version;
};

// The GPUs that can be used here; kUnavailable where there is none.
std::expected<std::vector<DeviceDescription>, Error> Devices();

// Memory on the device; freed with the object. Copies are ordered on the default stream; CopyTo waits.
class DeviceMemory {
 public:
  // On the device that runs `target`.
  static std::expected<DeviceMemory, Error> Allocate(std::uint64_t bytes, const std::string& target, int device = 0);
  ~DeviceMemory();
  DeviceMemory(DeviceMemory&&) noexcept;
  DeviceMemory& operator=(DeviceMemory&&) noexcept;

  void* data() const;
  std::uint64_t bytes() const;
  std::expected<void, Error> CopyFrom(const void* host, std::uint64_t bytes);
  std::expected<void, Error> CopyTo(void* host, std::uint64_t bytes) const;

 private:
  struct Impl;
  explicit DeviceMemory(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

struct Tensor {
  void* data = nullptr;  // on the device
  DType dtype = DType::kF32;
  std::vector<std::int64_t> shape;
  std::vector<std::int64_t> strides;  // in elements; empty: row-major
};
using Argument = std::variant<Tensor, std::int64_t, double>;

// May be launched from several threads.
class Kernel {
 public:
  struct LoadOptions {
    int device = 0;
    std::string name;                     // in error texts
    std::vector<std::string> parameters;  // likewise; artifacts hold no names
  };
  static std::expected<Kernel, Error> Load(const Compiled& compiled, const LoadOptions& options);
  ~Kernel();
  Kernel(Kernel&&) noexcept;
  Kernel& operator=(Kernel&&) noexcept;

  // One argument for each parameter, outputs included. Does not wait; `stream` is a CUstream or hipStream_t, null the default one.
  // kInvalid names the argument that does not fit. Where tensors start between the addresses that the program was compiled for,
  // the message says what to set Options.pointer_alignment to.
  std::expected<void, Error> Launch(const std::vector<Argument>& arguments, void* stream = nullptr);
  // Microseconds on the device of each of `repeat` launches.
  std::expected<std::vector<double>, Error> Measure(const std::vector<Argument>& arguments, int repeat = 20);

 private:
  struct Impl;
  explicit Kernel(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace kiln
