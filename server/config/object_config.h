// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <cstdint>
#include <filesystem>
#include <optional>

#include "cache/object/address.h"

namespace kiln::server {

// The object store, behind the cluster store.
struct ObjectConfig {
  std::optional<cache::object::Address> store;  // nothing: there is none
  std::filesystem::path ca;                     // PEM roots; empty: the system's
  std::filesystem::path credentials;            // empty: none are needed
  std::uint64_t max_entry_bytes = std::uint64_t{32} << 20;
  std::chrono::milliseconds timeout{50};  // that a request waits for it at most, and for all other shared stores together
};

}  // namespace kiln::server
