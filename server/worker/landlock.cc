// SPDX-License-Identifier: Apache-2.0
#include "server/worker/landlock.h"

#include <fcntl.h>
#include <linux/landlock.h>
#include <sys/stat.h>
#include <sys/syscall.h>

#include <cstdint>

namespace kiln::server {
namespace {

// Newer than Debian 12's header.
constexpr std::uint64_t kTruncate = 1ull << 14;       // version 3
constexpr std::uint64_t kDeviceControl = 1ull << 15;  // version 5
constexpr std::uint64_t kBindTcp = 1ull << 0;         // version 4
constexpr std::uint64_t kConnectTcp = 1ull << 1;
constexpr std::uint64_t kScopeAbstractSocket = 1ull << 0;  // version 6
constexpr std::uint64_t kScopeSignal = 1ull << 1;

struct Attributes {
  std::uint64_t files;
  std::uint64_t network;
  std::uint64_t scoped;
};

constexpr std::uint64_t kEveryFileRight = (1ull << 13) - 1;  // of version 1: EXECUTE to MAKE_SYM

Attributes Handled(int version) {
  Attributes handled{kEveryFileRight, 0, 0};
  if (version >= 2) handled.files |= LANDLOCK_ACCESS_FS_REFER;
  if (version >= 3) handled.files |= kTruncate;
  if (version >= 5) handled.files |= kDeviceControl;
  if (version >= 4) handled.network = kBindTcp | kConnectTcp;
  if (version >= 6) handled.scoped = kScopeAbstractSocket | kScopeSignal;
  return handled;
}

std::size_t SizeOf(int version) {
  if (version < 4) return sizeof(std::uint64_t);
  return version < 6 ? 2 * sizeof(std::uint64_t) : sizeof(Attributes);
}

void Allow(const UniqueFd& ruleset, const std::filesystem::path& path, std::uint64_t rights) {
  const UniqueFd parent(::open(path.c_str(), O_PATH | O_CLOEXEC));
  struct stat status{};
  if (!parent || ::fstat(parent.get(), &status) != 0) return;
  if (!S_ISDIR(status.st_mode)) rights &= ~static_cast<std::uint64_t>(LANDLOCK_ACCESS_FS_READ_DIR);
  landlock_path_beneath_attr rule{};
  rule.allowed_access = rights;
  rule.parent_fd = parent.get();
  ::syscall(SYS_landlock_add_rule, ruleset.get(), LANDLOCK_RULE_PATH_BENEATH, &rule, 0);
}

}  // namespace

int LandlockVersion() {
  const long version = ::syscall(SYS_landlock_create_ruleset, nullptr, 0, LANDLOCK_CREATE_RULESET_VERSION);
  return version > 0 ? static_cast<int>(version) : 0;
}

UniqueFd MakeRuleset(int version, const LandlockPaths& paths) {
  const Attributes handled = Handled(version);
  UniqueFd ruleset(static_cast<int>(::syscall(SYS_landlock_create_ruleset, &handled, SizeOf(version), 0)));
  if (!ruleset) return ruleset;
  constexpr std::uint64_t kRead = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_READ_DIR;
  for (const auto& path : paths.readable) Allow(ruleset, path, kRead);
  constexpr std::uint64_t kWrite = kRead | LANDLOCK_ACCESS_FS_WRITE_FILE | kTruncate;
  for (const auto& path : paths.writable) Allow(ruleset, path, kWrite & handled.files);
  for (const auto& path : paths.devices) {
    constexpr std::uint64_t kUse = LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_WRITE_FILE | kDeviceControl;
    Allow(ruleset, path, kUse & handled.files);
  }
  for (const auto& path : paths.executable) Allow(ruleset, path, LANDLOCK_ACCESS_FS_READ_FILE | LANDLOCK_ACCESS_FS_EXECUTE);
  return ruleset;
}

bool RestrictSelf(const UniqueFd& ruleset) { return ruleset && ::syscall(SYS_landlock_restrict_self, ruleset.get(), 0) == 0; }

}  // namespace kiln::server
