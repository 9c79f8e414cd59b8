// SPDX-License-Identifier: Apache-2.0
//
// The kernel's Landlock calls, which glibc does not wrap. Documentation/userspace-api/landlock.rst.
#pragma once

#include <filesystem>
#include <vector>

#include "clients/common/unique_fd.h"

namespace kiln::server {

// 0: this kernel has none.
int LandlockVersion();

struct LandlockPaths {
  std::vector<std::filesystem::path> readable;    // files and folders below these can be read
  std::vector<std::filesystem::path> writable;    // files that can be read and written, such as /dev/null, and those below folders
  std::vector<std::filesystem::path> devices;     // likewise, and take ioctl(2)
  std::vector<std::filesystem::path> executable;  // programs that can be started
};

// A ruleset that allows these and no network. Paths that do not exist are left out. Invalid where the kernel refuses.
UniqueFd MakeRuleset(int version, const LandlockPaths& paths);

// For this thread and what it starts; needs no_new_privs.
bool RestrictSelf(const UniqueFd& ruleset);

}  // namespace kiln::server
