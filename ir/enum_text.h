// SPDX-License-Identifier: Apache-2.0
//
// What the text form calls the values of an op's enums, from the first on. The wire form has the same values.
#pragma once

#include <iterator>
#include <string_view>

#include "ir/module.h"
#include "ir/op.h"

namespace kiln::ir {

template <typename E>
struct EnumText;

template <>
struct EnumText<LoopKind> {
  static constexpr std::string_view what = "a loop kind";
  static constexpr LoopKind first = LoopKind::kSerial;
  static constexpr std::string_view names[] = {"serial", "unroll", "parallel", "vectorized", "pipelined", "persistent"};
};
template <>
struct EnumText<WarpPolicy> {
  static constexpr std::string_view what = "a policy";
  static constexpr WarpPolicy first = WarpPolicy::kSquare;
  static constexpr std::string_view names[] = {"square", "full_row", "full_col"};
};
template <>
struct EnumText<ReduceKind> {
  static constexpr std::string_view what = "a reduction";
  static constexpr ReduceKind first = ReduceKind::kSum;
  static constexpr std::string_view names[] = {"sum", "max", "min", "absmax", "abssum", "bitand", "bitor", "bitxor"};
};
template <>
struct EnumText<AtomicKind> {
  static constexpr std::string_view what = "an atomic operation";
  static constexpr AtomicKind first = AtomicKind::kAdd;
  static constexpr std::string_view names[] = {"add", "max", "min", "bitand", "bitor", "bitxor", "exchange", "compare_exchange", "load", "store"};
};
template <>
struct EnumText<MemoryOrder> {
  static constexpr std::string_view what = "a memory order";
  static constexpr MemoryOrder first = MemoryOrder::kRelaxed;
  static constexpr std::string_view names[] = {"relaxed", "acquire", "release", "acq_rel", "seq_cst"};
};
template <>
struct EnumText<Language> {
  static constexpr std::string_view what = "a language";
  static constexpr Language first = Language::kLlvm;
  static constexpr std::string_view names[] = {"llvm", "ptx"};
};
template <>
struct EnumText<CopyInstruction> {
  static constexpr std::string_view what = "how to copy";
  static constexpr CopyInstruction first = CopyInstruction::kDirect;
  static constexpr std::string_view names[] = {"direct", "async", "tensor"};
};
template <>
struct EnumText<LoadForm> {
  static constexpr std::string_view what = "how to load";
  static constexpr LoadForm first = LoadForm::kEach;
  static constexpr std::string_view names[] = {"each", "same", "vector", "across", "gathered", "around", "clipped"};
};
template <>
struct EnumText<StoreForm> {
  static constexpr std::string_view what = "how to store";
  static constexpr StoreForm first = StoreForm::kRegisters;
  static constexpr std::string_view names[] = {"registers", "vector", "matrix", "transposed"};
};
template <>
struct EnumText<RingAction> {
  static constexpr std::string_view what = "a step of a ring";
  static constexpr RingAction first = RingAction::kAcquire;
  static constexpr std::string_view names[] = {"acquire", "wait", "release", "advance"};
};

template <typename E>
  requires requires { EnumText<E>::names; }
std::string_view Name(E value) {
  const size_t index = size_t(value) - size_t(EnumText<E>::first);
  return index < std::size(EnumText<E>::names) ? EnumText<E>::names[index] : "";
}

}  // namespace kiln::ir
