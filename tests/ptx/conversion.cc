// SPDX-License-Identifier: Apache-2.0
//
// PTX ISA, "Data Movement and Conversion Instructions: cvt".
#include <cfenv>
#include <cmath>
#include <limits>

#include "tests/ptx/instructions.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/numbers.h"

namespace kiln::ptx {
namespace {

enum Modifier : uint32_t { kToZero = 1, kDown = 2, kUp = 4, kToInteger = 8, kSaturates = 16, kRelu = 32, kFlush = 64, kNearest = 128, kAway = 256 };

bool IsFloat(Type type) { return !type.IsInteger(); }

// Exact: a long double has 64 bits of fraction.
long double Source(Type type, uint64_t bits) {
  if (type.kind == 's') return (long double)(type.bits == 64 ? int64_t(bits) : int64_t(bits << (64 - type.bits)) >> (64 - type.bits));
  if (type.IsInteger()) return (long double)(type.bits == 64 ? bits : bits & ((uint64_t{1} << type.bits) - 1));
  if (type.kind == 'f' && type.bits == 64) return FromBits<double>(bits);
  if (type.kind == 'f' && type.bits == 32) return FromBits<float>(bits);
  return Widen(FormatOf(type), uint32_t(bits) & ((1u << type.bits) - 1));
}

long double Rounded(long double value, uint32_t modifiers) {
  if ((modifiers & kToZero) != 0) return std::trunc(value);
  if ((modifiers & kDown) != 0) return std::floor(value);
  if ((modifiers & kUp) != 0) return std::ceil(value);
  const long double below = std::floor(value), rest = value - below;
  return rest > 0.5L || (rest == 0.5L && std::fmod(below, 2.0L) != 0) ? below + 1 : below;
}

uint64_t ToInteger(Type type, Type from, long double value, uint32_t modifiers) {
  if (std::isnan(value)) {
    const bool wide = from.bits == 64 || type.bits == 64;
    return wide ? uint64_t{1} << (type.bits - 1) : 0;
  }
  value = Rounded(value, modifiers);
  const long double beyond = std::ldexp(1.0L, type.bits - (type.kind == 's' ? 1 : 0));
  const long double most = beyond - 1, least = type.kind == 's' ? -beyond : 0;
  value = value > most ? most : value < least ? least : value;
  return type.kind == 's' ? uint64_t(int64_t(value)) : uint64_t(value);
}

uint64_t ToFloat(Type type, long double value, uint32_t modifiers) {
  if ((modifiers & kRelu) != 0 && !(value > 0)) value = std::isnan(value) ? value : 0;
  if ((modifiers & kToInteger) != 0) value = std::isfinite(value) ? std::copysign(Rounded(value, modifiers), value) : value;
  if (type.kind == 'f' && type.bits == 64) return ToBits(double(value));
  const bool to_zero = (modifiers & (kToZero | kToInteger)) == kToZero;
  const Rounding rounding = to_zero ? Rounding::kZero : (modifiers & kAway) != 0 ? Rounding::kNearestAway : Rounding::kNearest;
  uint64_t bits = Narrow(FormatOf(type), value, (modifiers & kSaturates) != 0, rounding);
  if (type.kind == 't') bits <<= 13;
  return bits;
}

uint64_t Converted(const Instruction& i, uint64_t bits) {
  const Type type = i.type.lanes == 2 ? Type{i.type.kind, i.type.bits} : i.type;
  const Type to = i.from.lanes == 2 ? Type{i.from.kind, i.from.bits} : i.from;  // of `cvt.TO.FROM`, Instruction's `from` is the first
  long double value = Source(type, bits);
  if ((i.number & kFlush) != 0 && type == Type{'f', 32} && std::fpclassify(float(value)) == FP_SUBNORMAL) value = std::copysign(0.0L, value);
  if (IsFloat(to)) {
    uint64_t result = ToFloat(to, value, i.number);
    if ((i.number & kFlush) != 0 && to == Type{'f', 32} && std::fpclassify(FromBits<float>(result)) == FP_SUBNORMAL) result &= 0x80000000;
    return result;
  }
  if (IsFloat(type)) return ToInteger(to, type, value, i.number);
  if ((i.number & kSaturates) != 0) return ToInteger(to, type, value, kToZero);
  // The low bits, extended as the result's type says.
  const uint64_t extended = type.kind == 's' ? uint64_t(int64_t(value)) : uint64_t(value);
  if (to.bits == 64) return extended;
  return to.kind == 's' ? uint64_t(int64_t(extended << (64 - to.bits)) >> (64 - to.bits)) : extended & ((uint64_t{1} << to.bits) - 1);
}

void Convert(Thread& t, const Instruction& i) { t.Write(i.operands[0], Converted(i, t.Read(i.operands[1]))); }

// cvt.….f16x2.f32 d, a, b: a becomes the upper half.
void ConvertTwo(Thread& t, const Instruction& i) {
  const uint64_t high = Converted(i, t.Read(i.operands[1])), low = Converted(i, t.Read(i.operands[2]));
  t.Write(i.operands[0], high << i.from.bits | low);
}

// Between packed types.
void ConvertPacked(Thread& t, const Instruction& i) {
  const uint64_t both = t.Read(i.operands[1]);
  t.Write(i.operands[0], Converted(i, both >> i.type.bits) << i.from.bits | Converted(i, both));
}

}  // namespace

Execute DecodeConversion(Instruction& i) {
  if (i.words[0] != "cvt") return nullptr;
  if (i.type.kind == 0 || i.from.kind == 0) throw Refusal("cvt between unknown types");
  static const std::map<std::string, uint32_t> kWords = {{"rn", kNearest},
                                                         {"rz", kToZero},
                                                         {"rni", kToInteger},
                                                         {"rzi", kToInteger | kToZero},
                                                         {"rmi", kToInteger | kDown},
                                                         {"rpi", kToInteger | kUp},
                                                         {"sat", kSaturates},
                                                         {"satfinite", kSaturates},
                                                         {"relu", kRelu},
                                                         {"ftz", kFlush},
                                                         {"rna", kAway}};
  i.number = 0;
  for (size_t w = 1; w < i.words.size(); ++w) {
    if (ParseType(i.words[w]).kind != 0) continue;
    const auto it = kWords.find(i.words[w]);
    if (it == kWords.end()) throw Refusal("unknown modifier ." + i.words[w]);
    i.number |= it->second;
  }
  if (i.operands.size() == 3) return ConvertTwo;
  return i.type.lanes == 2 ? ConvertPacked : Convert;
}

}  // namespace kiln::ptx
