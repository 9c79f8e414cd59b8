// SPDX-License-Identifier: Apache-2.0
#include "server/worker/read_only_files.h"

#include <fcntl.h>
#include <linux/capability.h>
#include <linux/mount.h>
#include <sched.h>
#include <sys/prctl.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <array>
#include <cerrno>
#include <cstdint>
#include <fstream>
#include <sstream>
#include <string>
#include <utility>

#include <fmt/format.h>

#include "clients/common/unique_fd.h"

namespace kiln::server {
namespace {

// Constants of <sys/mount.h>, which cannot be included together with <linux/mount.h>.
constexpr unsigned long kReadOnly = 1, kNoSuid = 2, kNoDevices = 4, kNoPrograms = 8, kRemount = 32, kNoTimes = 1024, kNoFolderTimes = 2048,
                        kBind = 4096, kRecursive = 16384, kPrivate = 1 << 18, kRelativeTimes = 1 << 21;

int Mount(const char* path, unsigned long flags) { return static_cast<int>(::syscall(SYS_mount, nullptr, path, nullptr, flags, nullptr)); }

bool WriteTo(const char* path, const std::string& text) {
  const UniqueFd file(::open(path, O_WRONLY | O_CLOEXEC));
  return file && ::write(file.get(), text.data(), text.size()) == static_cast<ssize_t>(text.size());
}

// What it gives lasts until DropCapabilities.
bool EnterUserNamespace() { return ::unshare(CLONE_NEWUSER | CLONE_NEWNS) == 0; }

// Maps the user and the group to themselves in the new namespace.
bool KeepUser(uid_t user, gid_t group) {
  ::prctl(PR_SET_DUMPABLE, 1, 0, 0, 0);  // or /proc/self is not its own
  return WriteTo("/proc/self/setgroups", "deny") && WriteTo("/proc/self/uid_map", fmt::format("{0} {0} 1", user)) &&
         WriteTo("/proc/self/gid_map", fmt::format("{0} {0} 1", group));
}

void DropCapabilities() {
  __user_cap_header_struct header{_LINUX_CAPABILITY_VERSION_3, 0};
  const std::array<__user_cap_data_struct, 2> none{};
  ::syscall(SYS_capset, &header, none.data());
}

// Without mount_setattr(2), before Linux 5.12: one mount after the other.

// As /proc/self/mountinfo writes paths: \040 for a space.
std::string Unescaped(const std::string& text) {
  std::string path;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const bool escaped = text[i] == '\\' && i + 3 < text.size();
    path += escaped ? static_cast<char>(std::stoi(text.substr(i + 1, 3), nullptr, 8)) : text[i];
    if (escaped) i += 3;
  }
  return path;
}

// The flags that a user namespace may not clear.
unsigned long LockedFlags(unsigned long flags) {
  unsigned long locked = 0;
  for (const auto& [given, flag] : {std::pair<unsigned long, unsigned long>{ST_NOSUID, kNoSuid},
                                    {ST_NODEV, kNoDevices},
                                    {ST_NOEXEC, kNoPrograms},
                                    {ST_NOATIME, kNoTimes},
                                    {ST_NODIRATIME, kNoFolderTimes},
                                    {ST_RELATIME, kRelativeTimes}}) {
    if ((flags & given) != 0) locked |= flag;
  }
  return locked;
}

bool IsReadOnly(const char* path) {
  struct statvfs status{};
  return ::statvfs(path, &status) == 0 && (status.f_flag & ST_RDONLY) != 0;
}

bool RemountEach() {
  std::ifstream mounts("/proc/self/mountinfo");
  for (std::string line; std::getline(mounts, line);) {
    std::istringstream words(line);
    std::string id, parent, device, root, place;
    words >> id >> parent >> device >> root >> place;
    const std::string path = Unescaped(place);
    struct statvfs status{};
    if (::statvfs(path.c_str(), &status) != 0) continue;  // below another mount, or where this user cannot go
    if ((status.f_flag & ST_RDONLY) == 0 && Mount(path.c_str(), kRemount | kBind | kReadOnly | LockedFlags(status.f_flag)) != 0) return false;
  }
  return IsReadOnly("/");
}

bool RemountAll() {
  mount_attr attributes{};
  attributes.attr_set = MOUNT_ATTR_RDONLY;
  if (::syscall(SYS_mount_setattr, AT_FDCWD, "/", AT_RECURSIVE, &attributes, sizeof attributes) == 0) return true;
  return errno == ENOSYS && RemountEach();
}

}  // namespace

bool MakeFilesReadOnly() {
  const uid_t user = ::geteuid();
  const gid_t group = ::getegid();
  const bool root = user == 0;
  if (root ? ::unshare(CLONE_NEWNS) != 0 : !EnterUserNamespace()) return false;
  const bool done = (root || KeepUser(user, group)) && Mount("/", kRecursive | kPrivate) == 0 && RemountAll();
  if (!root) DropCapabilities();
  return done;
}

}  // namespace kiln::server
