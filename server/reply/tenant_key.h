// SPDX-License-Identifier: Apache-2.0
//
// Tenants do not share entries: what is kept for one is kept under a key of its own, and its blob carries its name. Clients see
// the key of the program, which says nothing about where its result is kept.
#pragma once

#include <string>
#include <string_view>

#include "cache/digest.h"

namespace kiln::server {

inline constexpr std::string_view kDefaultTenant = "default";  // its results are kept under the programs' own keys

inline cache::Digest KeptUnder(std::string_view tenant, const cache::Digest& key) {
  if (tenant == kDefaultTenant) return key;
  return cache::Hasher().Update("tenant ").Update(tenant).Update("\n").Update(key.view()).Finish();
}

inline constexpr std::string_view kModuleBlob = "module";  // the program of a result, beside it

// The name of the blob that holds a tenant's result of that kind. An entry found under a key that somebody named is theirs only
// if it has it.
inline std::string BlobOf(std::string_view kind, std::string_view tenant) {
  std::string name(kind);
  if (tenant != kDefaultTenant) name.append(" of ").append(tenant.substr(0, 200));
  return name;
}

}  // namespace kiln::server
