// SPDX-License-Identifier: Apache-2.0
//
// An entry as it travels to stores that hosts share: the head of its sealed form, which ends with its digest, and its body, compressed (one
// frame of zstd). Some stores keep the two apart, others one behind the other.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "cache/digest.h"
#include "cache/entry.h"
#include "cache/error.h"

namespace kiln::cache {

std::string Compress(std::string_view body);

// Treats both as hostile; kCorrupt says what disagreed. An entry of more than `most` bytes is corrupt, since nobody puts such a one.
std::expected<Entry, Error> EntryFrom(const Digest& key, std::string_view head, std::string_view compressed, std::uint64_t most);

// The head, and the compressed body behind it.
std::string Pack(const Entry& entry);

// Treats the bytes as hostile; kCorrupt says what disagreed. An entry of more than `most` bytes is kInvalid: others may put larger ones.
std::expected<Entry, Error> Unpack(const Digest& key, std::string_view packed, std::uint64_t most);

// No packed entry of so many bytes is larger.
std::uint64_t MostPacked(std::uint64_t most);

}  // namespace kiln::cache
