// SPDX-License-Identifier: Apache-2.0
//
// Pages that are zero until they are touched.
#pragma once

#include <sys/mman.h>

#include <cstddef>
#include <utility>

namespace kiln::emulator {

class Pages {
 public:
  explicit Pages(size_t bytes) : bytes_(bytes) {
    void* memory = mmap(nullptr, bytes_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    data_ = memory == MAP_FAILED ? nullptr : static_cast<std::byte*>(memory);
  }
  ~Pages() {
    if (data_ != nullptr) munmap(data_, bytes_);
  }
  Pages(Pages&& other) noexcept : data_(std::exchange(other.data_, nullptr)), bytes_(other.bytes_) {}
  Pages& operator=(Pages&&) = delete;

  std::byte* data() const { return data_; }  // null: there is no such memory
  void Clear() {
    if (data_ != nullptr) madvise(data_, bytes_, MADV_DONTNEED);
  }

 private:
  std::byte* data_;
  size_t bytes_;
};

}  // namespace kiln::emulator
