// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/stored_entry.h"

#include <fmt/format.h>
#include <zstd.h>

#include <new>
#include <utility>

#include "cache/redis/address.h"
#include "cache/try.h"

namespace kiln::cache::redis {
namespace {

constexpr int kLevel = 1;  // kernels compress to a third at any level, and the put's thread has others to do

std::unexpected<Error> Corrupt(std::string what) { return Fail(ErrorCode::kCorrupt, "entry of the cluster store: " + what); }

}  // namespace

Names::Names(const Digest& key) {
  const std::string hex = key.ToHex();
  entry = "kiln:1:{" + hex + "}";
  lease = entry + ":lease";
  fence = entry + ":fence";
  channel = "kiln:1:done:" + hex;
  slot = SlotOf(entry);
}

std::string Compress(std::string_view body) {
  std::string frame(ZSTD_compressBound(body.size()), '\0');
  const std::size_t size = ZSTD_compress(frame.data(), frame.size(), body.data(), body.size(), kLevel);
  if (ZSTD_isError(size) != 0) throw std::bad_alloc();  // for lack of memory alone: the frame is large enough
  frame.resize(size);
  return frame;
}

std::expected<Entry, Error> EntryFrom(const Digest& key, std::string_view head, std::string_view compressed, std::uint64_t most) {
  KILN_ASSIGN_OR_RETURN(const EntryHead parsed, UnsealHead(head));
  if (parsed.key != key) return Corrupt("it belongs to another key");
  if (parsed.sealed_size > most) return Corrupt(fmt::format("{} bytes where at most {} are put", parsed.sealed_size, most));
  const std::size_t body_size = parsed.sealed_size - head.size();
  std::string sealed(head);
  sealed.resize(parsed.sealed_size);
  const std::size_t size = ZSTD_decompress(sealed.data() + head.size(), body_size, compressed.data(), compressed.size());
  if (ZSTD_isError(size) != 0) return Corrupt(fmt::format("its body cannot be decompressed: {}", ZSTD_getErrorName(size)));
  if (size != body_size) return Corrupt(fmt::format("a body of {} bytes where {} were sealed", size, body_size));
  return Unseal(std::move(sealed));
}

}  // namespace kiln::cache::redis
