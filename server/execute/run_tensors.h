// SPDX-License-Identifier: Apache-2.0
//
// The tensors of a run, as its device worker sees them: bytes in the memory that came with the job, and arguments for the kernel.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "clients/runtime/bind.h"
#include "kiln/v1/run.pb.h"

namespace kiln::server {

// Pages of the job's memory, between pages that may not be touched.
class MappedBytes {
 public:
  MappedBytes() = default;
  MappedBytes(MappedBytes&& other) noexcept { *this = std::move(other); }
  MappedBytes& operator=(MappedBytes&& other) noexcept;
  ~MappedBytes();

  // `position` is a multiple of the page size. Empty where the system refuses.
  static MappedBytes Map(int memory, std::uint64_t position, std::uint64_t bytes);

  std::span<std::byte> bytes() const { return bytes_; }

 private:
  void* reserved_ = nullptr;
  std::size_t reserved_bytes_ = 0;
  std::span<std::byte> bytes_;
};

class RunTensors {
 public:
  struct Tensor {
    std::size_t param = 0;
    std::uint32_t argument = 0;  // as in RunOutput
    v1::RunTensor shape;         // and strides, offset
    std::size_t storage = 0;     // whose bytes its elements lie in
    std::uint64_t first = 0;     // bytes that the elements span: from here …
    std::uint64_t span = 0;      // … so many
    bool written = false;
  };
  // What was sent for one tensor, or made for an output; others may share it.
  struct Storage {
    std::uint64_t position = 0;  // in the memory
    MappedBytes mapped;
    std::uint64_t address = 0;  // of its bytes, where the device finds them
    bool written = false;

    std::span<std::byte> host() const { return mapped.bytes(); }
  };

  // Where a tensor's bytes are for the device; uploads them where that is another memory.
  using Place = std::function<runtime::Result<std::uint64_t>(std::span<std::byte> host)>;
  struct Where {
    runtime::Place place = runtime::Place::kHost;
    int device = 0;
    Place give;
  };

  // The error says what does not fit the kernel or the memory.
  static std::expected<RunTensors, std::string> Create(const v1::DeviceRun& run, int memory, const runtime::Binder& binder, const Where& where);

  std::span<const runtime::Arg> args() const { return args_; }  // one for each parameter
  const std::vector<Tensor>& tensors() const { return tensors_; }
  const std::vector<Storage>& storages() const { return storages_; }  // in the order in which they were given to the device

  // Adds what the kernel wrote.
  void Describe(const runtime::Binder& binder, v1::DeviceResult& result) const;

 private:
  class Maker;
  std::vector<runtime::Arg> args_;
  std::vector<Tensor> tensors_;  // whose shapes args_ points into: never resized once made
  std::vector<Storage> storages_;
};

}  // namespace kiln::server
