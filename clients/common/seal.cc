// SPDX-License-Identifier: Apache-2.0
#include "clients/common/seal.h"

#include <algorithm>

#include <fmt/format.h>

#include "cache/digest.h"

namespace kiln {
namespace {

std::string_view Heading(Sealed what) {
  switch (what) {
    case Sealed::kArtifact: return "kiln.v1.Seal\n";
    case Sealed::kRefusal: return "kiln.v1.Refusal\n";
    case Sealed::kTuning: return "kiln.v1.Tuning\n";
  }
  return {};
}

std::string Message(Sealed what, std::string_view provenance) { return std::string(Heading(what)).append(provenance); }

}  // namespace

v1::Seal MakeSeal(const cache::SigningKey& key, v1::Provenance provenance, std::string_view reply_key, std::string_view artifact, Sealed what) {
  const cache::Digest digest = cache::Sha256(artifact);
  provenance.set_key(std::string(reply_key));
  provenance.set_artifact_sha256(digest.bytes.data(), digest.bytes.size());
  v1::Seal seal;
  seal.set_provenance(provenance.SerializeAsString());
  seal.set_public_key(std::string(key.public_key().view()));
  seal.set_signature(key.Sign(Message(what, seal.provenance())));
  return seal;
}

std::string DiagnosticsDigest(const v1::SealedReply& reply) {
  cache::Hasher all;
  for (const std::string& diagnostic : reply.diagnostics()) all.Update(cache::Sha256(diagnostic).view());
  return std::string(all.Finish().view());
}

std::expected<v1::Provenance, std::string> Verify(const v1::SealedReply& reply, std::span<const cache::PublicKey> trusted, Sealed what) {
  if (!reply.has_seal()) {
    return std::unexpected("the artifact is not signed; an older kilnd made it, or somebody removed the signature");
  }
  const v1::Seal& seal = reply.seal();
  const auto key = cache::PublicKey::FromBytes(seal.public_key());
  if (!key || std::ranges::find(trusted, *key) == trusted.end()) {
    return std::unexpected(
        fmt::format("the artifact is signed by {}, which nobody here trusts; if you do, add the key to the "
                    "trusted keys",
                    key ? key->ToText() : "no key"));
  }
  if (!cache::IsSigned(*key, Message(what, seal.provenance()), seal.signature())) {
    return std::unexpected("the artifact's signature is wrong: it was changed after it was signed");
  }
  v1::Provenance provenance;
  if (!provenance.ParseFromString(seal.provenance())) return std::unexpected("the artifact's provenance is no message");
  if (provenance.artifact_sha256() != cache::Sha256(reply.artifact()).view()) {
    return std::unexpected("the artifact is not the one that was signed: it was changed on its way or in the store");
  }
  if (provenance.key() != reply.key()) {
    return std::unexpected("the artifact was signed for another program than it is sent for");
  }
  return provenance;
}

std::expected<std::vector<cache::PublicKey>, std::string> ParseTrustedKeys(std::string_view text) {
  constexpr std::string_view kSpace = " \t\r";
  std::vector<cache::PublicKey> keys;
  for (std::size_t line = 1; !text.empty(); ++line) {
    const std::size_t end = std::min(text.find('\n'), text.size());
    std::string_view words = text.substr(0, std::min(text.find('#'), end));
    text.remove_prefix(std::min(end + 1, text.size()));
    words.remove_prefix(std::min(words.find_first_not_of(kSpace), words.size()));
    if (words.empty()) continue;
    const auto key = cache::PublicKey::FromText(words.substr(0, words.find_first_of(kSpace)));
    if (!key) return std::unexpected(fmt::format("line {}: a line begins with ed25519: and 64 hexadecimal digits", line));
    keys.push_back(*key);
  }
  return keys;
}

}  // namespace kiln
