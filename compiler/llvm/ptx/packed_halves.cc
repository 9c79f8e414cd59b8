// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/packed_halves.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_map>
#include <utility>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

// A conversion to two 8-bit floats.
bool ConvertsToBytes(std::string_view name) { return name.starts_with("cvt.") && (name.contains("e4m3x2.f") || name.contains("e5m2x2.f")); }

// A conversion of one value to f16 or bf16.
bool ConvertsToHalf(std::string_view name) { return name.starts_with("cvt.") && (name.contains(".f16.") || name.contains(".bf16.")); }

// The low halves of two words, for prmt: ptxas does not know that it is 0x5410.
constexpr std::string_view kSelector = ".reg .b32 lows; add.s32 lows, zero, 0x5410; ";

// What a register is to ptxas.
enum class Kind {
  kBytes,   // what ConvertsToBytes writes
  kHalf,    // a half of a register that no conversion to 8-bit floats makes
  kPacked,  // a word whose low half is two bytes of others
  kOther,   // the low half of a word, perhaps; or several of these
};

Kind KindOf(const PtxStatement& statement) {
  if (statement.name == "prmt.b32" && statement.last.ends_with(", 0x3340U")) return Kind::kPacked;
  if (ConvertsToBytes(statement.name)) return Kind::kBytes;
  return statement.name.starts_with("ld.") || statement.name.contains("f16") ? Kind::kHalf : Kind::kOther;
}

// One function, and what its registers are.
class Pairs {
 public:
  explicit Pairs(std::string_view text) {
    ForEachLine(text, [&](std::string_view line) {
      const PtxStatement statement = ParsedPtx(line);
      // What another rewrite has put into braces may write any of its registers.
      const bool braces = line.find_first_of('{') == line.find_first_not_of(" \t");
      ForEachRegister(line, [&](std::string_view name) {
        Value& value = values_[name];
        ++value.mentions;
        if (braces) value.kind = Kind::kOther;
      });
      if (statement.name.empty()) return;
      for (const std::string_view name : RegistersOf(statement.first)) {
        const auto value = values_.find(name);
        if (value == values_.end()) continue;
        value->second.kind = value->second.kind ? Kind::kOther : KindOf(statement);
        value->second.uniform = IsUniform(statement);
        if (ConvertsToBytes(statement.name)) value->second.of_uniform = TakesUniform(statement.last);
        if (statement.name == "cvt.u32.u16") value->second.half = statement.last;
        converts_ |= ConvertsToBytes(statement.name) || ConvertsToHalf(statement.name);
      }
    });
  }

  std::string Mended(std::string_view text) const {
    std::string result;
    ForEachLine(text, [&](std::string_view line) { result += Mend(line); });
    return result.contains(kSelector) ? WithUnknownZero(std::move(result)) : result;
  }

 private:
  struct Value {
    std::optional<Kind> kind;  // none before its first statement
    size_t mentions = 0;
    std::string_view half;    // of a word: what it extends
    bool uniform = false;     // a constant or a parameter, which ptxas keeps once for all lanes
    bool of_uniform = false;  // a conversion of one
  };

  static bool IsUniform(const PtxStatement& statement) {
    return statement.name.starts_with("ld.param.") ||
           (statement.name.starts_with("mov.") && statement.last.find_first_of("%{") == std::string_view::npos);
  }

  bool TakesUniform(std::string_view operands) const {
    bool takes = operands.contains("0f");
    ForEachRegister(operands, [&](std::string_view name) {
      const auto value = values_.find(name);
      takes |= value != values_.end() && value->second.uniform;
    });
    return takes;
  }

  // Whether ptxas packs {low, high} rightly.
  bool IsRight(std::string_view low, std::string_view high) const {
    const auto first = values_.find(low), second = values_.find(high);
    if (first == values_.end()) return true;  // a constant
    if (first->second.kind != Kind::kBytes) return first->second.kind == Kind::kHalf;
    if (second == values_.end() || !second->second.kind || second->second.kind == Kind::kOther || first->second.of_uniform) return false;
    return first->second.mentions == 2 && second->second.mentions == 2;  // where they are made, and here
  }

