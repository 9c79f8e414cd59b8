// SPDX-License-Identifier: Apache-2.0
//
// The seal of a reply (kiln/v1/seal.proto): made once, when a result is kept; verified where a module is about to be loaded,
// where an entry comes in from elsewhere or from the disk, and by `kiln cache verify`.
#pragma once

#include <expected>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "cache/signature.h"
#include "kiln/v1/seal.pb.h"

namespace kiln {

// Fills in the digests of key and artifact, and signs.
v1::Seal MakeSeal(const cache::SigningKey& key, v1::Provenance provenance, std::string_view reply_key, std::string_view artifact);

// Checks that one of the `trusted` keys vouches for the artifact in `reply`, and for it under that key. The error says what is wrong and
// what to do. `reply` was parsed from the bytes that were sent, so that it holds the artifact's very bytes.
std::expected<v1::Provenance, std::string> Verify(const v1::SealedReply& reply, std::span<const cache::PublicKey> trusted);

// A file of public keys: a line each, "ed25519:HEX" and what it is called, '#' begins a comment. The error names the line.
std::expected<std::vector<cache::PublicKey>, std::string> ParseTrustedKeys(std::string_view text);

}  // namespace kiln
