// SPDX-License-Identifier: Apache-2.0
//
// Who calls during the soak, and how their calls must end.
#pragma once

#include <array>
#include <cstdint>
#include <filesystem>
#include <initializer_list>
#include <string>
#include <string_view>
#include <vector>

#include <grpcpp/grpcpp.h>

#include "server/access/caller.h"

namespace kiln::bench {

// What is wrong with an answer; empty: nothing.
using Wrong = std::string;

struct Role {
  std::string_view tenant;
  std::uint8_t scopes;  // 0: kilnd does not know its token
  unsigned clients;
  bool counted = false;  // its tenant's requests in flight are, so that any of them may be refused

  bool IsLocal() const { return tenant == "default"; }  // whoever runs kilnd, who may do everything and needs no token
  bool IsStranger() const { return scopes == 0; }
  bool May(server::Scope scope) const { return (scopes & static_cast<std::uint8_t>(scope)) != 0; }

  // Of a call for which that scope is needed, and which ends in one of these ways where it is let in.
  Wrong Judge(const grpc::Status& status, server::Scope needed, std::initializer_list<grpc::StatusCode> expected) const;
};

inline constexpr auto kRead = static_cast<std::uint8_t>(server::Scope::kRead), kCompile = static_cast<std::uint8_t>(server::Scope::kCompile),
                      kRun = static_cast<std::uint8_t>(server::Scope::kRun), kAll = std::uint8_t{31};
inline constexpr std::uint64_t kShare = std::uint64_t{4} << 20;  // of the store, of the tenant "sharing"
inline constexpr std::array kRoles = {
    Role{"default", kAll, 18}, Role{"sharing", kRead | kCompile | kRun, 6}, Role{"sharing", kRead, 4}, Role{"counted", kRead | kCompile, 3, true},
    Role{"nobody", 0, 1},
};

// Writes who is who into both files; the token of each role.
std::vector<std::string> MakeTokens(const std::filesystem::path& access, const std::filesystem::path& tokens);

}  // namespace kiln::bench
