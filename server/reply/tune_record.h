// SPDX-License-Identifier: Apache-2.0
//
// What a tuning found, as an entry of the cache. It lies beside results, travels like them, and is sealed like them (sealer.h).
#pragma once

#include <expected>
#include <optional>
#include <string_view>

#include "cache/digest.h"
#include "cache/entry.h"
#include "kiln/v1/tune.pb.h"

namespace kiln::server {

// The entry under which a sealed record is kept; `name` is of the programs, for lists of the store.
std::expected<cache::Entry, cache::Error> SealTuneRecord(const cache::Digest& kept_under, std::string_view tenant, const v1::TuneRecord& record,
                                                         std::string_view name);

bool IsTuneRecord(const cache::Entry& entry);

// That of the tenant; nothing when the entry is another's or holds something else.
std::optional<v1::TuneRecord> TuneRecordFrom(const cache::Entry& entry, std::string_view tenant);

}  // namespace kiln::server