  // Whether ptxas packs the low half of this word rightly: it is packed itself, or two 8-bit floats that are used here alone.
  bool IsRight(std::string_view word) const {
    const auto value = values_.find(word);
    if (value == values_.end()) return false;
    if (value->second.kind == Kind::kPacked) return true;
    if (value->second.mentions != 2) return false;
    const auto half = values_.find(value->second.half);
    return half != values_.end() && half->second.kind == Kind::kBytes && half->second.mentions == 2 && !half->second.of_uniform;
  }

  // `prmt.b32 d, a, b, 0x5410U`, where ptxas must not know that it packs.
  std::optional<std::string> PackedWords(const PtxStatement& statement) const {
    constexpr std::string_view kLows = "0x5410U";
    if (statement.name != "prmt.b32" || !statement.last.ends_with(kLows)) return std::nullopt;
    const size_t first = statement.last.find(", "), second = statement.last.rfind(", ");
    if (IsRight(statement.last.substr(0, first)) && IsRight(statement.last.substr(first + 2, second - first - 2))) return std::nullopt;
    return fmt::format("{{ {}prmt.b32 {}, {}, lows; }}", kSelector, statement.first, statement.last.substr(0, second));
  }

  std::string Mend(std::string_view line) const {
    const PtxStatement statement = ParsedPtx(line);
    if (const auto words = PackedWords(statement)) return WithStatement(line, *words);
    if (!converts_) return std::string(line);
    const bool two = statement.name == "mov.b32" || statement.name.ends_with(".v2.b16");
    const bool four = statement.name == "mov.b64" || statement.name.ends_with(".v4.b16");
    const bool stores = statement.name.starts_with("st.");
    if ((!two && !four) || (!stores && !statement.name.starts_with("mov.")) || !statement.last.starts_with('{') || !statement.last.ends_with('}'))
      return std::string(line);
    const std::vector<std::string_view> halves = RegistersOf(statement.last);
    if (halves.size() != (two ? 2 : 4)) return std::string(line);  // a mov of two words
    std::string before;
    bool right = true, selects = false;
    for (size_t i = 0; i < halves.size(); i += 2) {
      const std::string_view low = halves[i], high = halves[i + 1];
      before += fmt::format(".reg .b32 low{0}, high{0}, pair{0}; ", i);
      if (IsRight(low, high)) {
        before += fmt::format("mov.b32 pair{}, {{{}, {}}}; ", i, low, high);
        continue;
      }
      right = false;
      before += fmt::format("{3}cvt.u32.u16 low{0}, {1}; cvt.u32.u16 high{0}, {2}; prmt.b32 pair{0}, low{0}, high{0}, lows; ", i, low, high,
                            selects ? "" : kSelector);
      selects = true;
    }
    if (right) return std::string(line);
    const std::string_view space = statement.name.substr(0, statement.name.size() - std::string_view(".v2.b16").size());
    std::string name(statement.name);
    if (stores) name = std::string(space) + (two ? ".b32" : ".v2.b32");
    return WithStatement(line, fmt::format("{{ {}{} {}, {}; }}", before, name, statement.first, two ? "pair0" : "{pair0, pair2}"));
  }

  std::unordered_map<std::string_view, Value> values_;
  bool converts_ = false;
};

}  // namespace

std::string WithoutSharedPairs(std::string_view ptx) {
  if (!ptx.contains("0x5410U") && !ptx.contains("f16.") && !ptx.contains("e4m3x2.f") && !ptx.contains("e5m2x2.f")) return std::string(ptx);
  return WithFunctions(ptx, [](std::string_view function) { return Pairs(function).Mended(function); });
}

}  // namespace kiln::llvm_ir
