// SPDX-License-Identifier: Apache-2.0
//
// What the measurements of one tuning share on a GPU: the tensors, the kernels that are measured again and again, and memory that is written
// between two launches so that nothing of the last one is left in the caches.
#pragma once

#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "clients/runtime/kernel.h"
#include "clients/runtime/memory.h"
#include "kiln/v1/run.pb.h"
#include "server/execute/gpu_copies.h"
#include "server/execute/loaded_programs.h"
#include "server/execute/run_tensors.h"

namespace kiln::server {

class GpuSession {
 public:
  GpuSession(std::uint64_t id, std::shared_ptr<const runtime::Device> device) : id_(id), device_(std::move(device)) {}

  std::uint64_t id() const { return id_; }

  // Null where it is not loaded.
  runtime::Kernel* Find(const std::string& key) { return kernels_.Find(key); }
  runtime::Kernel* Add(std::string key, std::unique_ptr<runtime::Kernel> kernel) { return kernels_.Add(std::move(key), std::move(kernel)); }

  struct Refusal {
    std::string text;
    bool of_device = false;  // it has no memory for them now; else the tensors do not fit the kernel
  };
  // Puts the tensors on the device unless the last kernel's are the same.
  std::expected<void, Refusal> Prepare(const v1::DeviceRun& run, int memory, const runtime::Binder& binder);

  // Microseconds of each of `repeat` launches, after one that is not measured. `midst` is called once the device has them all to do.
  runtime::Result<std::vector<double>> Measure(runtime::Kernel& kernel, unsigned repeat, const std::function<void()>& midst);

  // Gives the tensors what they had at first.
  runtime::Result<void> Restore() { return copies_->Restore(); }

  std::span<const runtime::Arg> args() const { return tensors_->args(); }

 private:
  runtime::Result<void> MakeReady();

  static constexpr std::size_t kKernels = 32;  // each may have workspaces
  const std::uint64_t id_;
  const std::shared_ptr<const runtime::Device> device_;
  std::string signature_;  // of the parameters that `tensors_` was made for
  std::unique_ptr<GpuCopies> copies_;
  std::unique_ptr<RunTensors> tensors_;
  runtime::DeviceBuffer flush_;
  LoadedPrograms<runtime::Kernel, kKernels> kernels_;
};

}  // namespace kiln::server
