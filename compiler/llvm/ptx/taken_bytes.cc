// SPDX-License-Identifier: Apache-2.0
#include "compiler/llvm/ptx/taken_bytes.h"

#include <fmt/format.h>

#include <charconv>
#include <optional>
#include <utility>

#include "compiler/llvm/ptx/text.h"

namespace kiln::llvm_ir {
namespace {

// The bytes that a prmt takes of a register, as a mask, if it fills the upper half of its word with zeros. Of its operands, `%r1, 0, 0x7771U` or
// `0, %r1, 0x3335U`, a hexadecimal digit of the third chooses each byte, the first operand's by 0 to 3.
std::optional<uint32_t> TakenBytes(std::string_view operands) {
  const size_t first = operands.find(", "), second = operands.find(", 0x", first + 1);
  if (first == std::string_view::npos || second == std::string_view::npos) return std::nullopt;
  const bool zero_second = operands.substr(first + 2, second - first - 2) == "0", zero_first = operands.substr(0, first) == "0";
  if (zero_first == zero_second) return std::nullopt;
  uint32_t choice = 0, mask = 0;
  const std::string_view digits = operands.substr(second + 4);
  if (std::from_chars(digits.data(), digits.data() + digits.size(), choice, 16).ec != std::errc()) return std::nullopt;
  for (int byte = 0; byte < 4; ++byte) {
    const bool of_second = (choice >> 4 * byte & 4) != 0;
    if (of_second != zero_second) mask |= 255u << 8 * byte;
  }
  return mask >> 16 == 0 ? std::optional(mask) : std::nullopt;
}

// What packs bytes or halves of two words.
bool Packs(std::string_view operands) { return operands.ends_with(", 0x3340U") || operands.ends_with(", 0x5410U"); }

// A prmt whose result is masked, or whose selector ptxas does not know; another statement: nothing.
std::optional<std::string> Hidden(const PtxStatement& statement) {
  const size_t choice = statement.last.rfind(", 0x");
  if (statement.name != "prmt.b32" || choice == std::string_view::npos) return std::nullopt;
  if (const auto mask = TakenBytes(statement.last))
    return fmt::format("{{ .reg .b32 bytes; prmt.b32 bytes, {}; and.b32 {}, bytes, {}; }}", statement.last, statement.first, *mask);
  if (Packs(statement.last)) return std::nullopt;
  return fmt::format("{{ .reg .b32 choice; add.s32 choice, zero{}; prmt.b32 {}, {}, choice; }}", statement.last.substr(choice), statement.first,
                     statement.last.substr(0, choice));
}

std::string WithHiddenBytes(std::string_view function) {
  std::string result;
  bool chooses = false;
  ForEachLine(function, [&](std::string_view line) {
    const std::optional<std::string> hidden = Hidden(ParsedPtx(line));
    result += hidden ? WithStatement(line, *hidden) : line;
    chooses |= hidden && hidden->contains("choice");
  });
  return chooses ? WithUnknownZero(std::move(result)) : result;
}

}  // namespace

std::string WithoutTakenBytes(std::string_view ptx) { return WithFunctions(ptx, WithHiddenBytes); }

}  // namespace kiln::llvm_ir
