// SPDX-License-Identifier: Apache-2.0
//
// A GPU's copies of what a run's tensors lie in.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <utility>
#include <vector>

#include "clients/runtime/memory.h"
#include "server/execute/run_tensors.h"

namespace kiln::server {

class GpuCopies {
 public:
  explicit GpuCopies(std::shared_ptr<const runtime::Device> device) : device_(std::move(device)) {}

  runtime::Result<std::uint64_t> Give(std::span<std::byte> host) {
    auto buffer = runtime::DeviceBuffer::Allocate(device_, host.size());
    if (!buffer) return std::unexpected(buffer.error());
    if (auto copied = buffer->CopyFrom(host.data(), host.size()); !copied) return std::unexpected(copied.error());
    buffers_.push_back(std::move(*buffer));
    return buffers_.back().address();
  }

  // Copies what the kernel wrote back to where the tensors came from. Waits.
  runtime::Result<void> Fetch(const RunTensors& tensors) const {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const RunTensors::Storage& storage = tensors.storages()[i];
      if (!storage.written) continue;
      if (auto copied = buffers_[i].CopyTo(storage.host().data(), storage.host().size()); !copied) return copied;
    }
    return runtime::SynchronizeStream(*device_, nullptr);
  }

  // Keeps, on the device, what the tensors hold that the kernel will write and may read.
  runtime::Result<void> KeepGiven(const RunTensors& tensors, std::uint64_t used) {
    for (std::size_t i = 0; i < buffers_.size(); ++i) {
      const RunTensors::Storage& storage = tensors.storages()[i];
      if (!storage.written || storage.position >= used) continue;  // behind what was given lies what the worker allocates
      auto given = runtime::DeviceBuffer::Allocate(device_, buffers_[i].bytes());
      if (!given) return std::unexpected(given.error());
      if (auto copied = given->CopyFrom(buffers_[i]); !copied) return copied;
      given_.emplace_back(i, std::move(*given));
    }
    return {};
  }

  // As KeepGiven found them. Does not wait.
  runtime::Result<void> Restore() const {
    for (const auto& [index, given] : given_) {
      if (auto copied = buffers_[index].CopyFrom(given); !copied) return copied;
    }
    return {};
  }

 private:
  std::shared_ptr<const runtime::Device> device_;
  std::vector<runtime::DeviceBuffer> buffers_;  // in the order of RunTensors::storages
  std::vector<std::pair<std::size_t, runtime::DeviceBuffer>> given_;
};

}  // namespace kiln::server
