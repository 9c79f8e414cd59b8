// SPDX-License-Identifier: Apache-2.0
#include "cache/entry.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "cache/little_endian.h"
#include "cache/try.h"

namespace kiln::cache {
namespace {

constexpr std::string_view kMagic = "KILNENT\n";
constexpr std::uint32_t kVersion = 1;
constexpr std::size_t kFixedSize = 8 + 4 + 4 + 4 + 4 + 8 + Digest::kSize;
constexpr std::size_t kPartSize = 8 + 4 + Digest::kSize;

// A head whose sizes and digest have been checked; the views point into it.
struct ParsedHead {
  struct Part {
    std::string_view name;
    std::uint64_t size;
    Digest digest;
  };

  std::size_t size = 0;
  std::uint64_t body_size = 0;
  Digest key;
  Digest digest;
  Digest body_digest;
  std::string_view metadata;
  std::vector<Part> parts;
};

std::unexpected<Error> Corrupt(std::string what) { return Fail(ErrorCode::kCorrupt, "sealed entry: " + what); }

// Reads on from where the last read ended. The caller has checked that the bytes are there.
class Cursor {
 public:
  explicit Cursor(std::string_view bytes) : rest_(bytes) {}

  std::string_view Take(std::size_t size) {
    const std::string_view taken = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return taken;
  }
  std::uint32_t U32() { return LoadLittleEndian<std::uint32_t>(Take(4)); }
  std::uint64_t U64() { return LoadLittleEndian<std::uint64_t>(Take(8)); }
  Digest TakeDigest() { return *Digest::FromBytes(Take(Digest::kSize)); }

