// SPDX-License-Identifier: Apache-2.0
//
// Concurrency: one of kLocks mutexes, chosen by address, is held for the change.
#include "compiler/emulator/runtime/atomic.h"

#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "compiler/emulator/runtime/number.h"

namespace kiln::emulator {
namespace {

using ir::DType;

constexpr size_t kLocks = 64;
std::array<std::mutex, kLocks> locks;

template <typename T>
T Combine(uint32_t op, T a, T b) {
  if constexpr (std::is_floating_point_v<T>) {
    return op == 0 ? a + b : op == 1 ? std::fmax(a, b) : std::fmin(a, b);
  } else {
    using Unsigned = std::make_unsigned_t<T>;
    return op == 0 ? T(Unsigned(Unsigned(a) + Unsigned(b))) : op == 1 ? (a > b ? a : b) : (a < b ? a : b);
  }
}

template <typename T>
void Change(uint32_t op, void* data, const void* value) {
  T a, b;
  std::memcpy(&a, data, sizeof a);
  std::memcpy(&b, value, sizeof b);
  a = Combine(op, a, b);
  std::memcpy(data, &a, sizeof a);
}

void ChangeHalf(uint32_t op, DType dtype, void* data, const void* value) {
  uint16_t a, b;
  std::memcpy(&a, data, sizeof a);
  std::memcpy(&b, value, sizeof b);
  a = Narrow(dtype, Combine(op, ValuesOf(dtype)[a], ValuesOf(dtype)[b]));
  std::memcpy(data, &a, sizeof a);
}

}  // namespace

void Atomically(uint32_t op, DType dtype, void* data, const void* value) {
  const std::lock_guard lock(locks[reinterpret_cast<uintptr_t>(data) / 8 % kLocks]);
  switch (dtype) {
    case DType::kI8: return Change<int8_t>(op, data, value);
    case DType::kU8: return Change<uint8_t>(op, data, value);
    case DType::kI16: return Change<int16_t>(op, data, value);
    case DType::kU16: return Change<uint16_t>(op, data, value);
    case DType::kI32: return Change<int32_t>(op, data, value);
    case DType::kU32: return Change<uint32_t>(op, data, value);
    case DType::kI64: return Change<int64_t>(op, data, value);
    case DType::kU64: return Change<uint64_t>(op, data, value);
    case DType::kF32: return Change<float>(op, data, value);
    case DType::kF64: return Change<double>(op, data, value);
    case DType::kF16:
    case DType::kBF16: return ChangeHalf(op, dtype, data, value);
    default: return;  // the verifier admits no others
  }
}

}  // namespace kiln::emulator
