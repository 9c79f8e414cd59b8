// SPDX-License-Identifier: Apache-2.0
//
// A bundle is a file of sealed entries, for carrying a warm cache to another machine:
//
//   8   magic "KILNBUN\n"
//   4   version, 1
//   …   records: size of the sealed entry (8), the sealed entry
//   8   zero: no more records
//   8   number of records
//  32   SHA-256 of everything before
//
// Integers are little endian. Each entry verifies itself and names its key, so a bundle that was cut off or damaged
// still gives every whole entry before the damage, and none that is wrong.
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <optional>

#include "cache/error.h"
#include "cache/sqlite/sqlite_tier.h"
#include "cache/tier.h"

namespace kiln::cache {

struct BundleReport {
  std::uint64_t entries = 0;
  std::uint64_t bytes = 0;    // of sealed entries
  std::uint64_t skipped = 0;  // export: corrupt or gone since they were listed; import: left out by the filter
};

// Writes what `accept` accepts (everything, where empty) to a new file beside `path` and renames it into place, in the
// order of the keys: the same entries give the same bytes. Holds one entry in memory at a time.
std::expected<BundleReport, Error> ExportBundle(SqliteTier& from, const std::filesystem::path& path,
                                                std::function<bool(const EntryInfo&)> accept = {});

// What to put instead of the entry; empty: nothing.
using ImportFilter = std::function<std::optional<Entry>(const Entry&)>;

// Puts every entry of the bundle that `filter` lets through (all, where empty) and waits until they are committed. kCorrupt when
// the file is damaged or cut off; `imported` then says how much of it was put.
std::expected<BundleReport, Error> ImportBundle(const std::filesystem::path& path, Tier& into, BundleReport* imported = nullptr,
                                                const ImportFilter& filter = {});

}  // namespace kiln::cache
