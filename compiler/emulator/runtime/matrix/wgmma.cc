// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/matrix/wgmma.h"

#include <algorithm>
#include <bit>
#include <cstring>

#include "compiler/emulator/abi.h"
#include "compiler/emulator/runtime/check/check.h"
#include "compiler/emulator/runtime/gang.h"
#include "compiler/emulator/runtime/matrix/aligned_sum.h"
#include "compiler/emulator/runtime/matrix/number.h"
#include "compiler/emulator/runtime/matrix/sparse.h"
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
  uint32_t rows, k;
};

// What an element's bits mean.
struct Reader {
  DType type;
  const float* values;  // by the bits, where the type is a float of less than 32
  explicit Reader(DType t) : type(t), values(ir::IsFloat(t) && ir::Bits(t) < 32 ? ValuesOf(t) : nullptr) {}

  float operator()(uint32_t bits) const {
    if (values != nullptr) return values[bits];
    if (type == DType::kTF32) return std::bit_cast<float>(bits & ~0x1fffu);  // the low bits are ignored
    return type == DType::kI8 ? float(int8_t(bits)) : float(uint8_t(bits));
  }
};

// "Register Fragments": warp w has rows 16w …; within them as mma.m16n8's C, 8 columns after another. visit(row, column, word)
template <typename Visit>
void ForEachResult(Block& block, uint32_t first, uint32_t accumulator, Visit&& visit) {
  for (uint32_t t = 0; t < kGroupThreads; ++t) {
    std::vector<uint32_t>& c = std::ranges::find(block.ThreadAt(first + t).accumulators, accumulator, &Accumulator::id)->words;
    const uint32_t row = t / 32 * 16 + t % 32 / 4, column = t % 4 * 2;
    for (uint32_t i = 0; i < c.size(); ++i) visit(row + i / 2 % 2 * 8, i / 4 * 8 + column + i % 2, c[i]);
  }
}

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
    const auto check = [&](uint32_t, uint32_t, uint32_t offset) { CheckAsyncShared(block_, access, offset, kPiece, Touch::kRead); };
    if ((step_.flags & kAInRegisters) == 0) ForEachPiece(A(), check);
    ForEachPiece(B(), check);
  }

  // `c`: rows of n, words as they lie in registers.
  void Run(std::vector<float>& c) {
    std::vector<float> a = (step_.flags & kAInRegisters) != 0 ? FromRegisters() : FromShared(A(), {.row = A().k, .k = 1});
    const std::vector<float> b = FromShared(B(), {.row = 1, .k = n_});
    if (form_.IsSparse()) a = Dense(a);
    if (DType(form_.c) == DType::kI32) return AddIntegers(a, b, c);
    AddAligned(ir::Bits(DType(form_.a)) == 8 ? kFloat8Adder : kFloatAdder, a, b, c, n_, k_);
  }

 private:
  static constexpr uint32_t kPiece = 16;
  struct Strides {
    uint32_t row, k;
  };

  void AddIntegers(const std::vector<float>& a, const std::vector<float>& b, std::vector<float>& c) const {
    for (uint32_t i = 0; i < c.size(); ++i) {
      auto word = std::bit_cast<uint32_t>(c[i]);
      for (uint32_t k = 0; k < k_; ++k) word += uint32_t(int32_t(a[i / n_ * k_ + k]) * int32_t(b[k * n_ + i % n_]));
      c[i] = std::bit_cast<float>(word);
    }
  }

  Operand A() const { return {Descriptor(step_.a), DType(form_.a), (step_.flags & kARows) != 0, 64, uint32_t(form_.KeptK())}; }
  Operand B() const { return {Descriptor(step_.b), DType(form_.b), (step_.flags & kBRows) != 0, n_, k_}; }

  std::vector<float> Dense(const std::vector<float>& kept) const {
    std::vector<float> dense;
    std::string problem = Spread(form_, 64, kept, step_.metadata, dense);
    if (!problem.empty()) block_.Fault(FindingKind::kOperands, step_.location, "wgmma with " + problem);
    return dense;
  }

  // Neighbours of 16 bytes stay together in every layout. visit(row, k, byte of shared memory) of the first
  template <typename Visit>
  void ForEachPiece(const Operand& operand, Visit&& visit) {
    const uint32_t each = kPiece * 8 / uint32_t(ir::Bits(operand.type));
    const uint32_t rows = operand.by_rows ? each : 1, ks = operand.by_rows ? 1 : each;
    for (uint32_t row = 0; row < operand.rows; row += rows) {
      for (uint32_t k = 0; k < operand.k; k += ks) visit(row, k, OffsetOf(operand, row, k));
    }
  }

  // The byte of shared memory where a piece lies.
  uint32_t OffsetOf(const Operand& operand, uint32_t row, uint32_t k) {
    const uint32_t bytes = uint32_t(ir::Bits(operand.type)) / 8;
    const auto base = uint32_t(reinterpret_cast<uintptr_t>(block_.shared()));
    const Descriptor& d = operand.descriptor;
    const uint32_t linear = operand.by_rows ? d.AlongRows(row * bytes, k) : d.AlongK(row, k * bytes);
    // Descriptors hold 18 bits of the address.
    const uint32_t offset = (d.Swizzled(d.start + linear) - base) & 0x3ffff;
    if (offset + kPiece > block_.grid().shared_bytes) {
      NamedPlace at = BeyondPlace(block_, offset);
      block_.Fault(FindingKind::kOutOfBounds, {first_, step_.location},
                   "wgmma of threads " + std::to_string(first_) + "-" + std::to_string(first_ + kGroupThreads - 1) + " reads " + at.text,
                   std::move(at.place));
    }
    return offset;
  }

  std::vector<float> FromShared(const Operand& operand, const Strides& strides) {
    std::vector<float> values(operand.rows * operand.k);
    const uint32_t bytes = uint32_t(ir::Bits(operand.type)) / 8, step = operand.by_rows ? strides.row : strides.k;
    const Reader value(operand.type);
    ForEachPiece(operand, [&](uint32_t row, uint32_t k, uint32_t offset) {
      const std::byte* from = block_.shared() + offset;
      float* to = &values[row * strides.row + k * strides.k];
      for (uint32_t i = 0; i < kPiece / bytes; ++i) {
        uint32_t bits = 0;
        std::memcpy(&bits, from + i * bytes, bytes);
        to[i * step] = value(bits);
      }
    });
    return values;
  }

  // The elements of A that each thread holds, laid out as for mma.m16n8k16 in the rows of its warp.
  std::vector<float> FromRegisters() {
    const Reader value{DType(form_.a)};
    const uint32_t bits = uint32_t(ir::Bits(value.type)), each = 32 / bits;
    const uint32_t columns = A().k;
    std::vector<float> values(64 * columns);
    for (uint32_t t = 0; t < kGroupThreads; ++t) {
      for (uint32_t i = 0; i < 4 * each; ++i) {
        const uint32_t lane = t % 32, word = i / each, row = t / 32 * 16 + lane / 4 + word % 2 * 8;
        const uint32_t k = lane % 4 * each + i % each + word / 2 * 4 * each;
        const uint32_t held = step_.a_words[4 * t + word];
        values[row * columns + k] = value(bits == 32 ? held : held >> (i % each * bits) & ((1u << bits) - 1));
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

void RunWgmma(Block& block, uint32_t first, uint32_t accumulator, std::span<const WgmmaStep> steps) {
  if (steps.empty()) return;
  const uint32_t n = MatrixForm::Unpack(steps[0].form).n * 8u;
  std::vector<float> c(64 * n);
  ForEachResult(block, first, accumulator, [&](uint32_t row, uint32_t column, uint32_t word) { c[row * n + column] = std::bit_cast<float>(word); });
  for (const WgmmaStep& step : steps) Product(block, first, step).Run(c);
  ForEachResult(block, first, accumulator,
                [&](uint32_t row, uint32_t column, uint32_t& word) { word = std::bit_cast<uint32_t>(c[row * n + column]); });
}

}  // namespace kiln::emulator
