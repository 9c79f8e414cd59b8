// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/protocol.h"

#include <fmt/format.h>
#include <hiredis/hiredis.h>

#include <algorithm>
#include <new>
#include <utility>

namespace kiln::cache::redis {
namespace {

constexpr std::size_t kMostOfAnError = 500;  // bytes of what is a line for people

Reply Take(const redisReply& from) {
  Reply reply;
  switch (from.type) {
    case REDIS_REPLY_STRING:
    case REDIS_REPLY_STATUS: reply = {.kind = Reply::Kind::kText, .text = std::string(from.str, from.len)}; break;
    case REDIS_REPLY_ERROR: reply = {.kind = Reply::Kind::kError, .text = std::string(from.str, std::min(from.len, kMostOfAnError))}; break;
    case REDIS_REPLY_INTEGER: reply = {.kind = Reply::Kind::kInteger, .text = {}, .integer = from.integer}; break;
    case REDIS_REPLY_ARRAY:
      reply.kind = Reply::Kind::kArray;
      for (std::size_t i = 0; i < from.elements; ++i) reply.items.push_back(Take(*from.element[i]));
      break;
    default: break;
  }
  return reply;
}

// hiredis makes room for as many items as an array claims to have, and an item takes many times the memory of its bytes. Items are counted
// where their array begins.
constexpr std::size_t kMostItems = std::size_t{1} << 19;  // all slots of a cluster one by one, with a replica of each, are fewer
decltype(redisReplyObjectFunctions::createArray) make_array = nullptr;
void* MakeArray(const redisReadTask* task, int items) {
  std::size_t& made = *static_cast<std::size_t*>(task->privdata);
  made += static_cast<std::size_t>(items);
  return items < 0 || made > kMostItems ? nullptr : make_array(task, items);
}

redisReplyObjectFunctions* Makers(redisReader& reader) {
  static redisReplyObjectFunctions makers = [&] {
    redisReplyObjectFunctions own = *reader.fn;
    make_array = std::exchange(own.createArray, MakeArray);
    return own;
  }();
  return &makers;
}

}  // namespace

struct ReplyReader::Parser {
  Parser() : reader(redisReaderCreate()) {
    if (reader == nullptr) throw std::bad_alloc();
    reader->fn = Makers(*reader);
    reader->privdata = &items;
  }
  ~Parser() { redisReaderFree(reader); }
  Parser(const Parser&) = delete;
  Parser& operator=(const Parser&) = delete;

  redisReader* reader;
  std::size_t items = 0;  // of the arrays of one reply
};

std::string Format(std::span<const std::string_view> words) {
  std::vector<const char*> begins;
  std::vector<std::size_t> sizes;
  for (const std::string_view word : words) {
    begins.push_back(word.data());
    sizes.push_back(word.size());
  }
  char* formatted = nullptr;
  const int size = redisFormatCommandArgv(&formatted, static_cast<int>(words.size()), begins.data(), sizes.data());
  if (size < 0) throw std::bad_alloc();
  std::string command(formatted, static_cast<std::size_t>(size));
  redisFreeCommand(formatted);
  return command;
}

ReplyReader::ReplyReader(std::size_t limit) : parser_(std::make_unique<Parser>()), limit_(limit) {}
ReplyReader::~ReplyReader() = default;

std::expected<void, Error> ReplyReader::Feed(std::string_view bytes) {
  fed_ += bytes.size();
  if (fed_ > limit_) return Fail(ErrorCode::kUnreachable, fmt::format("a reply of more than {} bytes", limit_));
  if (redisReaderFeed(parser_->reader, bytes.data(), bytes.size()) != REDIS_OK) return Fail(ErrorCode::kUnreachable, "no memory for a reply");
  return {};
}

std::expected<std::optional<Reply>, Error> ReplyReader::Next() {
  void* got = nullptr;
  if (redisReaderGetReply(parser_->reader, &got) != REDIS_OK) {
    return Fail(ErrorCode::kUnreachable, fmt::format("this is no reply of a Redis server: {}", parser_->reader->errstr));
  }
  if (got == nullptr) return std::nullopt;
  const std::unique_ptr<redisReply, void (*)(void*)> reply(static_cast<redisReply*>(got), freeReplyObject);
  fed_ = parser_->reader->len - parser_->reader->pos;
  parser_->items = 0;
  return Take(*reply);
}

}  // namespace kiln::cache::redis
