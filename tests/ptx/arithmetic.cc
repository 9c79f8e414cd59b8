// SPDX-License-Identifier: Apache-2.0
//
// PTX ISA, "Integer Arithmetic Instructions" to "Logic and Shift Instructions", and setp, selp, mov.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>

#include "tests/ptx/instructions.h"
#include "tests/ptx/machine.h"
#include "tests/ptx/numbers.h"

namespace kiln::ptx {
namespace {

template <typename T>
T Get(Thread& t, const Instruction& i, size_t operand) {
  return FromBits<T>(t.Read(i.operands[operand]));
}

// The value of a small float, or the number itself.
template <typename T>
auto Value(T v) {
  if constexpr (kIsSmall<T>) {
    return v.value;
  } else {
    return v;
  }
}
template <typename T, typename V>
T As(V value) {
  if constexpr (kIsSmall<T>) {
    return T{double(value)};
  } else {
    return T(value);
  }
}
template <typename T>
inline constexpr bool kIsFloat = kIsSmall<T> || std::is_floating_point_v<T>;

// .ftz: subnormals of f32 are zeros.
template <typename T>
T Flushed(T v, bool ftz) {
  if constexpr (std::is_same_v<T, float>) {
    if (ftz && std::fpclassify(v) == FP_SUBNORMAL) return std::copysign(0.0f, v);
  }
  return v;
}

enum Modifier : uint32_t { kFlush = 1, kSaturate = 2, kRelu = 4, kKeepNan = 8, kHigh = 16, kWide = 32 };

constexpr std::string_view kWithModifiers[] = {"add", "sub", "mul", "mad", "fma", "div",  "rem", "min",  "max",   "neg",
                                               "abs", "ex2", "lg2", "sin", "cos", "tanh", "rcp", "sqrt", "rsqrt", "copysign"};

uint32_t ModifiersOf(const Instruction& i) {
  uint32_t modifiers = 0;
  for (size_t w = 1; w < i.words.size(); ++w) {
    const std::string& word = i.words[w];
    if (word == "ftz") modifiers |= kFlush;
    if (word == "sat") modifiers |= kSaturate;
    if (word == "relu") modifiers |= kRelu;
    if (word == "NaN") modifiers |= kKeepNan;
    if (word == "hi") modifiers |= kHigh;
    if (word == "wide") modifiers |= kWide;
    if (word == "rz" || word == "rm" || word == "rp" || word == "xorsign" || word == "cc") throw Refusal("unknown modifier ." + word);
  }
  return modifiers;
}

template <typename T, typename F>
void Compute(Thread& t, const Instruction& i, F f) {
  const bool ftz = (i.number & kFlush) != 0;
  const auto get = [&](size_t o) { return Value(Flushed(Get<T>(t, i, o), ftz)); };
  using V = decltype(get(1));
  V v{};
  if constexpr (std::is_invocable_v<F, V, V, V>) {
    v = f(get(1), get(2), get(3));
  } else if constexpr (std::is_invocable_v<F, V, V>) {
    v = f(get(1), get(2));
  } else {
    v = f(get(1));
  }
  if constexpr (kIsFloat<T>) {
    if ((i.number & kSaturate) != 0) v = v != v ? V(0) : std::clamp(v, V(0), V(1));
  }
  if ((i.number & kRelu) != 0) v = v > V(0) ? v : V(0);
  t.Write(i.operands[0], ToBits(Flushed(As<T>(v), ftz)));
}

// Each half of a packed register for itself.
template <typename T, typename F>
void ComputePacked(Thread& t, const Instruction& i, F f) {
  uint64_t result = 0;
  for (int half = 0; half < 2; ++half) {
    const auto get = [&](size_t o) { return FromBits<T>(t.Read(i.operands[o]) >> (16 * half)).value; };
    double v = 0;
    if constexpr (std::is_invocable_v<F, double, double, double>) {
      v = f(get(1), get(2), get(3));
    } else if constexpr (std::is_invocable_v<F, double, double>) {
      v = f(get(1), get(2));
    } else {
      v = f(get(1));
    }
    if ((i.number & kRelu) != 0) v = v > 0 ? v : 0;
    result |= ToBits(T{v}) << (16 * half);
  }
  t.Write(i.operands[0], result);
}

struct Add {
  template <typename V>
  V operator()(V a, V b) const {
    if constexpr (std::is_integral_v<V>) {
      return V(std::make_unsigned_t<V>(a) + std::make_unsigned_t<V>(b));
    } else {
      return a + b;
    }
  }
};
struct Subtract {
  template <typename V>
  V operator()(V a, V b) const {
    if constexpr (std::is_integral_v<V>) {
      return V(std::make_unsigned_t<V>(a) - std::make_unsigned_t<V>(b));
    } else {
      return a - b;
    }
  }
};
struct Multiply {
  template <typename V>
  V operator()(V a, V b) const {
    if constexpr (std::is_integral_v<V>) {
      return V(uint64_t(a) * uint64_t(b));
    } else {
      return a * b;
    }
  }
};
struct MultiplyAdd {
  template <typename V>
  V operator()(V a, V b, V c) const {
    if constexpr (std::is_integral_v<V>) {
      return V(uint64_t(a) * uint64_t(b) + uint64_t(c));
    } else {
      return std::fma(a, b, c);
    }
  }
};
// For zero divisors the ISA leaves the result open.
struct Divide {
  template <typename V>
  V operator()(V a, V b) const {
    if constexpr (std::is_integral_v<V>) {
      if (b == 0) return V(-1);
      if constexpr (std::is_signed_v<V>) {
        if (b == V(-1)) return Subtract()(V(0), a);
      }
    }
    return V(a / b);
  }
};
struct Remainder {
  template <typename V>
  V operator()(V a, V b) const {
    if (b == 0) return a;
    if constexpr (std::is_signed_v<V>) {
      if (b == V(-1)) return 0;
    }
    return V(a % b);
  }
};
// −0 is smaller than 0. Of a NaN and a number, the number.
struct Minimum {
  template <typename V>
  V operator()(V a, V b) const {
    if constexpr (std::is_floating_point_v<V>) {
      if (a != a) return b;
      if (b != b) return a;
      if (a == b) return std::signbit(a) ? a : b;
    }
    return a < b ? a : b;
  }
};
struct Maximum {
  template <typename V>
  V operator()(V a, V b) const {
    if constexpr (std::is_floating_point_v<V>) {
      if (a != a) return b;
      if (b != b) return a;
      if (a == b) return std::signbit(a) ? b : a;
    }
    return a > b ? a : b;
  }
};
template <typename Of>
struct KeepNan {
  template <typename V>
  V operator()(V a, V b) const {
    return a != a ? a : b != b ? b : Of()(a, b);
  }
};
struct Negative {
  template <typename V>
  V operator()(V a) const {
    if constexpr (std::is_integral_v<V>) {
      return Subtract()(V(0), a);
    } else {
      return -a;
    }
  }
};
struct Magnitude {
  template <typename V>
  V operator()(V a) const {
    if constexpr (std::is_integral_v<V>) {
      return a < 0 ? Subtract()(V(0), a) : a;
    } else {
      return std::fabs(a);
    }
  }
};

template <typename T, typename F>
Execute Of() {
  return [](Thread& t, const Instruction& i) { Compute<T>(t, i, F{}); };
}
template <typename F>
Execute OfInteger(Type type) {
  const bool is_signed = type.kind == 's';
  switch (type.bits) {
    case 8: return is_signed ? Of<int8_t, F>() : Of<uint8_t, F>();
    case 16: return is_signed ? Of<int16_t, F>() : Of<uint16_t, F>();
    case 32: return is_signed ? Of<int32_t, F>() : Of<uint32_t, F>();
    default: return is_signed ? Of<int64_t, F>() : Of<uint64_t, F>();
  }
}
template <typename F>
Execute OfFloat(Type type) {
  if (type.lanes == 2) {
    if (type.kind == 'B') return [](Thread& t, const Instruction& i) { ComputePacked<Bfloat>(t, i, F{}); };
    return [](Thread& t, const Instruction& i) { ComputePacked<Half>(t, i, F{}); };
  }
  if (type.kind == 'B') return Of<Bfloat, F>();
  return type.bits == 16 ? Of<Half, F>() : type.bits == 32 ? Of<float, F>() : Of<double, F>();
}
template <typename F>
Execute OfNumber(Type type) {
  if (type.kind == 'f' || type.kind == 'B') return OfFloat<F>(type);
  if (!type.IsInteger()) throw Refusal("unknown type");
  return OfInteger<F>(type);
}

// mul and mad of .hi and .wide.
template <typename T, typename W>
void LongProduct(Thread& t, const Instruction& i) {
  const W product = W(Get<T>(t, i, 1)) * W(Get<T>(t, i, 2));
  if ((i.number & kWide) != 0) {
    const W addend = i.operands.size() > 3 ? W(t.Read(i.operands[3])) : 0;
    return t.Write(i.operands[0], uint64_t(product) + uint64_t(addend));
  }
  const T addend = i.operands.size() > 3 ? Get<T>(t, i, 3) : T(0);
  t.Write(i.operands[0], uint64_t(T(product >> (sizeof(T) * 8))) + uint64_t(addend));
}
Execute LongProductOf(Type type) {
  const bool is_signed = type.kind == 's';
  switch (type.bits) {
    case 16: return is_signed ? LongProduct<int16_t, int32_t> : LongProduct<uint16_t, uint32_t>;
    case 32: return is_signed ? LongProduct<int32_t, int64_t> : LongProduct<uint32_t, uint64_t>;
    default: return is_signed ? LongProduct<int64_t, __int128> : LongProduct<uint64_t, unsigned __int128>;
  }
}

void Select(Thread& t, const Instruction& i) { t.Write(i.operands[0], t.Read(i.operands[(t.Read(i.operands[3]) & 1) != 0 ? 1 : 2])); }

enum Comparison : uint32_t { kEq, kNe, kLt, kLe, kGt, kGe, kNum, kNan, kOrNan = 16, kAnd = 32, kOr = 64, kXor = 128, kFlushed = 256 };

template <typename T>
void SetPredicate(Thread& t, const Instruction& i) {
  const bool ftz = (i.number & kFlushed) != 0;
  const auto a = Value(Flushed(Get<T>(t, i, 1), ftz)), b = Value(Flushed(Get<T>(t, i, 2), ftz));
  bool unordered = false, result = false;
  if constexpr (kIsFloat<T>) unordered = a != a || b != b;
  switch (i.number & 15) {
    case kEq: result = a == b; break;
    case kNe: result = a != b && !unordered; break;
    case kLt: result = a < b; break;
    case kLe: result = a <= b; break;
    case kGt: result = a > b; break;
    case kGe: result = a >= b; break;
    case kNum: result = !unordered; break;
    default: result = unordered;
  }
  if (unordered && (i.number & kOrNan) != 0) result = true;
  if ((i.number & (kAnd | kOr | kXor)) != 0) {
    const bool with = (t.Read(i.operands[3]) & 1) != 0;
    result = (i.number & kAnd) != 0 ? result && with : (i.number & kOr) != 0 ? result || with : result != with;
  }
  t.Write(i.operands[0], result);
}

Execute DecodeSetPredicate(Instruction& i) {
  static const std::map<std::string, uint32_t> kWords = {
      {"eq", kEq},           {"ne", kNe},           {"lt", kLt},           {"le", kLe},           {"gt", kGt},           {"ge", kGe},
      {"lo", kLt},           {"ls", kLe},           {"hi", kGt},           {"hs", kGe},           {"equ", kEq | kOrNan}, {"neu", kNe | kOrNan},
      {"ltu", kLt | kOrNan}, {"leu", kLe | kOrNan}, {"gtu", kGt | kOrNan}, {"geu", kGe | kOrNan}, {"num", kNum},         {"nan", kNan},
      {"and", kAnd},         {"or", kOr},           {"xor", kXor},         {"ftz", kFlushed}};
  i.number = 0;
  for (size_t w = 1; w + 1 < i.words.size(); ++w) {
    const auto it = kWords.find(i.words[w]);
    if (it == kWords.end()) throw Refusal("unknown comparison ." + i.words[w]);
    i.number |= it->second;
  }
  if (i.operands.size() != ((i.number & (kAnd | kOr | kXor)) != 0 ? 4u : 3u)) throw Refusal("setp with two results");
  if (i.type.lanes != 1) throw Refusal("setp of packed numbers");
  const bool is_signed = i.type.kind == 's';
  if (i.type.kind == 'B') return SetPredicate<Bfloat>;
  if (i.type.kind == 'f') return i.type.bits == 16 ? SetPredicate<Half> : i.type.bits == 32 ? SetPredicate<float> : SetPredicate<double>;
  switch (i.type.bits) {
    case 16: return is_signed ? SetPredicate<int16_t> : SetPredicate<uint16_t>;
    case 32: return is_signed ? SetPredicate<int32_t> : SetPredicate<uint32_t>;
    default: return is_signed ? SetPredicate<int64_t> : SetPredicate<uint64_t>;
  }
}

// To and from vectors: the first element is in the low bits.
void Move(Thread& t, const Instruction& i) {
  const Operand &to = i.operands[0], &from = i.operands[1];
  uint64_t value = 0;
  if (from.kind == Operand::Kind::kVector) {
    const uint32_t each = i.type.bits / uint32_t(from.parts.size());
    for (size_t p = from.parts.size(); p-- > 0;) {
      const uint64_t part = t.Read(from.parts[p]) & (each == 64 ? ~uint64_t{0} : (uint64_t{1} << each) - 1);
      value = each == 64 ? part : value << each | part;
    }
  } else {
    value = t.Read(from);
  }
  if (to.kind != Operand::Kind::kVector) return t.Write(to, value);
  const uint32_t each = i.type.bits / uint32_t(to.parts.size());
  for (size_t p = 0; p < to.parts.size(); ++p) t.Write(to.parts[p], value >> (each * p));
}

// dp4a.atype.btype: four products of bytes.
void DotProduct(Thread& t, const Instruction& i) {
  const auto a = uint32_t(t.Read(i.operands[1])), b = uint32_t(t.Read(i.operands[2]));
  auto sum = uint32_t(t.Read(i.operands[3]));
  const auto byte = [](uint32_t word, int n, const Type& type) {
    const auto bits = uint8_t(word >> (8 * n));
    return type.kind == 's' ? int32_t(int8_t(bits)) : int32_t(bits);
  };
  for (int n = 0; n < 4; ++n) sum += uint32_t(byte(a, n, i.from) * byte(b, n, i.type));
  t.Write(i.operands[0], sum);
}

// "Extended-Precision Integer Arithmetic Instructions": add{c}, sub{c}, mad{c}, with .cc and without. `number`: Modifier.
void ComputeExtended(Thread& t, const Instruction& i) {
  using Wide = unsigned __int128;
  const std::string& name = i.words[0];
  const uint32_t bits = i.type.bits;
  const Wide mask = (Wide{1} << bits) - 1, carry = name.ends_with('c') && t.carry ? 1 : 0;
  const auto get = [&](size_t o) { return Wide(t.Read(i.operands[o])) & mask; };
  Wide result = 0;
  if (name.starts_with("sub")) {
    result = get(1) - get(2) - carry;
  } else if (name.starts_with("add")) {
    result = get(1) + get(2) + carry;
  } else {
    const auto factor = [&](size_t o) { return i.type.kind == 's' ? Wide(__int128(SignExtended(uint64_t(get(o)), bits))) : get(o); };
    const Wide product = factor(1) * factor(2);
    result = ((i.number & kHigh) != 0 ? product >> bits & mask : product & mask) + get(3) + carry;
  }
  if (i.Has("cc")) t.carry = (result >> bits & 1) != 0;
  t.Write(i.operands[0], uint64_t(result));
}

// What the hardware approximates is computed as exactly as the host can.
template <typename F>
Execute Approximate(const Instruction& i) {
  if (i.type.kind == 'f' && i.type.bits == 64) return Of<double, F>();
  return OfFloat<F>(i.type);
}
#define KILN_PTX_FUNCTION(name, expression) \
  struct name {                             \
    template <typename V>                   \
    V operator()(V x) const {               \
      return V(expression);                 \
    }                                       \
  };
KILN_PTX_FUNCTION(Exp2, std::exp2(double(x)))
KILN_PTX_FUNCTION(Log2, std::log2(double(x)))
KILN_PTX_FUNCTION(Sine, std::sin(double(x)))
KILN_PTX_FUNCTION(Cosine, std::cos(double(x)))
KILN_PTX_FUNCTION(Tanh, std::tanh(double(x)))
KILN_PTX_FUNCTION(Reciprocal, V(1) / x)
KILN_PTX_FUNCTION(Root, std::sqrt(x))
KILN_PTX_FUNCTION(InverseRoot, 1 / std::sqrt(double(x)))
#undef KILN_PTX_FUNCTION
struct CopySign {
  template <typename V>
  V operator()(V sign, V magnitude) const {
    return std::copysign(magnitude, sign);
  }
};

Execute DecodeProduct(const Instruction& i, bool adds) {
  if ((i.number & (kHigh | kWide)) != 0 && i.type.IsInteger()) return LongProductOf(i.type);
  return adds ? OfNumber<MultiplyAdd>(i.type) : OfNumber<Multiply>(i.type);
}
template <typename F>
Execute DecodeExtreme(const Instruction& i) {
  if ((i.number & kKeepNan) != 0) return OfFloat<KeepNan<F>>(i.type);
  return OfNumber<F>(i.type);
}
template <typename F>
Execute Signless(const Instruction& i) {
  if (i.type.IsInteger()) return OfInteger<F>({'s', i.type.bits});
  return OfFloat<F>(i.type);
}

}  // namespace

Execute DecodeArithmetic(Instruction& i) {
  const std::string& name = i.words[0];
  if (name == "setp") return DecodeSetPredicate(i);
  if (name == "mov") return Move;
  if (name == "selp") return Select;
  if (name == "dp4a") return DotProduct;
  const bool takes_carry = name == "addc" || name == "subc" || name == "madc";
  if (takes_carry || ((name == "add" || name == "sub" || name == "mad") && i.Has("cc"))) {
    if (!i.type.IsInteger() || i.Has("wide")) throw Refusal("a carry of an unknown type");
    i.number = i.Has("hi") ? uint32_t{kHigh} : 0;
    return ComputeExtended;
  }
  if (std::ranges::find(kWithModifiers, name) == std::end(kWithModifiers)) return nullptr;
  i.number = ModifiersOf(i);
  if (name == "add") return OfNumber<Add>(i.type);
  if (name == "sub") return OfNumber<Subtract>(i.type);
  if (name == "mul") return DecodeProduct(i, false);
  if (name == "mad" || name == "fma") return DecodeProduct(i, true);
  if (name == "div") return OfNumber<Divide>(i.type);
  if (name == "rem") return OfInteger<Remainder>(i.type);
  if (name == "min") return DecodeExtreme<Minimum>(i);
  if (name == "max") return DecodeExtreme<Maximum>(i);
  if (name == "neg") return Signless<Negative>(i);
  if (name == "abs") return Signless<Magnitude>(i);
  if (name == "ex2") return Approximate<Exp2>(i);
  if (name == "lg2") return Approximate<Log2>(i);
  if (name == "sin") return Approximate<Sine>(i);
  if (name == "cos") return Approximate<Cosine>(i);
  if (name == "tanh") return Approximate<Tanh>(i);
  if (name == "rcp") return Approximate<Reciprocal>(i);
  if (name == "sqrt") return Approximate<Root>(i);
  if (name == "rsqrt") return Approximate<InverseRoot>(i);
  if (name == "copysign") return OfFloat<CopySign>(i.type);
  return nullptr;
}

}  // namespace kiln::ptx
