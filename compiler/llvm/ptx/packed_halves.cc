// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/packed_halves.h"

#include <fmt/format.h>

#include <optional>
#include <unordered_map>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

// A conversion to two 8-bit floats.
bool ConvertsToBytes(std::string_view name) { return name.starts_with("cvt.") && (name.contains("e4m3x2.f") || name.contains("e5m2x2.f")); }

// A conversion of one value to f16 or bf16.
bool ConvertsToHalf(std::string_view name) { return name.starts_with("cvt.") && (name.contains(".f16.") || name.contains(".bf16.")); }

bool IsShortExtreme(std::string_view name) {
  return (name.starts_with("min.") || name.starts_with("max.")) && name.ends_with("16") && !name.contains('f');
}

// `min.s16 d, a, b;` of words.
std::string ExtremeOfWords(const PtxStatement& statement) {
  const std::string_view which = statement.name.substr(0, 3), sign = statement.name.substr(4, 1);
  const size_t comma = statement.last.find(',');
  return fmt::format(
      "{{ .reg .b16 short<2>; .reg .b32 word<2>; mov.b16 short0, {2}; mov.b16 short1{3}; cvt.{1}32.{1}16 word0, short0; "
      "cvt.{1}32.{1}16 word1, short1; {0}.{1}32 word0, word0, word1; cvt.u16.u32 {4}, word0; }}",
      which, sign, statement.last.substr(0, comma), statement.last.substr(comma), statement.first);
}

// What a register of 16 bits is to ptxas.
enum class Kind {
  kBytes,  // what ConvertsToBytes writes
  kHalf,   // a half of a register that no conversion to 8-bit floats makes
  kOther,  // the low half of a word, perhaps; or several of these
};

Kind KindOf(const PtxStatement& statement) {
  if (ConvertsToBytes(statement.name)) return Kind::kBytes;
  return statement.name.starts_with("ld.") || statement.name.contains("f16") ? Kind::kHalf : Kind::kOther;
}

// One function, and what its registers of 16 bits are.
class Pairs {
 public:
  explicit Pairs(std::string_view text) {
    ForEachLine(text, [&](std::string_view line) {
      const PtxStatement statement = ParsedPtx(line);
      for (size_t at = line.find("%rs"); at != std::string_view::npos; at = line.find("%rs", at + 1))
        ++halves_[line.substr(at, line.find_first_not_of("0123456789", at + 3) - at)].mentions;
      if (statement.name.empty()) return;
      for (const std::string_view name : RegistersOf(statement.first)) {
        const auto half = halves_.find(name);
        if (half == halves_.end()) continue;
        half->second.kind = half->second.kind ? Kind::kOther : KindOf(statement);
        converts_ |= ConvertsToBytes(statement.name) || ConvertsToHalf(statement.name);
        converts_to_bytes_ |= ConvertsToBytes(statement.name);
      }
    });
  }

  std::string Mended(std::string_view text) const {
    if (!converts_) return std::string(text);
    std::string result;
    ForEachLine(text, [&](std::string_view line) { result += Mend(line); });
    return result;
  }

 private:
  struct Half {
    std::optional<Kind> kind;  // none before its first statement
    size_t mentions = 0;
  };

  // Whether ptxas packs {low, high} rightly.
  bool IsRight(std::string_view low, std::string_view high) const {
    const auto first = halves_.find(low), second = halves_.find(high);
    if (first == halves_.end()) return true;  // a constant
    if (first->second.kind != Kind::kBytes) return first->second.kind == Kind::kHalf;
    if (second == halves_.end() || !second->second.kind || second->second.kind == Kind::kOther) return false;
    return first->second.mentions == 2 && second->second.mentions == 2;  // where they are made, and here
  }

  std::string Mend(std::string_view line) const {
    const PtxStatement statement = ParsedPtx(line);
    if (converts_to_bytes_ && IsShortExtreme(statement.name)) return WithStatement(line, ExtremeOfWords(statement));
    const bool two = statement.name == "mov.b32" || statement.name.ends_with(".v2.b16");
    const bool four = statement.name == "mov.b64" || statement.name.ends_with(".v4.b16");
    const bool stores = statement.name.starts_with("st.");
    if ((!two && !four) || (!stores && !statement.name.starts_with("mov.")) || !statement.last.starts_with('{') || !statement.last.ends_with('}'))
      return std::string(line);
    const std::vector<std::string_view> halves = RegistersOf(statement.last);
    if (halves.size() != (two ? 2 : 4)) return std::string(line);  // a mov of two words
    std::string before;
    bool right = true;
    for (size_t i = 0; i < halves.size(); i += 2) {
      const std::string_view low = halves[i], high = halves[i + 1];
      before += fmt::format(".reg .b32 low{0}, high{0}, pair{0}; ", i);
      if (IsRight(low, high)) {
        before += fmt::format("mov.b32 pair{}, {{{}, {}}}; ", i, low, high);
        continue;
      }
      right = false;
      before += fmt::format("cvt.u32.u16 low{0}, {1}; cvt.u32.u16 high{0}, {2}; shl.b32 high{0}, high{0}, 16; or.b32 pair{0}, low{0}, high{0}; ", i,
                            low, high);
    }
    if (right) return std::string(line);
    const std::string_view space = statement.name.substr(0, statement.name.size() - std::string_view(".v2.b16").size());
    std::string name(statement.name);
    if (stores) name = std::string(space) + (two ? ".b32" : ".v2.b32");
    return WithStatement(line, fmt::format("{{ {}{} {}, {}; }}", before, name, statement.first, two ? "pair0" : "{pair0, pair2}"));
  }

  std::unordered_map<std::string_view, Half> halves_;
  bool converts_ = false, converts_to_bytes_ = false;
};

}  // namespace

std::string WithoutSharedPairs(std::string_view ptx) {
  if (!ptx.contains("f16.") && !ptx.contains("e4m3x2.f") && !ptx.contains("e5m2x2.f")) return std::string(ptx);
  return WithFunctions(ptx, [](std::string_view function) { return Pairs(function).Mended(function); });
}

}  // namespace kiln::llvm_ir
