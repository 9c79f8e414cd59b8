// SPDX-License-Identifier: Apache-2.0
#include "server/reply/trusted_keys.h"

#include <fmt/format.h>

#include "clients/common/seal.h"
#include "server/system/guarded_file.h"

namespace kiln::server {

std::expected<std::vector<cache::PublicKey>, std::string> ReadTrustedKeys(const std::filesystem::path& path) {
  const auto text = ReadOrdinary(path);
  if (!text) return std::unexpected(fmt::format("{} (--trusted-keys)", text.error()));
  auto keys = ParseTrustedKeys(*text);
  if (!keys) return std::unexpected(fmt::format("{}, {}", path.string(), keys.error()));
  return keys;
}

}  // namespace kiln::server
