// SPDX-License-Identifier: Apache-2.0
#include <array>

#include "tests/emulator/instructions/conformance_kernel.h"

namespace kiln::emulator::conformance {
namespace {

using ir::DType;
using llvm_ir::AtomicOp;

constexpr uint32_t kBarrier = 16384, kShared = kBarrier + 128;
constexpr const char* kTypes[] = {"u8", "u16", "u32", "s32", "u64", "s64", "f16", "f32", "f64", "bf16", "f32.ftz", "tf32", "tf32.ftz"};

// As words of a tensor and of results.
DType DTypeOf(TensorType type) {
  switch (type) {
    case TensorType::kF16: return DType::kF16;
    case TensorType::kBF16: return DType::kBF16;
    case TensorType::kF32:
    case TensorType::kF32Flushed:
    case TensorType::kTF32:
    case TensorType::kTF32Flushed: return DType::kF32;
    default: return DType::kU32;
  }
}

uint32_t BoxBytes(const TensorMapSpec& spec) {
  uint32_t bytes = BytesOf(spec.type) * spec.box[0];
  for (uint32_t d = 1; d < spec.rank; ++d) bytes *= (spec.box[d] + spec.element_strides[d] - 1) / spec.element_strides[d];
  return bytes;
}

// Where a box starts along each dimension: along the innermost, in whole pieces of 16 bytes.
std::array<int, kMaxTensorRank> Start(const TensorMapSpec& spec, int shift) {
  const int piece = int(16 / BytesOf(spec.type));
  std::array<int, kMaxTensorRank> at;
  at.fill(shift);
  at[0] = (shift < 0 ? shift - piece + 1 : shift) / piece * piece;
  return at;
}

std::vector<llvm::Value*> Values(FormKernel& k, const TensorMapSpec& spec, const std::array<int, kMaxTensorRank>& at) {
  std::vector<llvm::Value*> values;
  for (uint32_t d = 0; d < spec.rank; ++d) values.push_back(k.I32(at[d]));
  return values;
}

std::string Text(const TensorMapSpec& spec, const std::array<int, kMaxTensorRank>& at) {
  std::string text;
  for (uint32_t d = 0; d < spec.rank; ++d) text += (d == 0 ? " at " : ",") + std::to_string(at[d]);
  return text;
}

std::string NameOf(const TensorMapSpec& spec) {
  constexpr const char* kSwizzles[] = {"", " swizzle 32", " swizzle 64", " swizzle 128"};
  std::string name = std::to_string(spec.rank) + "d." + kTypes[size_t(spec.type)] + " box";
  for (uint32_t d = 0; d < spec.rank; ++d) name += (d == 0 ? " " : "x") + std::to_string(spec.box[d]);
  for (uint32_t d = 1; d < spec.rank; ++d) {
    if (spec.element_strides[d] != 1) name += " step " + std::to_string(spec.element_strides[d]) + " of dim " + std::to_string(d);
  }
  return name + kSwizzles[size_t(spec.swizzle)] + (spec.fill == TensorFill::kNan ? " nan" : "");
}

void AddLoadAt(std::vector<Form>& forms, const TensorMapSpec& spec, const std::array<int, kMaxTensorRank>& at, bool faults) {
  forms.push_back({.name = "tensor.load." + NameOf(spec) + Text(spec, at),
                   .build =
                       [=](FormKernel& k) {
                         k.FillShared(kBarrier, {});
                         llvm::Value* mbarrier = k.SharedByte(kBarrier);
                         k.device.FenceAsyncProxy();
                         k.IfFirst([&] {
                           k.device.PhaseInit(mbarrier, 1);
                           k.device.PhaseInitFence();
                         });
                         k.device.Barrier();
                         k.IfFirst([&] {
                           k.device.PhaseExpect(mbarrier, k.b.getInt32(BoxBytes(spec)));
                           k.device.TensorLoad(k.shared, k.map, Values(k, spec, at), mbarrier, nullptr);
                         });
                         k.device.PhaseWait(mbarrier, k.I32(0));
                         k.OutShared(kBarrier);
                       },
                   .result = DTypeOf(spec.type),
                   .threads = 128,
                   .faults = faults,
                   .shared_bytes = kShared,
                   .map = spec,
                   .tensor_words = 8192,
                   .tensor = {DTypeOf(spec.type), spec.type == TensorType::kTF32 ? Content::kReals : Content::kBits}});
}

void AddLoad(std::vector<Form>& forms, const TensorMapSpec& spec, int shift) { AddLoadAt(forms, spec, Start(spec, shift), false); }

// Into zeros, or onto what another store has put there.
void AddStoreAt(std::vector<Form>& forms, const TensorMapSpec& spec, const std::array<int, kMaxTensorRank>& at, std::optional<AtomicOp> op,
                Content content, bool faults) {
  constexpr const char* kOps[] = {"add.", "max.", "min."};
  const std::string verb = op ? std::string("reduce.") + kOps[size_t(*op)] : "store.";
  forms.push_back({.name = "tensor." + verb + NameOf(spec) + Text(spec, at),
                   .build =
                       [=](FormKernel& k) {
                         const auto write = [&](bool reduces) {
                           k.FillShared(kBarrier, {DTypeOf(spec.type), content});
                           k.device.FenceAsyncProxy();
                           k.device.Barrier();
                           k.IfFirst([&] {
                             if (reduces) k.device.TensorReduce(*op, k.map, Values(k, spec, at), k.shared);
                             else k.device.TensorStore(k.map, Values(k, spec, at), k.shared);
                             k.device.TensorStoreCommit();
                             k.device.TensorStoreWait(0, /*read_only=*/false);
                           });
                           k.device.Barrier();
                         };
                         write(false);
                         if (op) write(true);
                       },
                   .result = DTypeOf(spec.type),
                   .threads = 128,
                   .faults = faults,
                   .shared_bytes = kShared,
                   .map = spec,
                   .map_out = true,
                   .tensor_words = 8192});
}

void AddStore(std::vector<Form>& forms, const TensorMapSpec& spec, int shift, std::optional<AtomicOp> op, Content content) {
  AddStoreAt(forms, spec, Start(spec, shift), op, content, false);
}

void AddReductions(std::vector<Form>& forms) {
  using enum TensorType;
  for (const TensorType type : {kU32, kI32, kU64, kI64, kF16, kBF16, kF32}) {
    for (const AtomicOp op : {AtomicOp::kAdd, AtomicOp::kMax, AtomicOp::kMin}) {
      if (op == AtomicOp::kAdd ? type == kI64 : type == kF32) continue;  // the hardware has none
      const bool bits = DTypeOf(type) == DType::kU32;
      AddStore(forms, {.type = type, .rank = 2, .dims = {48, 40}, .box = {128 / BytesOf(type), 8}, .swizzle = TensorSwizzle::k128}, 5, op,
               bits || BytesOf(type) == 4 ? Content::kBits : Content::kReals);
    }
  }
}

// The first coordinate is no multiple of 16 bytes.
void AddFaults(std::vector<Form>& forms) {
  using enum TensorType;
  for (const auto& [type, first] : {std::pair{kU8, 8}, {kF16, 4}, {kF32, -2}, {kU64, 1}}) {
    const TensorMapSpec spec{.type = type, .rank = 2, .dims = {48, 40}, .strides = {256 * BytesOf(type) / 4}, .box = {64 / BytesOf(type), 8}};
    AddLoadAt(forms, spec, {first}, true);
    AddStoreAt(forms, spec, {first}, std::nullopt, Content::kBits, true);
  }
}

}  // namespace

void AddTensorForms(std::vector<Form>& forms) {
  using enum TensorType;
  for (const TensorType type : {kU8, kU16, kU32, kI32, kU64, kI64, kF16, kF32, kF64, kBF16, kF32Flushed, kTF32}) {
    for (const TensorSwizzle swizzle : {TensorSwizzle::kNone, TensorSwizzle::k32, TensorSwizzle::k64, TensorSwizzle::k128}) {
      const uint32_t row = swizzle == TensorSwizzle::kNone ? 128 : 16u << uint32_t(swizzle);
      const TensorMapSpec spec{
          .type = type, .rank = 2, .dims = {48, 40}, .strides = {256 * BytesOf(type) / 4}, .box = {row / BytesOf(type), 16}, .swizzle = swizzle};
      for (const int shift : {0, -3, 30}) AddLoad(forms, spec, shift);
      AddStore(forms, spec, 30, std::nullopt, Content::kBits);
    }
  }
  for (uint32_t rank = 1; rank <= 5; ++rank) {
    TensorMapSpec spec{.type = kF32, .rank = rank, .dims = {8, 5, 5, 5, 5}, .box = {8, 2, 3, 2, 4}};
    if (rank == 1) spec.dims[0] = 100;
    for (const int shift : {0, 2, -1}) AddLoad(forms, spec, shift);
    AddStore(forms, spec, 1, std::nullopt, Content::kBits);
  }
  for (const uint32_t step : {2u, 3u, 8u}) {
    AddLoad(forms, {.type = kU32, .rank = 2, .dims = {32, 64}, .box = {32, 24}, .element_strides = {1, step, 1, 1, 1}}, 3);
  }
  for (const auto& [row, swizzle] :
       {std::pair{8u, TensorSwizzle::k32}, {8u, TensorSwizzle::k64}, {16u, TensorSwizzle::k128}, {32u, TensorSwizzle::k128}}) {
    const TensorMapSpec narrow{.type = kU16, .rank = 2, .dims = {64, 64}, .box = {row, 16}, .swizzle = swizzle};  // than the swizzle's span
    AddLoad(forms, narrow, 9);
    AddStore(forms, narrow, 9, std::nullopt, Content::kBits);
  }
  for (const TensorType type : {kF16, kBF16, kF32}) {
    AddLoad(forms, {.type = type, .rank = 2, .dims = {40, 40}, .box = {32, 16}, .fill = TensorFill::kNan}, 30);
  }
  AddReductions(forms);
  AddFaults(forms);
}

}  // namespace kiln::emulator::conformance
