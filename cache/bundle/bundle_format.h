// SPDX-License-Identifier: Apache-2.0
//
// The bytes of a bundle (bundle.h), for those that read and write them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <string>
#include <string_view>

#include "cache/digest.h"
#include "cache/error.h"

namespace kiln::cache {

inline constexpr std::string_view kBundleMagic = "KILNBUN\n";
inline constexpr std::uint32_t kBundleVersion = 1;
inline constexpr std::size_t kBundleStartSize = kBundleMagic.size() + sizeof(kBundleVersion);
inline constexpr std::size_t kBundleRecordSize = sizeof(std::uint64_t);                   // what stands before a sealed entry
inline constexpr std::size_t kBundleEndSize = 2 * sizeof(std::uint64_t) + Digest::kSize;  // zero, the number of records, the digest

std::string BundleStart();

// kCorrupt where the bytes do not begin a bundle, kInvalid where it is one of another version.
std::expected<void, Error> CheckBundleStart(std::string_view start);

}  // namespace kiln::cache
