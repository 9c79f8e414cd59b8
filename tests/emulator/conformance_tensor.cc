// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/conformance_kernel.h"

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

std::vector<llvm::Value*> At(FormKernel& k, uint32_t rank, int shift) {
  return std::vector<llvm::Value*>(rank, k.I32(shift));
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

void AddLoad(std::vector<Form>& forms, const TensorMapSpec& spec, int shift) {
  forms.push_back({.name = "tensor.load." + NameOf(spec) + " at " + std::to_string(shift), .build = [=](FormKernel& k) {
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
      k.device.TensorLoad(k.shared, k.map, At(k, spec.rank, shift), mbarrier, nullptr);
    });
    k.device.PhaseWait(mbarrier, k.I32(0));
    k.OutShared(kBarrier);
  }, .result = DTypeOf(spec.type), .threads = 128, .shared_bytes = kShared, .map = spec, .tensor_words = 8192,
     .tensor = {DTypeOf(spec.type), spec.type == TensorType::kTF32 ? Content::kReals : Content::kBits}});
}

// Into zeros, or onto what another store has put there.
void AddStore(std::vector<Form>& forms, const TensorMapSpec& spec, int shift, std::optional<AtomicOp> op, Content content) {
  constexpr const char* kOps[] = {"add.", "max.", "min."};
  const std::string verb = op ? std::string("reduce.") + kOps[size_t(*op)] : "store.";
  forms.push_back({.name = "tensor." + verb + NameOf(spec) + " at " + std::to_string(shift), .build = [=](FormKernel& k) {
    const auto write = [&](bool reduces) {
      k.FillShared(kBarrier, {DTypeOf(spec.type), content});
      k.device.FenceAsyncProxy();
      k.device.Barrier();
      k.IfFirst([&] {
        if (reduces) k.device.TensorReduce(*op, k.map, At(k, spec.rank, shift), k.shared);
        else k.device.TensorStore(k.map, At(k, spec.rank, shift), k.shared);
        k.device.TensorStoreCommit();
        k.device.TensorStoreWait(0, /*read_only=*/false);
      });
      k.device.Barrier();
    };
    write(false);
    if (op) write(true);
  }, .result = DTypeOf(spec.type), .threads = 128, .shared_bytes = kShared, .map = spec, .map_out = true, .tensor_words = 8192});
}

void AddReductions(std::vector<Form>& forms) {
  using enum TensorType;
  for (const TensorType type : {kU32, kI32, kU64, kI64, kF16, kBF16, kF32}) {
    for (const AtomicOp op : {AtomicOp::kAdd, AtomicOp::kMax, AtomicOp::kMin}) {
      if (op == AtomicOp::kAdd ? type == kI64 : type == kF32) continue;  // the hardware has none
      const bool bits = DTypeOf(type) == DType::kU32;
      AddStore(forms, {.type = type, .rank = 2, .dims = {48, 40}, .box = {128 / BytesOf(type), 8}, .swizzle = TensorSwizzle::k128}, 5, op,
               bits ? Content::kBits : Content::kReals);
    }
  }
}

}  // namespace

void AddTensorForms(std::vector<Form>& forms) {
  using enum TensorType;
  for (const TensorType type : {kU8, kU16, kU32, kI32, kU64, kI64, kF16, kF32, kF64, kBF16, kF32Flushed, kTF32}) {
    for (const TensorSwizzle swizzle : {TensorSwizzle::kNone, TensorSwizzle::k32, TensorSwizzle::k64, TensorSwizzle::k128}) {
      const uint32_t row = swizzle == TensorSwizzle::kNone ? 128 : 16u << uint32_t(swizzle);
      const TensorMapSpec spec{.type = type, .rank = 2, .dims = {48, 40}, .strides = {256 * BytesOf(type) / 4}, .box = {row / BytesOf(type), 16}, .swizzle = swizzle};
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
  // Rows narrower than the swizzle's span.
  AddLoad(forms, {.type = kU16, .rank = 2, .dims = {64, 64}, .box = {16, 16}, .swizzle = TensorSwizzle::k128}, 0);
  for (const TensorType type : {kF16, kBF16, kF32}) {
    AddLoad(forms, {.type = type, .rank = 2, .dims = {40, 40}, .box = {32, 16}, .fill = TensorFill::kNan}, 30);
  }
  AddReductions(forms);
}

}  // namespace kiln::emulator::conformance
