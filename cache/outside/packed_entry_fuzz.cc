// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "cache/outside/packed_entry.h"

namespace {

using namespace kiln::cache;

constexpr std::uint64_t kMost = std::uint64_t{1} << 20;

void Check(bool holds) {
  if (!holds) std::abort();
}

// Whatever comes in is an entry of that key within the limit, or an error.
void Read(const Digest& key, std::string_view bytes) {
  const auto entry = Unpack(key, bytes, kMost);
  if (!entry) return Check(entry.error().code == ErrorCode::kCorrupt || entry.error().code == ErrorCode::kInvalid);
  Check(entry->key() == key && entry->sealed().size() <= kMost);
  const auto again = Unpack(key, Pack(*entry), kMost);
  Check(again && again->sealed() == entry->sealed());
}

}  // namespace

// What a store sends as it is; and behind a head that is right, so that the body is looked at.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  const std::string_view bytes(reinterpret_cast<const char*>(data), size);
  Read(Digest(), bytes);
  const BlobView blobs[] = {{"ptx", bytes.substr(0, size / 2)}};
  const auto entry = Seal(Sha256("key"), "metadata", blobs);
  Check(entry.has_value());
  Read(entry->key(), std::string(entry->head()) + std::string(bytes.substr(size / 2)));
  Read(entry->key(), Pack(*entry));
  std::string damaged = Pack(*entry);
  if (size > 1) damaged[data[0] * std::size_t{251} % damaged.size()] ^= static_cast<char>(data[1]);
  Read(entry->key(), damaged);
  return 0;
}
