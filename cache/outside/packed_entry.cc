// SPDX-License-Identifier: Apache-2.0
#include "cache/outside/packed_entry.h"

#include <fmt/format.h>
#include <zstd.h>

#include <new>
#include <utility>

#include "cache/try.h"

namespace kiln::cache {
namespace {

constexpr int kLevel = 1;  // kernels compress to a third at any level, and the put's thread has others to do

std::unexpected<Error> NoEntry(std::string what) { return Fail(ErrorCode::kCorrupt, "entry of a shared store: " + what); }

// `head` is what `parsed` was read from, and nothing more.
std::expected<Entry, Error> WithBody(const EntryHead& parsed, std::string_view head, std::string_view compressed) {
  const std::size_t body_size = parsed.sealed_size - head.size();
  std::string sealed(head);
  sealed.resize(parsed.sealed_size);
  const std::size_t size = ZSTD_decompress(sealed.data() + head.size(), body_size, compressed.data(), compressed.size());
  if (ZSTD_isError(size) != 0) return NoEntry(fmt::format("its body cannot be decompressed: {}", ZSTD_getErrorName(size)));
  if (size != body_size) return NoEntry(fmt::format("a body of {} bytes where {} were sealed", size, body_size));
  return Unseal(std::move(sealed));
}

}  // namespace

std::string Compress(std::string_view body) {
  std::string frame(ZSTD_compressBound(body.size()), '\0');
  const std::size_t size = ZSTD_compress(frame.data(), frame.size(), body.data(), body.size(), kLevel);
  if (ZSTD_isError(size) != 0) throw std::bad_alloc();  // for lack of memory alone: the frame is large enough
  frame.resize(size);
  return frame;
}

std::expected<Entry, Error> EntryFrom(const Digest& key, std::string_view head, std::string_view compressed, std::uint64_t most) {
  KILN_ASSIGN_OR_RETURN(const EntryHead parsed, UnsealHead(head));
  if (parsed.key != key) return NoEntry("it belongs to another key");
  if (parsed.sealed_size > most) return NoEntry(fmt::format("{} bytes where at most {} are put", parsed.sealed_size, most));
  return WithBody(parsed, head, compressed);
}

std::string Pack(const Entry& entry) { return std::string(entry.head()) + Compress(entry.body()); }

std::expected<Entry, Error> Unpack(const Digest& key, std::string_view packed, std::uint64_t most) {
  KILN_ASSIGN_OR_RETURN(const EntryHead parsed, UnsealLeadingHead(packed));
  if (parsed.key != key) return NoEntry("it belongs to another key");
  if (parsed.sealed_size > most) {
    return Fail(ErrorCode::kInvalid, fmt::format("entry of a shared store: {} bytes where this host takes at most {}", parsed.sealed_size, most));
  }
  std::uint64_t body = 0;
  for (const EntryHead::Part& part : parsed.blobs) body += part.size;
  const std::string_view head = packed.substr(0, parsed.sealed_size - body);
  return WithBody(parsed, head, packed.substr(head.size()));
}

std::uint64_t MostPacked(std::uint64_t most) { return most + ZSTD_compressBound(most); }

}  // namespace kiln::cache
