// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/wgmma.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "compiler/emulator/abi.h"
#include "compiler/emulator/runtime/aligned_sum.h"
#include "compiler/emulator/runtime/check.h"
#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/number.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {
namespace {

using ir::DType;

// PTX ISA, "Matrix Descriptor Format": bits 0–13 the start address, 16–29 the leading and 32–45 the stride dimension byte offset,
// each in units of 16 bytes; 62–63 the swizzle.
struct Descriptor {
  uint32_t start, leading, stride, width;  // bytes; width: of the swizzle's rows, 16 for none
  explicit Descriptor(uint64_t bits)
      : start(uint32_t(bits & 0x3fff) << 4), leading(uint32_t(bits >> 16 & 0x3fff) << 4), stride(uint32_t(bits >> 32 & 0x3fff) << 4) {
    constexpr uint32_t kWidths[] = {16, 128, 64, 32};
    width = kWidths[bits >> 62];
  }

  // "Strides": canonical layouts. `k_bytes` counts bytes where k is contiguous; by rows, `row_bytes` counts those of the row index.
  uint32_t AlongK(uint32_t row, uint32_t k_bytes) const {
    const uint32_t outer = width == 16 ? k_bytes / 16 * leading + k_bytes % 16 : k_bytes;
    return row % 8 * width + row / 8 * stride + outer;
  }
  uint32_t AlongRows(uint32_t row_bytes, uint32_t k) const {
    const uint32_t column = row_bytes / width, inside = row_bytes % width;
    if (width == 16) return column * stride + inside + k % 8 * 16 + k / 8 * leading;
    return column * leading + inside + k % 8 * width + k / 8 * stride;
  }
  // Bits 4… of the address are changed by bits 7…
  uint32_t Swizzled(uint32_t address) const { return address ^ ((address >> 7 & (width / 16 - 1)) << 4); }
};

struct Operand {
  Descriptor descriptor;
  DType type;
  bool by_rows;
  uint32_t rows;
};

class Product {
 public:
  Product(Block& block, uint32_t first, const WgmmaStep& step)
      : block_(block), first_(first), step_(step), form_(MatrixForm::Unpack(step.form)), n_(form_.n * 8u), k_(form_.k) {}

  // The threads have one view after a barrier; each view that one of them has must know what the operands' writers did.
  void Check() {
    std::vector<View> views;
    for (uint32_t t = first_; t < first_ + kGroupThreads; ++t) {
      const View& view = block_.ThreadAt(t).view;
      const auto same = [&](const View& v) { return v.seen == view.seen && v.fenced == view.fenced; };
      if (std::ranges::none_of(views, same)) views.push_back(view);
    }
    const WgmmaGroups& products = block_.group().products;
    const AsyncAccess access{.agent = products.agent, .time = products.number, .views = views, .first_thread = first_, .location = step_.location};
    const auto check = [&](uint32_t, uint32_t, uint32_t offset, uint32_t bytes) { CheckAsyncShared(block_, access, offset, bytes, Touch::kRead); };
    if ((step_.flags & kAInRegisters) == 0) ForEachElement(A(), check);
    ForEachElement(B(), check);
  }

  void Run(uint32_t accumulator) {
    const std::vector<float> a = (step_.flags & kAInRegisters) != 0 ? FromRegisters() : FromShared(A(), {.row = k_, .k = 1});
    const std::vector<float> b = FromShared(B(), {.row = 1, .k = n_});
    if (DType(form_.c) == DType::kI32) return RunIntegers(accumulator, a, b);
    std::vector<float> c(64 * n_);
    ForEachResult(accumulator, [&](uint32_t row, uint32_t column, uint32_t& word) { c[row * n_ + column] = std::bit_cast<float>(word); });
    AddAligned(ir::Bits(DType(form_.a)) == 8 ? kFloat8Adder : kFloatAdder, a, b, c, n_, k_);
    ForEachResult(accumulator, [&](uint32_t row, uint32_t column, uint32_t& word) { word = std::bit_cast<uint32_t>(c[row * n_ + column]); });
  }

 private:
  struct Strides {
    uint32_t row, k;
  };

  void RunIntegers(uint32_t accumulator, const std::vector<float>& a, const std::vector<float>& b) {
    ForEachResult(accumulator, [&](uint32_t row, uint32_t column, uint32_t& word) {
      for (uint32_t k = 0; k < k_; ++k) word += uint32_t(int32_t(a[row * k_ + k]) * int32_t(b[k * n_ + column]));
    });
  }

