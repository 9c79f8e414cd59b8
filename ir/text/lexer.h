// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

namespace kiln::ir {

struct Token {
  enum Kind : uint8_t {
    kEnd,
    kWord,    // for, f16, mma.m16n8k16.f32.f16
    kValue,   // %name; text is without the sign
    kSymbol,  // @name; text is without the sign
    kNumber,  // 12, 1.5, 2e-3; no sign
    kString,  // "a line", in which \ stands before a quote, itself, or x and two hexadecimal digits; text is without the quotes
    kPunct,   // one of the operators and brackets
    kBad,     // a character that starts nothing
  };
  Kind kind = kEnd;
  std::string_view text;
  uint32_t line = 1;
  uint32_t column = 1;
};

class Lexer {
 public:
  explicit Lexer(std::string_view text) : text_(text) {}
  Token Next();
  // Everything up to the parenthesis that closes one already taken, which is taken too; at the end of the text, all of
  // it.
  std::string_view UntilClosed();
  std::string_view Line(uint32_t number) const;

 private:
  void SkipBlank();
  Token Take(Token::Kind kind, size_t length);
  size_t WordLength(size_t from) const;
  size_t NumberLength() const;
  size_t PunctLength() const;
  size_t StringLength() const;  // quotes included; 0: it does not end in its line

  std::string_view text_;
  size_t at_ = 0;
  uint32_t line_ = 1;
  size_t line_start_ = 0;
  mutable std::vector<size_t> line_starts_;  // empty until Line is called
};

// What a string's text stands for, and the text that stands for it. nullopt: it has a \ before something else.
std::optional<std::string> Unescaped(std::string_view text);
std::string Escaped(std::string_view value);

// As an error message shows it.
std::string Describe(const Token& token);

}  // namespace kiln::ir
