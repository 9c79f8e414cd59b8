// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/soak_roles.h"

#include <algorithm>
#include <fstream>
#include <stdexcept>

#include <fmt/format.h>

#include "server/access/tokens.h"

namespace kiln::bench {

Wrong Role::Judge(const grpc::Status& status, server::Scope needed, std::initializer_list<grpc::StatusCode> expected) const {
  const grpc::StatusCode code = status.error_code();
  bool right = std::ranges::find(expected, code) != expected.end() || (counted && code == grpc::StatusCode::RESOURCE_EXHAUSTED);
  if (IsStranger()) {
    right = code == grpc::StatusCode::UNAUTHENTICATED;
  } else if (!May(needed)) {
    right = code == grpc::StatusCode::PERMISSION_DENIED;
  }
  return right ? "" : fmt::format("status {} {}", static_cast<int>(code), status.error_message());
}

std::vector<std::string> MakeTokens(const std::filesystem::path& access, const std::filesystem::path& tokens) {
  std::ofstream(access) << fmt::format("[[tenant]]\nname = \"sharing\"\nstore-bytes = {}\n[[tenant]]\nname = \"counted\"\nrequests = 2\n", kShare);
  std::filesystem::permissions(access, std::filesystem::perms::owner_read | std::filesystem::perms::owner_write);
  std::vector<std::string> secrets;
  std::vector<server::Token> rows;
  for (const Role& role : kRoles) {
    secrets.push_back(role.IsLocal() ? "" : server::NewSecret());
    if (!role.IsLocal() && !role.IsStranger()) {
      rows.push_back({fmt::format("role-{}", rows.size()), std::string(role.tenant), role.scopes, server::HashToken(secrets.back()), {}});
    }
  }
  std::filesystem::create_directories(tokens.parent_path());
  if (const auto written = server::WriteTokens(tokens, rows); !written) throw std::runtime_error(written.error());
  return secrets;
}

}  // namespace kiln::bench
