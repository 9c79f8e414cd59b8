// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>

#include "cache/digest.h"
#include "cache/entry.h"

namespace {

// Random bytes never pass the digest of the head, so the second input has that made right: it is what somebody who can
// compute digests would send. The head's size is computed as the format's description says.
std::string WithDigest(std::string bytes) {
  constexpr std::size_t kFixed = 64;
  if (bytes.size() < kFixed) return bytes;
  const auto load = [&](std::size_t at) {
    std::size_t value = 0;
    for (int i = 3; i >= 0; --i)
      value = value << 8 | static_cast<unsigned char>(bytes[at + static_cast<std::size_t>(i)]);
    return value;
  };
  const std::size_t covered = kFixed + load(12) * 44 + load(16) + load(20);
  if (covered > bytes.size()) return bytes;
  const auto digest = kiln::cache::Sha256(std::string_view(bytes).substr(0, covered));
  bytes.replace(covered, std::min<std::size_t>(32, bytes.size() - covered), digest.view());
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
  Check(WithDigest(bytes));
  return 0;
}
