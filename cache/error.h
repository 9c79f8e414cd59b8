// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>
#include <utility>

namespace kiln::cache {

// Why a cache operation gave no result. "Not there" is no error: it is an empty optional.
//
// The distinction that callers live by: a corrupt entry has been evicted and should be made anew; an unreachable
// tier has deleted nothing and may have the entry later; a full tier still reads.
enum class ErrorCode : std::uint8_t {
  kCorrupt,      // An entry's bytes contradict their digest. The tier that reports it has evicted it.
  kDamaged,      // The store's own structure is broken. It is set aside and replaced by an empty one.
  kUnreachable,  // I/O failed or timed out. Nothing was deleted; leave the tier alone for a while.
  kFull,         // The disk or the file's hard limit is full. Reads work, writes are refused for a while.
  kOverloaded,   // Too many writes wait; this one was dropped.
  kInvalid,      // The request can never succeed, e.g. an entry larger than the whole store.
  kRefused,      // The store may not be opened here: network file system, or another process holds it.
  kClosed,       // The tier is shutting down.
};

std::string_view ToString(ErrorCode code);

struct Error {
  ErrorCode code;
  std::string message;
};

inline std::unexpected<Error> Fail(ErrorCode code, std::string message) { return std::unexpected(Error{code, std::move(message)}); }

}  // namespace kiln::cache