  // "Register Fragments": warp w has rows 16w …; within them as mma.m16n8's C, 8 columns after another. visit(row, column, word)
  template <typename Visit>
  void ForEachResult(uint32_t accumulator, Visit&& visit) {
    for (uint32_t t = 0; t < kGroupThreads; ++t) {
      std::vector<uint32_t>& c = std::ranges::find(block_.ThreadAt(first_ + t).accumulators, accumulator, &Accumulator::id)->words;
      const uint32_t lane = t % 32;
      for (uint32_t i = 0; i < c.size(); ++i) visit(t / 32 * 16 + lane / 4 + i / 2 % 2 * 8, i / 4 * 8 + lane % 4 * 2 + i % 2, c[i]);
    }
  }

  static float Value(DType type, uint32_t bits) {
    switch (type) {
      case DType::kI8: return float(int8_t(bits));
      case DType::kU8: return float(uint8_t(bits));
      case DType::kTF32: return std::bit_cast<float>(bits & ~0x1fffu);  // the low bits are ignored
      default: return ValuesOf(type)[bits];
    }
  }

  Operand A() const { return {Descriptor(step_.a), DType(form_.a), (step_.flags & kARows) != 0, 64}; }
  Operand B() const { return {Descriptor(step_.b), DType(form_.b), (step_.flags & kBRows) != 0, n_}; }

  // visit(row, k, byte of shared memory, bytes)
  template <typename Visit>
  void ForEachElement(const Operand& operand, Visit&& visit) {
    const uint32_t bytes = uint32_t(ir::Bits(operand.type)) / 8;
    const auto base = uint32_t(reinterpret_cast<uintptr_t>(block_.shared()));
    const Descriptor& d = operand.descriptor;
    for (uint32_t row = 0; row < operand.rows; ++row) {
      for (uint32_t k = 0; k < k_; ++k) {
        const uint32_t linear = operand.by_rows ? d.AlongRows(row * bytes, k) : d.AlongK(row, k * bytes);
        // Descriptors hold 18 bits of the address.
        const uint32_t offset = (d.Swizzled(d.start + linear) - base) & 0x3ffff;
        if (offset + bytes > block_.grid().shared_bytes) {
          NamedPlace at = BeyondPlace(block_, offset);
          block_.Fault(FindingKind::kOutOfBounds, {first_, step_.location}, "wgmma of threads " + std::to_string(first_) + "-" +
                       std::to_string(first_ + kGroupThreads - 1) + " reads " + at.text, std::move(at.place));
        }
        visit(row, k, offset, bytes);
      }
    }
  }

  std::vector<float> FromShared(const Operand& operand, const Strides& strides) {
    std::vector<float> values(operand.rows * k_);
    ForEachElement(operand, [&](uint32_t row, uint32_t k, uint32_t offset, uint32_t bytes) {
      uint32_t bits = 0;
      std::memcpy(&bits, block_.shared() + offset, bytes);
      values[row * strides.row + k * strides.k] = Value(operand.type, bits);
    });
    return values;
  }

  // Of each thread as mma.m16n8k16's A, in the rows of its warp.
  std::vector<float> FromRegisters() {
    const DType type = DType(form_.a);
    const uint32_t bits = uint32_t(ir::Bits(type)), each = 32 / bits;
    std::vector<float> values(64 * k_);
    for (uint32_t t = 0; t < kGroupThreads; ++t) {
      for (uint32_t i = 0; i < 4 * each; ++i) {
        const uint32_t lane = t % 32, word = i / each, row = t / 32 * 16 + lane / 4 + word % 2 * 8;
        const uint32_t k = lane % 4 * each + i % each + word / 2 * 4 * each;
        const uint32_t value = step_.a_words[4 * t + word];
        values[row * k_ + k] = Value(type, bits == 32 ? value : value >> (i % each * bits) & ((1u << bits) - 1));
      }
    }
    return values;
  }

  Block& block_;
  const uint32_t first_;
  const WgmmaStep& step_;
  const MatrixForm form_;
  const uint32_t n_, k_;
};

}  // namespace

void CheckWgmma(Block& block, uint32_t first, const WgmmaStep& step) {
  if (block.shadow() != nullptr) Product(block, first, step).Check();
}

void RunWgmma(Block& block, uint32_t first, const WgmmaGroup& group, const WgmmaStep& step) {
  Product(block, first, step).Run(group.accumulator);
}

}  // namespace kiln::emulator
