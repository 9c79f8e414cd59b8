// SPDX-License-Identifier: Apache-2.0
//
// Concurrency: one of kLocks mutexes, chosen by address, is held for the change.
#include "compiler/emulator/runtime/atomic.h"

#include <array>
#include <cmath>
#include <cstring>
#include <mutex>
#include <type_traits>

#include "compiler/emulator/abi.h"
#include "compiler/emulator/runtime/matrix/number.h"

namespace kiln::emulator {
namespace {

using ir::DType;

constexpr size_t kLocks = 64;
std::array<std::mutex, kLocks> locks;

template <typename T>
T CombineIntegers(TensorOp op, T a, T b) {
  using Unsigned = std::make_unsigned_t<T>;
  switch (op) {
    case TensorOp::kMax: return a > b ? a : b;
    case TensorOp::kMin: return a < b ? a : b;
    case TensorOp::kAnd: return T(a & b);
    case TensorOp::kOr: return T(a | b);
    case TensorOp::kXor: return T(a ^ b);
    case TensorOp::kInc: return a >= b ? T(0) : T(a + 1);
    case TensorOp::kDec: return a == 0 || a > b ? b : T(a - 1);
    default: return T(Unsigned(Unsigned(a) + Unsigned(b)));
  }
}

template <typename T>
T Combine(uint32_t number, T a, T b) {
  const auto op = TensorOp(number);
  if (op == TensorOp::kStore) return b;
  if (op == TensorOp::kLoad) return a;
  if constexpr (std::is_floating_point_v<T>) {
    return op == TensorOp::kAdd ? a + b : op == TensorOp::kMax ? std::fmax(a, b) : std::fmin(a, b);
  } else {
    return CombineIntegers(op, a, b);
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
  if (op == uint32_t(TensorOp::kStore) || op == uint32_t(TensorOp::kLoad))
    return void(std::memcpy(data, op == uint32_t(TensorOp::kStore) ? &b : &a, 2));
  a = Narrow(dtype, Combine(op, ValuesOf(dtype)[a], ValuesOf(dtype)[b]));
  std::memcpy(data, &a, sizeof a);
}

// What the change by itself does. Whoever calls it holds the lock.
void ChangeOne(uint32_t op, DType dtype, void* data, const void* value) {
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

std::mutex& LockOf(const void* data) { return locks[reinterpret_cast<uintptr_t>(data) / 8 % kLocks]; }

}  // namespace

void Atomically(uint32_t op, DType dtype, void* data, const void* value) {
  const std::lock_guard lock(LockOf(data));
  ChangeOne(op, dtype, data, value);
}

void AtomicallyGivingOld(uint32_t op, DType dtype, void* data, void* value, const void* compare) {
  const std::lock_guard lock(LockOf(data));
  const size_t bytes = size_t(ir::Bits(dtype)) / 8;
  std::array<std::byte, 8> before;
  std::memcpy(before.data(), data, bytes);
  if (TensorOp(op) != TensorOp::kCompareExchange) ChangeOne(op, dtype, data, value);
  else if (std::memcmp(data, compare, bytes) == 0) std::memcpy(data, value, bytes);
  std::memcpy(value, before.data(), bytes);
}

// Sums round, and of two zeros or NaN the later is the minimum.
bool DependsOnOrder(uint32_t op, DType dtype) { return ir::IsFloat(dtype) || TensorOp(op) == TensorOp::kInc || TensorOp(op) == TensorOp::kDec; }

}  // namespace kiln::emulator
