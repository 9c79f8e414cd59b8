// SPDX-License-Identifier: Apache-2.0
//
// The seal of a reply (kiln/v1/seal.proto): made once, when a result is kept; verified where a module is about to be loaded,
// where an entry comes in from elsewhere or from the disk, and by `kiln cache verify`.
#pragma once

#include <cstdint>
#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/signature.h"
#include "kiln/v1/seal.pb.h"

namespace kiln {

// What is signed in place of the artifact. A seal of the one is none of the other, whatever its bytes.
enum class Sealed : std::uint8_t { kArtifact, kRefusal, kTuning };

// Fills in the digests of key and artifact, and signs.
v1::Seal MakeSeal(const cache::SigningKey& key, v1::Provenance provenance, std::string_view reply_key, std::string_view artifact,
                  Sealed what = Sealed::kArtifact);

// Provenance.diagnostics_sha256 of what the reply says.
std::string DiagnosticsDigest(const v1::SealedReply& reply);

// Checks that one of the `trusted` keys vouches for the artifact in `reply`, and for it under that key. The error says what is wrong and
// what to do. `reply` was parsed from the bytes that were sent, so that it holds the artifact's very bytes.
std::expected<v1::Provenance, std::string> Verify(const v1::SealedReply& reply, std::span<const cache::PublicKey> trusted,
                                                  Sealed what = Sealed::kArtifact);

// A file of public keys: a line each, "ed25519:HEX" and what it is called, '#' begins a comment. The error names the line.
std::expected<std::vector<cache::PublicKey>, std::string> ParseTrustedKeys(std::string_view text);

}  // namespace kiln
