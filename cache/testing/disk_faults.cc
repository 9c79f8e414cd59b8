// SPDX-License-Identifier: Apache-2.0
#include "cache/testing/disk_faults.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <string>

namespace kiln::cache::testing {
namespace {

DiskFaults own;

}  // namespace

DiskFaults* disk_faults = &own;

namespace {

bool Fails(std::string_view path) {
  const std::string_view below = disk_faults->below.data();
  if (!path.starts_with(below)) return false;
  const std::int64_t call = ++disk_faults->calls;
  if (call < disk_faults->first || call > disk_faults->last) return false;
  ++disk_faults->failed;
  errno = static_cast<int>(disk_faults->error);
  return true;
}

// Where nothing is armed, as in most of a process's life, no path is asked for.
bool FileFails(int file) {
  if (disk_faults->first == 0) return false;
  std::array<char, 4096> path{};
  const std::string link = "/proc/self/fd/" + std::to_string(file);
  const int before = errno;
  const ssize_t size = ::readlink(link.c_str(), path.data(), path.size());
  errno = before;
  return size > 0 && Fails(std::string_view(path.data(), static_cast<std::size_t>(size)));
}

bool PathFails(const char* path) { return disk_faults->first != 0 && Fails(path); }

bool MakingFails(const char* path, bool makes) { return disk_faults->first != 0 && makes && ::access(path, F_OK) != 0 && Fails(path); }

// What a write that fails has written nevertheless: half of it, where it is the first on a disk that is full from here on. Its caller tries the
// rest again, which then fails whole.
std::size_t BeforeFailure(std::size_t size) {
  return disk_faults->error == ENOSPC && disk_faults->failed == 1 && disk_faults->last > disk_faults->first ? size / 2 : 0;
}

ssize_t WriteAt(int file, const void* bytes, std::size_t size, off_t offset) {
  if (!FileFails(file)) return ::syscall(SYS_pwrite64, file, bytes, size, offset);
  const std::size_t half = BeforeFailure(size);
  return half > 0 ? ::syscall(SYS_pwrite64, file, bytes, half, offset) : -1;
}

int Open(const char* path, int flags, mode_t mode) {
  if (MakingFails(path, (flags & O_CREAT) != 0)) return -1;
  return static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path, flags, mode));
}

FILE* OpenStream(const char* name, const char* path, const char* mode) {
  if (MakingFails(path, *mode != 'r')) return nullptr;
  using Function = FILE* (*)(const char*, const char*);
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name))(path, mode);
}

}  // namespace
}  // namespace kiln::cache::testing

namespace faults = kiln::cache::testing;

extern "C" {

ssize_t write(int file, const void* bytes, size_t size) {
  if (!faults::FileFails(file)) return ::syscall(SYS_write, file, bytes, size);
  const std::size_t half = faults::BeforeFailure(size);
  return half > 0 ? ::syscall(SYS_write, file, bytes, half) : -1;
}
ssize_t writev(int file, const iovec* parts, int count) { return faults::FileFails(file) ? -1 : ::syscall(SYS_writev, file, parts, count); }
ssize_t pwrite(int file, const void* bytes, size_t size, off_t offset) { return faults::WriteAt(file, bytes, size, offset); }
ssize_t pwrite64(int file, const void* bytes, size_t size, off64_t offset) { return faults::WriteAt(file, bytes, size, offset); }

int ftruncate(int file, off_t size) noexcept { return faults::FileFails(file) ? -1 : static_cast<int>(::syscall(SYS_ftruncate, file, size)); }
int ftruncate64(int file, off64_t size) noexcept { return ftruncate(file, size); }
int fsync(int file) { return faults::FileFails(file) ? -1 : 0; }
int fdatasync(int file) { return faults::FileFails(file) ? -1 : 0; }

int rename(const char* from, const char* to) noexcept {
  return faults::PathFails(from) ? -1 : static_cast<int>(::syscall(SYS_renameat2, AT_FDCWD, from, AT_FDCWD, to, 0));
}
int mkdir(const char* path, mode_t mode) noexcept {
  return faults::MakingFails(path, true) ? -1 : static_cast<int>(::syscall(SYS_mkdirat, AT_FDCWD, path, mode));
}

int open(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return faults::Open(path, flags, mode);
}
int open64(const char* path, int flags, ...) {
  va_list rest;
  va_start(rest, flags);
  const mode_t mode = va_arg(rest, mode_t);
  va_end(rest);
  return faults::Open(path, flags, mode);
}
FILE* fopen(const char* path, const char* mode) { return faults::OpenStream("fopen", path, mode); }
FILE* fopen64(const char* path, const char* mode) { return faults::OpenStream("fopen64", path, mode); }

}  // extern "C"
