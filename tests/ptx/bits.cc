// SPDX-License-Identifier: Apache-2.0
//
// PTX ISA, "Logic and Shift Instructions", and those of bits and bytes among "Integer Arithmetic Instructions" and "Data Movement".
#include <algorithm>
#include <bit>

#include "tests/ptx/instructions.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/numbers.h"

namespace kiln::ptx {
namespace {

struct And {
  uint64_t operator()(uint64_t a, uint64_t b) const { return a & b; }
};
struct Or {
  uint64_t operator()(uint64_t a, uint64_t b) const { return a | b; }
};
struct Xor {
  uint64_t operator()(uint64_t a, uint64_t b) const { return a ^ b; }
};
void Not(Thread& t, const Instruction& i) { t.Write(i.operands[0], ~t.Read(i.operands[1])); }

template <typename F>
Execute Bitwise() {
  return [](Thread& t, const Instruction& i) { t.Write(i.operands[0], F{}(t.Read(i.operands[1]), t.Read(i.operands[2]))); };
}

// Shifts by more than the width are by the width.
void ShiftLeft(Thread& t, const Instruction& i) {
  const auto by = uint32_t(t.Read(i.operands[2]));
  t.Write(i.operands[0], by >= i.type.bits ? 0 : t.Read(i.operands[1]) << by);
}
void ShiftRight(Thread& t, const Instruction& i) {
  const uint64_t value = t.Read(i.operands[1]);
  const uint32_t bits = i.type.bits, by = std::min(uint32_t(t.Read(i.operands[2])), bits);
  if (i.type.kind == 's') return t.Write(i.operands[0], uint64_t(SignExtended(value, bits) >> std::min(by, bits - 1)));
  t.Write(i.operands[0], by == bits ? 0 : (bits == 64 ? value : value & ((uint64_t{1} << bits) - 1)) >> by);
}
void FunnelShift(Thread& t, const Instruction& i) {
  const uint64_t both = t.Read(i.operands[2]) << 32 | (t.Read(i.operands[1]) & 0xffffffff);
  const auto given = uint32_t(t.Read(i.operands[3]));
  const uint32_t by = i.Has("wrap") ? given & 31 : std::min(given, 32u);
  t.Write(i.operands[0], i.Has("l") ? by == 0 ? both >> 32 : both >> (32 - by) : both >> by);
}

void Lop3(Thread& t, const Instruction& i) {
  const auto a = uint32_t(t.Read(i.operands[1])), b = uint32_t(t.Read(i.operands[2])), c = uint32_t(t.Read(i.operands[3]));
  const auto table = uint32_t(t.Read(i.operands[4]));
  uint32_t result = 0;
  for (uint32_t row = 0; row < 8; ++row) {
    if ((table >> row & 1) != 0) result |= ((row & 4) != 0 ? a : ~a) & ((row & 2) != 0 ? b : ~b) & ((row & 1) != 0 ? c : ~c);
  }
  t.Write(i.operands[0], result);
}

void Permute(Thread& t, const Instruction& i) {
  const uint64_t bytes = t.Read(i.operands[2]) << 32 | (t.Read(i.operands[1]) & 0xffffffff);
  const auto selection = uint32_t(t.Read(i.operands[3]));
  uint32_t result = 0;
  for (uint32_t b = 0; b < 4; ++b) {
    const uint32_t which = selection >> (4 * b) & 15;
    uint32_t byte = uint32_t(bytes >> (8 * (which & 7))) & 0xff;
    if ((which & 8) != 0) byte = (byte & 0x80) != 0 ? 0xff : 0;
    result |= byte << (8 * b);
  }
  t.Write(i.operands[0], result);
}

// Four bytes from one of the lower word's on.
void ExtractFour(Thread& t, const Instruction& i) {
  const uint64_t bytes = t.Read(i.operands[2]) << 32 | (t.Read(i.operands[1]) & 0xffffffff);
  t.Write(i.operands[0], uint32_t(bytes >> (8 * (t.Read(i.operands[3]) & 3))));
}

void ExtractField(Thread& t, const Instruction& i) {
  const uint32_t bits = i.type.bits, at = t.Read(i.operands[2]) & 0xff, count = t.Read(i.operands[3]) & 0xff;
  const uint64_t value = t.Read(i.operands[1]);
  const bool is_signed = i.type.kind == 's';
  const uint32_t sign_at = std::min(at + count - 1, bits - 1);
  const bool sign = is_signed && count != 0 && (value >> sign_at & 1) != 0;
  uint64_t result = 0;
  for (uint32_t b = 0; b < bits; ++b) {
    const bool bit = b < count && at + b < bits ? (value >> (at + b) & 1) != 0 : sign;
    result |= uint64_t(bit) << b;
  }
  t.Write(i.operands[0], result);
}
void InsertField(Thread& t, const Instruction& i) {
  const uint32_t bits = i.type.bits, at = t.Read(i.operands[3]) & 0xff, count = t.Read(i.operands[4]) & 0xff;
  const uint64_t field = t.Read(i.operands[1]);
  uint64_t result = t.Read(i.operands[2]);
  for (uint32_t b = 0; b < count && at + b < bits; ++b) result = (result & ~(uint64_t{1} << (at + b))) | (field >> b & 1) << (at + b);
  t.Write(i.operands[0], result);
}

void CountOnes(Thread& t, const Instruction& i) { t.Write(i.operands[0], uint64_t(std::popcount(t.Read(i.operands[1])))); }
void CountZeros(Thread& t, const Instruction& i) { t.Write(i.operands[0], uint64_t(std::countl_zero(t.Read(i.operands[1]))) - (64 - i.type.bits)); }
void Reverse(Thread& t, const Instruction& i) {
  uint64_t value = t.Read(i.operands[1]), result = 0;
  for (uint32_t b = 0; b < i.type.bits; ++b, value >>= 1) result = result << 1 | (value & 1);
  t.Write(i.operands[0], result);
}

}  // namespace

Execute DecodeBits(Instruction& i) {
  const std::string& name = i.words[0];
  if (name == "and") return Bitwise<And>();
  if (name == "or") return Bitwise<Or>();
  if (name == "xor") return Bitwise<Xor>();
  if (name == "not") return Not;
  if (name == "shl") return ShiftLeft;
  if (name == "shr") return ShiftRight;
  if (name == "shf") return FunnelShift;
  if (name == "lop3" && !i.Has("BoolOp")) return Lop3;
  if (name == "prmt" && i.words.size() == 2) return Permute;
  if (name == "prmt" && i.Has("f4e")) return ExtractFour;
  if (name == "bfe") return ExtractField;
  if (name == "bfi") return InsertField;
  if (name == "popc") return CountOnes;
  if (name == "clz") return CountZeros;
  if (name == "brev") return Reverse;
  return nullptr;
}

}  // namespace kiln::ptx
