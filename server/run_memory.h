// SPDX-License-Identifier: Apache-2.0
//
// The bytes of one run's tensors, in a file without a name that kilnd and the device worker share. Its size is fixed and sealed; what
// nobody wrote takes no memory.
#pragma once

#include <atomic>
#include <cstdint>
#include <expected>
#include <memory>
#include <string>
#include <string_view>

#include "server/unique_fd.h"

namespace kiln::server {

// How much all runs may hold at one time. Thread-safe.
class RunBudget {
 public:
  explicit RunBudget(std::uint64_t capacity) : capacity_(capacity) {}

  bool TryTake(std::uint64_t bytes);
  void Take(std::uint64_t bytes) { used_ += bytes; }  // what is there already
  void Give(std::uint64_t bytes) { used_ -= bytes; }
  std::uint64_t capacity() const { return capacity_; }

 private:
  const std::uint64_t capacity_;
  std::atomic<std::uint64_t> used_ = 0;
};

class RunMemory {
 public:
  static constexpr std::uint64_t kPage = 4096;  // tensors begin at multiples

  // `taken`: of the budget, which gets it back with this object. The error says what the system refused.
  static std::expected<std::shared_ptr<RunMemory>, std::string> Create(std::uint64_t bytes, RunBudget& budget, std::uint64_t taken);
  ~RunMemory();
  RunMemory(const RunMemory&) = delete;
  RunMemory& operator=(const RunMemory&) = delete;

  std::uint64_t bytes() const { return bytes_; }
  int fd() const { return fd_.get(); }

  // False where it does not fit or there is no memory.
  bool Write(std::uint64_t position, std::string_view data);
  bool Read(std::uint64_t position, char* data, std::uint64_t bytes) const;

  // The run made more of it.
  void NoteGrowth(std::uint64_t bytes);

 private:
  RunMemory(UniqueFd fd, std::uint64_t bytes, RunBudget& budget, std::uint64_t taken)
      : fd_(std::move(fd)), bytes_(bytes), budget_(budget), taken_(taken) {}

  const UniqueFd fd_;
  const std::uint64_t bytes_;
  RunBudget& budget_;
  std::uint64_t taken_;
};

}  // namespace kiln::server