 private:
  std::string_view rest_;
};

bool HasDuplicate(std::vector<std::string_view> names) {
  std::ranges::sort(names);
  return std::ranges::adjacent_find(names) != names.end();
}

Digest BodyDigest(std::span<const ParsedHead::Part> parts) {
  Hasher hasher;
  for (const auto& part : parts) {
    std::string size;
    AppendLittleEndian(size, part.size);
    hasher.Update(size).Update(part.digest.view());
  }
  return hasher.Finish();
}

// `bytes` starts with a head and may go on behind it.
std::expected<ParsedHead, Error> ParseHead(std::string_view bytes) {
  if (bytes.size() < kFixedSize + Digest::kSize) return Corrupt(fmt::format("{} bytes hold no head", bytes.size()));
  Cursor fixed(bytes);
  if (fixed.Take(kMagic.size()) != kMagic) return Corrupt("wrong magic");
  if (const std::uint32_t version = fixed.U32(); version != kVersion) {
    return Corrupt(fmt::format("version {}, expected {}", version, kVersion));
  }
  const std::uint32_t count = fixed.U32();
  const std::uint32_t metadata_size = fixed.U32();
  const std::uint32_t names_size = fixed.U32();
  ParsedHead head;
  head.body_size = fixed.U64();
  head.key = fixed.TakeDigest();

  // After these four checks no sum below can overflow.
  if (count > Entry::kMaxBlobs) return Corrupt(fmt::format("{} blobs", count));
  if (metadata_size > Entry::kMaxMetadataSize) return Corrupt(fmt::format("{} bytes of metadata", metadata_size));
  if (names_size > count * Entry::kMaxNameSize) return Corrupt(fmt::format("{} bytes of names", names_size));
  if (head.body_size > Entry::kMaxSize) return Corrupt(fmt::format("a body of {} bytes", head.body_size));
  const std::size_t covered = kFixedSize + count * kPartSize + metadata_size + names_size;
  head.size = covered + Digest::kSize;
  if (head.size > bytes.size()) return Corrupt(fmt::format("a head of {} bytes in {}", head.size, bytes.size()));
  head.digest = *Digest::FromBytes(bytes.substr(covered, Digest::kSize));
  if (Sha256(bytes.substr(0, covered)) != head.digest) return Corrupt("digest of the head disagrees");

  // A head that agrees with its digest can still have been made by somebody else.
  Cursor table(bytes.substr(kFixedSize));
  Cursor names(bytes.substr(covered - names_size, names_size));
  head.metadata = bytes.substr(kFixedSize + count * kPartSize, metadata_size);
  std::uint64_t names_left = names_size;
  std::uint64_t body_left = head.body_size;
  std::vector<std::string_view> seen;
  for (std::uint32_t i = 0; i < count; ++i) {
    const std::uint64_t size = table.U64();
    const std::uint32_t name_size = table.U32();
    if (name_size == 0 || name_size > Entry::kMaxNameSize || name_size > names_left) {
      return Corrupt(fmt::format("blob {} has a name of {} bytes", i, name_size));
    }
    if (size > body_left) return Corrupt(fmt::format("blob {} has {} bytes, {} are left", i, size, body_left));
    names_left -= name_size;
    body_left -= size;
    head.parts.push_back({names.Take(name_size), size, table.TakeDigest()});
    seen.push_back(head.parts.back().name);
  }
  if (names_left != 0 || body_left != 0) return Corrupt("sizes do not add up");
  if (HasDuplicate(std::move(seen))) return Corrupt("two blobs of one name");
  head.body_digest = BodyDigest(head.parts);
  return head;
}

EntryHead OwnedHead(const ParsedHead& head) {
  EntryHead entry{head.key, head.digest, head.body_digest, std::string(head.metadata), head.size + head.body_size, {}};
  for (const auto& part : head.parts) entry.blobs.push_back({std::string(part.name), part.size, part.digest});
  return entry;
}

std::expected<void, Error> CheckLimits(std::string_view metadata, std::span<const BlobView> blobs) {
  if (metadata.size() > Entry::kMaxMetadataSize) {
    return Fail(ErrorCode::kInvalid, fmt::format("{} bytes of metadata; at most {} can be sealed", metadata.size(), Entry::kMaxMetadataSize));
  }
  if (blobs.size() > Entry::kMaxBlobs) {
    return Fail(ErrorCode::kInvalid, fmt::format("{} blobs; at most {} can be sealed", blobs.size(), Entry::kMaxBlobs));
  }
  std::uint64_t total = kFixedSize + Digest::kSize + metadata.size();
  std::vector<std::string_view> names;
  for (const BlobView& blob : blobs) {
    if (blob.name.empty() || blob.name.size() > Entry::kMaxNameSize) {
      return Fail(ErrorCode::kInvalid, fmt::format("a blob's name has {} bytes; 1 to {} can be sealed", blob.name.size(), Entry::kMaxNameSize));
    }
    total += kPartSize + blob.name.size() + blob.bytes.size();
    names.push_back(blob.name);
  }
  if (total > Entry::kMaxSize) {
    return Fail(ErrorCode::kInvalid, fmt::format("an entry of {} bytes; at most {} can be sealed", total, Entry::kMaxSize));
  }
  if (HasDuplicate(std::move(names))) return Fail(ErrorCode::kInvalid, "two blobs of one name");
  return {};
}

}  // namespace

std::string_view Entry::blob(std::string_view name) const {
  for (const BlobView& blob : payload_->blobs) {
    if (blob.name == name) return blob.bytes;
  }
  return {};
}

std::expected<Entry, Error> Seal(const Digest& key, std::string_view metadata, std::span<const BlobView> blobs) {
  KILN_RETURN_IF_ERROR(CheckLimits(metadata, blobs));
  std::string names;
  std::uint64_t body_size = 0;
  std::vector<ParsedHead::Part> parts;
  for (const BlobView& blob : blobs) {
    names += blob.name;
    body_size += blob.bytes.size();
    parts.push_back({blob.name, blob.bytes.size(), Sha256(blob.bytes)});
  }

  auto payload = std::make_shared<Entry::Payload>();
  std::string& out = payload->sealed;
  payload->head_size = kFixedSize + parts.size() * kPartSize + metadata.size() + names.size() + Digest::kSize;
  out.reserve(payload->head_size + body_size);
  out += kMagic;
  AppendLittleEndian(out, kVersion);
  AppendLittleEndian(out, static_cast<std::uint32_t>(parts.size()));
  AppendLittleEndian(out, static_cast<std::uint32_t>(metadata.size()));
  AppendLittleEndian(out, static_cast<std::uint32_t>(names.size()));
  AppendLittleEndian(out, body_size);
  out += key.view();
  for (const auto& part : parts) {
    AppendLittleEndian(out, part.size);
    AppendLittleEndian(out, static_cast<std::uint32_t>(part.name.size()));
    out += part.digest.view();
  }
  out += metadata;
  out += names;
  payload->key = key;
  payload->digest = Sha256(out);
  payload->body_digest = BodyDigest(parts);
  out += payload->digest.view();
  for (const BlobView& blob : blobs) out += blob.bytes;

  Cursor text(std::string_view(out).substr(kFixedSize + parts.size() * kPartSize));
  payload->metadata = text.Take(metadata.size());
  for (const BlobView& blob : blobs) payload->blobs.push_back({text.Take(blob.name.size()), {}});
  Cursor body(std::string_view(out).substr(payload->head_size));
  for (std::size_t i = 0; i < blobs.size(); ++i) payload->blobs[i].bytes = body.Take(blobs[i].bytes.size());
  return Entry(std::move(payload));
}

std::expected<Entry, Error> Unseal(std::string sealed) {
  // The views below point into the string where it will stay.
  auto payload = std::make_shared<Entry::Payload>();
  payload->sealed = std::move(sealed);
  const std::string_view bytes = payload->sealed;
  KILN_ASSIGN_OR_RETURN(const ParsedHead head, ParseHead(bytes));
  if (bytes.size() - head.size != head.body_size) {
    return Corrupt(fmt::format("a body of {} bytes where {} were sealed", bytes.size() - head.size, head.body_size));
  }
  Cursor body(bytes.substr(head.size));
  for (const auto& part : head.parts) {
    const std::string_view blob = body.Take(part.size);
    if (Sha256(blob) != part.digest) return Corrupt(fmt::format("digest of blob \"{}\" disagrees", part.name));
    payload->blobs.push_back({part.name, blob});
  }
  payload->head_size = head.size;
  payload->key = head.key;
  payload->digest = head.digest;
  payload->body_digest = head.body_digest;
  payload->metadata = head.metadata;
  return Entry(std::move(payload));
}

std::expected<EntryHead, Error> UnsealHead(std::string_view bytes) {
  KILN_ASSIGN_OR_RETURN(const ParsedHead head, ParseHead(bytes));
  if (bytes.size() != head.size) return Corrupt(fmt::format("{} bytes behind the head", bytes.size() - head.size));
  return OwnedHead(head);
}

std::expected<EntryHead, Error> UnsealLeadingHead(std::string_view bytes) {
  KILN_ASSIGN_OR_RETURN(const ParsedHead head, ParseHead(bytes));
  return OwnedHead(head);
}

}  // namespace kiln::cache
