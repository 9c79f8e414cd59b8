// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest.h"
#include "cache/error.h"

namespace kiln::cache {

struct BlobView {
  std::string_view name;
  std::string_view bytes;
};

// One result in the cache: metadata and named blobs under a key, sealed into one string of bytes.
//
// An Entry has been verified: it exists only if every byte of it agreed with its digests and it names its own key,
// so a tier cannot hand out a result that belongs to another key. It is immutable and shared: a copy copies one
// pointer, and every view that it gives out lives as long as any copy.
//
// The sealed form, little endian:
//
//   head    8   magic "KILNENT\n"
//           4   version, 1
//           4   number of blobs, n
//           4   size of the metadata
//           4   size of all names together
//           8   size of the body
//          32   key
//      n × 44   per blob: size (8), size of its name (4), SHA-256 of its bytes (32)
//           …   metadata
//           …   names, one after the other
//          32   SHA-256 of the head up to here: the digest of the entry
//   body    …   the blobs, one after the other
//
// Each byte is covered by exactly one SHA-256, and the digest of the entry covers them all through the blobs' own.
// Head and body are kept apart in storage, so that listing entries never touches a blob.
class Entry {
 public:
  static constexpr std::size_t kMaxBlobs = 256;
  static constexpr std::size_t kMaxNameSize = 255;
  static constexpr std::size_t kMaxMetadataSize = std::size_t{16} << 20;
  static constexpr std::size_t kMaxSize = std::size_t{256} << 20;                         // of the sealed form
  static constexpr std::size_t kMaxHeadSize = kMaxMetadataSize + (std::size_t{1} << 20);  // no head is larger

  const Digest& key() const { return payload_->key; }
  const Digest& digest() const { return payload_->digest; }

  // Names the body: equal for entries whose blobs are equal, whatever their keys and metadata.
  const Digest& body_digest() const { return payload_->body_digest; }

  std::string_view metadata() const { return payload_->metadata; }
  std::span<const BlobView> blobs() const { return payload_->blobs; }

  // The bytes of the blob of that name; null data() when there is none.
  std::string_view blob(std::string_view name) const;

  // The sealed form, whole and in its two parts.
  std::string_view sealed() const { return payload_->sealed; }
  std::string_view head() const { return sealed().substr(0, payload_->head_size); }
  std::string_view body() const { return sealed().substr(payload_->head_size); }

  // The sealed form with its ownership, for senders that must keep it alive.
  std::shared_ptr<const std::string> shared_sealed() const { return {payload_, &payload_->sealed}; }

 private:
  friend std::expected<Entry, Error> Seal(const Digest&, std::string_view, std::span<const BlobView>);
  friend std::expected<Entry, Error> Unseal(std::string);

  struct Payload {
    std::string sealed;
    std::size_t head_size = 0;
    Digest key;
    Digest digest;
    Digest body_digest;
    std::string_view metadata;    // into sealed, as are the blobs
    std::vector<BlobView> blobs;  // in the order they were sealed
  };

  explicit Entry(std::shared_ptr<const Payload> payload) : payload_(std::move(payload)) {}

  std::shared_ptr<const Payload> payload_;
};

// Same arguments, same bytes. kInvalid when a limit above is exceeded or a name is empty or occurs twice.
std::expected<Entry, Error> Seal(const Digest& key, std::string_view metadata, std::span<const BlobView> blobs);

// Treats the bytes as hostile: allocates nothing in proportion to a size they claim, and reads each only after it is
// known to lie inside. kCorrupt says what disagreed.
std::expected<Entry, Error> Unseal(std::string sealed);

// What can be known of an entry without its body.
struct EntryHead {
  Digest key;
  Digest digest;
  Digest body_digest;
  std::string metadata;
  std::uint64_t sealed_size = 0;
  struct Part {
    std::string name;
    std::uint64_t size = 0;
    Digest digest;
  };
  std::vector<Part> blobs;
};

// As Unseal, for a head alone.
std::expected<EntryHead, Error> UnsealHead(std::string_view head);

// The same, for a head behind which more bytes may follow.
std::expected<EntryHead, Error> UnsealLeadingHead(std::string_view bytes);

}  // namespace kiln::cache
