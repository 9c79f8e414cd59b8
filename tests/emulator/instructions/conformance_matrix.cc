// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/instructions/conformance_kernel.h"

#include <span>

namespace kiln::emulator::conformance {
namespace {

using ir::DType;

// A word of metadata that names places of what a sparse A keeps: of the patterns, every one in turn, from one that a random word chooses.
llvm::Value* SomeMetadata(FormKernel& k, const target::MmaInstruction& row) {
  static constexpr uint32_t kPairs[] = {0b0100, 0b1000, 0b1100, 0b1001, 0b1101, 0b1110}, kHalves[] = {0b0100, 0b1110};
  const std::span<const uint32_t> patterns = ir::Bits(row.a) == 32 ? std::span<const uint32_t>(kHalves) : std::span<const uint32_t>(kPairs);
  llvm::Value *first = k.b.CreateURem(k.In(), k.I32(int(patterns.size()))), *word = nullptr;
  for (uint32_t turn = 0; turn < patterns.size(); ++turn) {
    uint32_t bits = 0;
    for (uint32_t i = 0; i < 8; ++i) bits |= patterns[(i + turn) % patterns.size()] << 4 * i;
    llvm::Value* these = k.b.getInt32(bits);
    word = word == nullptr ? these : k.b.CreateSelect(k.b.CreateICmpEQ(first, k.I32(int(turn))), these, word);
  }
  return word;
}

// With the last selector: that of the lanes which the first leaves out.
llvm_ir::SparseMetadata MetadataFor(FormKernel& k, const target::MmaInstruction& row) {
  if (!row.IsSparse()) return {};
  return {SomeMetadata(k, row), row.selectors - 1};
}

// Products of small integers are exact in whatever precision the unit sums. mma of reals in ±2 serves targets whose units differ.
void AddMma(std::vector<Form>& forms, const target::MmaInstruction& row, Content content) {
  forms.push_back({.name = std::string(row.name) + (content == Content::kReals ? " reals" : ""),
                   .build =
                       [&row, content](FormKernel& k) {
                         const auto words = [&](const ir::Layout& layout, DType type) {
                           std::vector<llvm::Value*> v;
                           for (int64_t i = 0; i < layout.Registers() * ir::Bits(type) / 32; ++i) v.push_back(k.In({type, content}));
                           return v;
                         };
                         const std::vector<llvm::Value*> a = words(row.a_layout, row.a), b = words(row.b_layout, row.b);
                         std::vector<llvm::Value*> c;
                         for (int64_t i = 0; i < row.c_layout.Registers(); ++i) c.push_back(k.Value(row.c, content));
                         for (llvm::Value* v : k.device.Mma(row, a, b, c, MetadataFor(k, row))) k.Out(v);
                       },
                   .result = row.c,
                   .rounds = content == Content::kReals});
}

// An operand in shared memory, as its descriptor says. Tiles are whole: rows along the strided dimension come in groups of 8.
struct Place {
  uint32_t swizzle = 0;  // bytes: 0, 32, 64, 128
  bool by_rows = false;
};

uint64_t DescriptorBits(const Place& place, uint32_t rows, uint32_t row_bytes_of_k) {
  constexpr uint64_t kModes[] = {0, 3, 2, 0, 1};  // by swizzle / 32
  uint32_t leading = 1, stride = 8 * place.swizzle;
  if (place.swizzle == 0) {
    // Core matrices of 128 bytes: along k two, then groups of rows; by rows, groups of rows first.
    leading = place.by_rows ? rows * 2 * 8 : 128;
    stride = place.by_rows ? 128 : row_bytes_of_k / 16 * 128;
  } else if (place.by_rows) {
    leading = 16 * place.swizzle;  // 16 of k
  }
  return uint64_t{leading >> 4} << 16 | uint64_t{stride >> 4} << 32 | kModes[place.swizzle / 32] << 62;
}

llvm::Value* Descriptor(FormKernel& k, uint32_t byte, uint64_t bits) {
  llvm::Value* address = k.b.CreatePtrToInt(k.SharedByte(byte), k.b.getInt64Ty());
  return k.b.CreateOr(k.b.CreateLShr(k.b.CreateAnd(address, k.b.getInt64(0x3ffff)), k.b.getInt64(4)), k.b.getInt64(bits));
}

// Whatever lies in shared memory is multiplied: both sides must read the same bytes as the same elements.
void AddGroup(std::vector<Form>& forms, const target::MmaInstruction& row, Place a, Place b, bool registers, Content content) {
  const auto k_bytes = [&row](int k) { return uint32_t(k * ir::Bits(row.a) / 8); };
  if (b.swizzle != 0 && !b.by_rows && k_bytes(row.k) > b.swizzle) return;  // an instruction's k lies in one panel
  std::string name = std::string(row.name) + (registers ? " a in registers" : " a " + std::to_string(a.swizzle) + (a.by_rows ? " by rows" : "")) +
                     ", b " + std::to_string(b.swizzle) + (b.by_rows ? " by rows" : "") + (content == Content::kReals ? " reals" : "");
  constexpr uint32_t kOfB = 16384, kShared = 65536;
  forms.push_back({.name = std::move(name),
                   .build =
                       [=, &row](FormKernel& k) {
                         k.FillShared(kShared, {row.a, content});
                         k.device.FenceAsyncProxy();
                         k.device.Barrier();
                         std::vector<llvm::Value*> words, c;
                         if (registers) {
                           for (int i = 0; i < 4; ++i) words.push_back(k.In({row.a, content}));
                         } else {
                           words.push_back(Descriptor(k, 0, DescriptorBits(a, 64, k_bytes(row.KeptK()))));
                         }
                         llvm::Value* of_b[] = {Descriptor(k, kOfB, DescriptorBits(b, uint32_t(row.n), k_bytes(row.k)))};
                         for (int64_t i = 0; i < row.c_layout.Registers(); ++i) c.push_back(k.Value(row.c, content));
                         const llvm_ir::SparseMetadata metadata[] = {MetadataFor(k, row)};
                         const auto started = k.device.MmaGroup(row, words, of_b, c, false, a.by_rows, b.by_rows, metadata);
                         for (llvm::Value* v : k.device.MmaWait(started, 0)) k.Out(v);
                       },
                   .result = row.c,
                   .threads = 128,
                   .shared_bytes = kShared});
}

void AddGroups(std::vector<Form>& forms, const target::MmaInstruction& row) {
  const bool wide = ir::Bits(row.a) == 16;
  AddGroup(forms, row, {}, {}, false, Content::kIntegers);
  if (row.n != 64) return;
  AddGroup(forms, row, {}, {}, true, Content::kIntegers);
  AddGroup(forms, row, {128}, {128}, false, Content::kIntegers);
  if (ir::IsFloat(row.a)) AddGroup(forms, row, {128}, {128}, false, Content::kReals);
  for (const uint32_t swizzle : {32u, 64u}) AddGroup(forms, row, {swizzle}, {swizzle}, false, Content::kIntegers);
  if (!wide) return;
  for (const uint32_t swizzle : {0u, 32u, 64u, 128u}) {
    AddGroup(forms, row, {swizzle, true}, {swizzle}, false, Content::kIntegers);
    AddGroup(forms, row, {swizzle}, {swizzle, true}, false, Content::kIntegers);
    AddGroup(forms, row, {swizzle, true}, {swizzle, true}, false, Content::kIntegers);
  }
}

}  // namespace

void AddMatrixForms(std::vector<Form>& forms) {
  for (const target::MmaInstruction& row : target::MmaInstructions(**target::Find("cuda:sm_90a"))) {
    if (!row.IsByGroup()) {
      AddMma(forms, row, Content::kIntegers);
      if (ir::IsFloat(row.c)) AddMma(forms, row, Content::kReals);
    } else if (!row.swapped && (row.n == 8 || row.n % 64 == 0)) {
      AddGroups(forms, row);
    }
  }
}

}  // namespace kiln::emulator::conformance
