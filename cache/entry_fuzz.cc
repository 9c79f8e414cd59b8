// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "cache/digest.h"
#include "cache/entry.h"

namespace {

constexpr std::size_t kFixed = 64;
constexpr std::size_t kRow = 44;

std::uint64_t Load(std::string_view bytes, std::size_t at, int width) {
  std::uint64_t value = 0;
  for (int i = width - 1; i >= 0; --i) value = value << 8 | static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
  return value;
}

// Random bytes never pass the digests of the blobs and of the head, so the second input has these made right: it is what somebody who
// can compute digests would send. Where they are is computed as the format's description says.
std::string WithDigests(std::string bytes) {
  if (bytes.size() < kFixed) return bytes;
  const std::size_t blobs = Load(bytes, 12, 4);
  const std::size_t covered = kFixed + blobs * kRow + Load(bytes, 16, 4) + Load(bytes, 20, 4);
  if (covered > bytes.size()) return bytes;
  std::size_t at = covered + kiln::cache::Digest::kSize;
  for (std::size_t i = 0; i < blobs; ++i) {
    const std::size_t row = kFixed + i * kRow;
    const std::uint64_t size = Load(bytes, row, 8);
    if (at > bytes.size() || size > bytes.size() - at) break;
    bytes.replace(row + 12, kiln::cache::Digest::kSize, kiln::cache::Sha256(std::string_view(bytes).substr(at, size)).view());
    at += size;
  }
  const auto digest = kiln::cache::Sha256(std::string_view(bytes).substr(0, covered));
  bytes.replace(covered, std::min(kiln::cache::Digest::kSize, bytes.size() - covered), digest.view());
  return bytes;
}

void Check(const std::string& bytes) {
  const auto entry = kiln::cache::Unseal(bytes);
  if (!entry) return;
  // What unseals is what sealing its parts gives: the form is canonical.
  const auto again = kiln::cache::Seal(entry->key(), entry->metadata(), entry->blobs());
  if (!again || again->sealed() != bytes || again->digest() != entry->digest()) std::abort();
  const auto head = kiln::cache::UnsealHead(entry->head());
  if (!head || head->sealed_size != bytes.size() || head->body_digest != entry->body_digest()) std::abort();
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const unsigned char* data, std::size_t size) {
  const std::string bytes(reinterpret_cast<const char*>(data), size);
  Check(bytes);
  Check(WithDigests(bytes));
  return 0;
}
