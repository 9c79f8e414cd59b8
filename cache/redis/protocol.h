// SPDX-License-Identifier: Apache-2.0
//
// What is said to a server, and what it answers: RESP2, as hiredis formats and reads it.
#pragma once

#include <cstdint>
#include <expected>
#include <initializer_list>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/error.h"

namespace kiln::cache::redis {

struct Reply {
  enum class Kind : std::uint8_t { kNull, kText, kError, kInteger, kArray };
  Kind kind = Kind::kNull;
  std::string text;  // of kText, statuses included, and kError
  std::int64_t integer = 0;
  std::vector<Reply> items;

  bool is_text() const { return kind == Kind::kText; }
  bool is_error() const { return kind == Kind::kError; }
  bool is_integer() const { return kind == Kind::kInteger; }
  bool is_array() const { return kind == Kind::kArray; }
  // An error that begins with this word.
  bool IsError(std::string_view word) const { return is_error() && text.starts_with(word); }
};

std::string Format(std::span<const std::string_view> words);
inline std::string Format(std::initializer_list<std::string_view> words) { return Format(std::span(words.begin(), words.size())); }

// Takes bytes as they come and gives replies. Treats them as hostile: more than `limit` bytes of one reply are an error, as are more items than
// any cluster has to tell of. What a length claims takes no memory before its bytes have come.
class ReplyReader {
 public:
  explicit ReplyReader(std::size_t limit);
  ~ReplyReader();
  ReplyReader(const ReplyReader&) = delete;
  ReplyReader& operator=(const ReplyReader&) = delete;

  std::expected<void, Error> Feed(std::string_view bytes);

  // The next whole reply; nothing yet where more bytes are needed.
  std::expected<std::optional<Reply>, Error> Next();

  // Whether there is nothing behind the last reply.
  bool empty() const { return fed_ == 0; }

 private:
  struct Parser;
  std::unique_ptr<Parser> parser_;
  const std::size_t limit_;
  std::size_t fed_ = 0;  // bytes since the last whole reply
};

}  // namespace kiln::cache::redis
