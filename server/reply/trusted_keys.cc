// SPDX-License-Identifier: Apache-2.0
#include "server/reply/trusted_keys.h"

#include <fstream>
#include <sstream>

#include <fmt/format.h>

#include "clients/common/seal.h"

namespace kiln::server {

std::expected<std::vector<cache::PublicKey>, std::string> ReadTrustedKeys(const std::filesystem::path& path) {
  std::ostringstream text;
  std::ifstream file(path, std::ios::binary);
  text << file.rdbuf();
  if (!file) return std::unexpected(fmt::format("cannot read {} (--trusted-keys)", path.string()));
  auto keys = ParseTrustedKeys(text.view());
  if (!keys) return std::unexpected(fmt::format("{}, {}", path.string(), keys.error()));
  return keys;
}

}  // namespace kiln::server
