// SPDX-License-Identifier: Apache-2.0
#include "ir/text/lexer.h"

#include <fmt/format.h>

#include <algorithm>

namespace kiln::ir {
namespace {

// Not the C library's: its answers depend on the locale.
bool IsDigit(char c) { return c >= '0' && c <= '9'; }
bool IsLetter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || c == '_'; }

}  // namespace

void Lexer::SkipBlank() {
  while (at_ < text_.size()) {
    char c = text_[at_];
    if (c == '#') {
      at_ = std::min(text_.find('\n', at_), text_.size());
    } else if (c == '\n') {
      ++line_;
      line_start_ = ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r') {
      ++at_;
    } else {
      return;
    }
  }
}

Token Lexer::Take(Token::Kind kind, size_t length) {
  Token token{kind, text_.substr(at_, length), line_, uint32_t(at_ - line_start_ + 1)};
  at_ += length;
  return token;
}

size_t Lexer::WordLength(size_t from) const {
  size_t end = from;
  while (end < text_.size() && (IsLetter(text_[end]) || IsDigit(text_[end]) || text_[end] == '.')) ++end;
  return end - from;
}

size_t Lexer::NumberLength() const {
  size_t end = at_;
  auto digits = [&] {
    while (end < text_.size() && IsDigit(text_[end])) ++end;
  };
  digits();
  if (end + 1 < text_.size() && text_[end] == '.' && IsDigit(text_[end + 1])) {
    ++end;
    digits();
  }
  if (end < text_.size() && (text_[end] == 'e' || text_[end] == 'E')) {
    size_t sign = end + 1 < text_.size() && (text_[end + 1] == '+' || text_[end + 1] == '-');
    if (end + 1 + sign < text_.size() && IsDigit(text_[end + 1 + sign])) {
      end += 1 + sign;
      digits();
    }
  }
  return end - at_;
}

size_t Lexer::PunctLength() const {
  for (std::string_view two : {"->", "||", "&&", "==", "!=", "<=", ">=", "<<", ">>", "//"}) {
    if (text_.substr(at_).starts_with(two)) return 2;
  }
  return std::string_view("()[]{},;:=+-*/<>|^&!~").find(text_[at_]) != std::string_view::npos;
}

size_t Lexer::StringLength() const {
  for (size_t end = at_ + 1; end < text_.size() && text_[end] != '\n'; ++end) {
    if (text_[end] == '"') return end + 1 - at_;
    if (text_[end] == '\\') ++end;
  }
  return 0;
}

Token Lexer::Next() {
  SkipBlank();
  if (at_ >= text_.size()) return Take(Token::kEnd, 0);
  char c = text_[at_];
  if (IsLetter(c)) return Take(Token::kWord, WordLength(at_));
  if (IsDigit(c)) return Take(Token::kNumber, NumberLength());
  if (c == '%' || c == '@') {
    size_t length = WordLength(at_ + 1);
    if (length == 0) return Take(Token::kBad, 1);
    Token token = Take(c == '%' ? Token::kValue : Token::kSymbol, length + 1);
    token.text.remove_prefix(1);
    return token;
  }
  if (c == '"') {
    const size_t length = StringLength();
    if (length == 0) return Take(Token::kBad, 1);
    Token token = Take(Token::kString, length);
    token.text = token.text.substr(1, length - 2);
    return token;
  }
  size_t length = PunctLength();
  return length > 0 ? Take(Token::kPunct, length) : Take(Token::kBad, 1);
}

std::string_view Lexer::UntilClosed() {
  size_t start = at_;
  int depth = 1;
  for (; at_ < text_.size(); ++at_) {
    if (text_[at_] == '\n') break;
    if (text_[at_] == '(') ++depth;
    if (text_[at_] == ')' && --depth == 0) return text_.substr(start, at_++ - start);
  }
  return text_.substr(start, at_ - start);
}

std::string_view Lexer::Line(uint32_t number) const {
  if (line_starts_.empty()) {
    line_starts_.push_back(0);
    for (size_t end = text_.find('\n'); end != std::string_view::npos; end = text_.find('\n', end + 1)) line_starts_.push_back(end + 1);
  }
  const size_t start = number <= line_starts_.size() ? line_starts_[std::max(number, 1u) - 1] : text_.size();
  return text_.substr(start, std::min(text_.find('\n', start), start + 200) - start);
}

std::optional<std::string> Unescaped(std::string_view text) {
  const auto digit = [&](size_t at) { return at < text.size() ? std::string_view("0123456789abcdef").find(text[at]) : std::string_view::npos; };
  std::string value;
  for (size_t i = 0; i < text.size(); ++i) {
    if (text[i] != '\\') {
      value += text[i];
      continue;
    }
    const char next = ++i < text.size() ? text[i] : '\0';
    const size_t high = digit(i + 1), low = digit(i + 2);
    if (next == '\\' || next == '"') {
      value += next;
    } else if (next == 'x' && high != std::string_view::npos && low != std::string_view::npos) {
      value += char(high * 16 + low);
      i += 2;
    } else {
      return std::nullopt;
    }
  }
  return value;
}

std::string Escaped(std::string_view value) {
  std::string text;
  for (const char c : value) {
    const auto byte = static_cast<unsigned char>(c);
    if (c == '\\' || c == '"') text += '\\', text += c;
    else if (byte < ' ' || byte > '~') text += fmt::format("\\x{:02x}", byte);
    else text += c;
  }
  return text;
}

std::string Describe(const Token& token) {
  switch (token.kind) {
    case Token::kEnd: return "the end of the text";
    case Token::kValue: return fmt::format("'%{}'", token.text.substr(0, 40));
    case Token::kSymbol: return fmt::format("'@{}'", token.text.substr(0, 40));
    case Token::kBad: {
      unsigned char c = static_cast<unsigned char>(token.text[0]);
      return c > ' ' && c <= '~' ? fmt::format("'{}'", char(c)) : fmt::format("byte 0x{:02x}", unsigned(c));
    }
    default: return fmt::format("'{}'", token.text.substr(0, 40));
  }
}

}  // namespace kiln::ir
