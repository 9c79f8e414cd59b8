// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/store_directory.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <charconv>
#include <string>
#include <system_error>
#include <utility>
#include <vector>

#include "cache/try.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kAside = "kiln.db.corrupt-";
constexpr std::size_t kKeptAside = 2;

// statfs(2) f_type of file systems whose files other hosts, or the host of a virtual machine, can write.
constexpr std::array<std::uint64_t, 15> kNetworkTypes = {
    0x6969,      // NFS
    0x517b,      // SMB
    0xff534d42,  // CIFS
    0xfe534d42,  // SMB2
    0x5346414f,  // AFS
    0x01021997,  // 9P
    0x00c36400,  // Ceph
    0x0bd00bd0,  // Lustre
    0x47504653,  // GPFS
    0x19830326,  // BeeGFS
    0x65735546,  // FUSE: sshfs, GlusterFS, JuiceFS, buckets; and virtiofs
    0x7461636f,  // OCFS2
    0x01161970,  // GFS2
    0x20030528,  // OrangeFS
    0x786f4256,  // VirtualBox's shared folders
};

std::optional<std::uint64_t> StatfsType(const fs::path& path) {
  struct statfs info;
  if (::statfs(path.c_str(), &info) != 0) return std::nullopt;
  return static_cast<std::uint64_t>(info.f_type) & 0xffffffff;
}

std::unexpected<Error> FailedTo(std::string_view what, const fs::path& path, int error) {
  return Fail(error == ENOSPC || error == EDQUOT ? ErrorCode::kFull : ErrorCode::kUnreachable,
              fmt::format("cannot {} {}: {}", what, path.string(), std::generic_category().message(error)));
}

// The N of a file that SetAside made.
std::optional<std::uint64_t> AsideNumber(const fs::path& path) {
  const std::string name = path.filename().string();
  if (!name.starts_with(kAside)) return std::nullopt;
  std::uint64_t number = 0;
  const char* begin = name.data() + kAside.size();
  const auto [end, error] = std::from_chars(begin, name.data() + name.size(), number);
  if (error != std::errc() || end == begin) return std::nullopt;
  return number;
}

std::vector<std::pair<std::uint64_t, fs::path>> ListAside(const fs::path& directory) {
  std::vector<std::pair<std::uint64_t, fs::path>> aside;
  std::error_code error;
  for (fs::directory_iterator at(directory, error), end; !error && at != end; at.increment(error)) {
    if (const auto number = AsideNumber(at->path())) aside.emplace_back(*number, at->path());
  }
  return aside;
}

// Whoever can write in the directory can replace a file of the store by a symbolic link or by a database of their own. A group may write:
// in a container, the top folder of a volume belongs to its group.
std::expected<void, Error> OthersCannotWrite(const fs::path& directory) {
  struct stat status{};
  if (::stat(directory.c_str(), &status) != 0) return {};  // who opens its files says why not
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return Fail(ErrorCode::kRefused, fmt::format("{} belongs to user {}, who could replace the store; give a directory of user {}, who "
                                                 "runs this process",
                                                 directory.string(), status.st_uid, ::geteuid()));
  }
  if ((status.st_mode & S_IWOTH) != 0) {
    return Fail(ErrorCode::kRefused, fmt::format("{} can be written by everybody, who could replace the store; chmod o-w it, or give "
                                                 "another directory",
                                                 directory.string()));
  }
  return {};
}

bool IsMountedReadOnly(const fs::path& directory) {
  struct statvfs status{};
  return ::statvfs(directory.c_str(), &status) == 0 && (status.f_flag & ST_RDONLY) != 0;
}

// Opens the lock file, never through a symbolic link, and never one that has another name, since its text is replaced. Does not block on a
// FIFO. -1: there is no such file and none can be made.
std::expected<int, Error> OpenLock(const fs::path& path, bool writable) {
  const int flags = (writable ? O_RDWR | O_CREAT : O_RDONLY) | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK;
  const int lock = ::open(path.c_str(), flags, 0600);
  if (lock < 0 && errno == ENOENT && !writable) return -1;
  if (lock < 0 && errno != ELOOP) return FailedTo("open", path, errno);
  struct stat status{};
  if (lock >= 0 && ::fstat(lock, &status) == 0 && S_ISREG(status.st_mode) && (status.st_nlink <= 1 || !writable)) return lock;
  if (lock >= 0) ::close(lock);
  return Fail(ErrorCode::kRefused, fmt::format("{} is no ordinary file with one name, as the lock of a store is; remove it", path.string()));
}

// SQLite would follow a symbolic link, and make what is not there yet where it leads.
std::expected<void, Error> CheckFiles(const fs::path& directory) {
  for (const char* name : {"kiln.db", "kiln.db-wal", "kiln.db-shm", "kiln.db-journal"}) {
    std::error_code ignored;
    if (!fs::is_symlink(fs::symlink_status(directory / name, ignored))) continue;
    return Fail(ErrorCode::kRefused, fmt::format("{} is a symbolic link; put the file itself there, or remove it", (directory / name).string()));
  }
  return {};
}

// " (pid 123)", of the process that wrote its number into the lock file; empty where it has not.
std::string HolderOf(int lock) {
  std::array<char, 32> text{};
  const ssize_t size = ::pread(lock, text.data(), text.size() - 1, 0);
  std::uint64_t pid = 0;
  if (size <= 0 || std::from_chars(text.data(), text.data() + size, pid).ec != std::errc()) return {};
  return fmt::format(" (pid {})", pid);
}

void WriteHolder(int lock) {
  const std::string text = fmt::format("{}\n", ::getpid());
  // A lock without a name is still a lock.
  [[maybe_unused]] const bool named = ::ftruncate(lock, 0) == 0 && ::pwrite(lock, text.data(), text.size(), 0) > 0;
}

}  // namespace

std::expected<void, Error> MayHoldStore(const fs::path& directory, const FilesystemType& type) {
  if (auto ours = OthersCannotWrite(directory); !ours) return ours;
  const auto found = type ? type(directory) : StatfsType(directory);
  if (!found || std::ranges::find(kNetworkTypes, *found) == kNetworkTypes.end()) return {};
  return Fail(ErrorCode::kRefused, fmt::format("{} is on a network or shared file system (type {:#x}), where the store's locks and shared memory do "
                                               "not work; give a directory on a local disk",
                                               directory.string(), *found));
}

bool IsHeld(const fs::path& directory) {
  const auto lock = OpenLock(directory / "lock", false);
  if (!lock || *lock < 0) return false;
  const bool held = ::flock(*lock, LOCK_SH | LOCK_NB) != 0 && errno == EWOULDBLOCK;
  ::close(*lock);
  return held;
}

std::expected<StoreDirectory, Error> StoreDirectory::Hold(const fs::path& directory, const FilesystemType& type) {
  std::error_code error;
  // Kernels are their owners' business: nobody else may look into a directory that is made here.
  if (fs::create_directories(directory, error)) fs::permissions(directory, fs::perms::owner_all, error);
  if (error) return FailedTo("create", directory, error.value());
  if (auto may = MayHoldStore(directory, type); !may) return std::unexpected(std::move(may.error()));
  KILN_RETURN_IF_ERROR(CheckFiles(directory));
  const fs::path lock_path = directory / "lock";
  const bool writable = !IsMountedReadOnly(directory);
  KILN_ASSIGN_OR_RETURN(const int lock, OpenLock(lock_path, writable));
  if (lock >= 0 && ::flock(lock, (writable ? LOCK_EX : LOCK_SH) | LOCK_NB) != 0) {
    const int reason = errno;
    const std::string holder = HolderOf(lock);
    ::close(lock);
    if (reason != EWOULDBLOCK) return FailedTo("lock", lock_path, reason);
    return Fail(ErrorCode::kRefused, fmt::format("another process{} holds the store in {}; stop it or give another "
                                                 "directory",
                                                 holder, directory.string()));
  }
  if (writable) WriteHolder(lock);
  return StoreDirectory(directory, lock, writable);
}

StoreDirectory::~StoreDirectory() {
  if (lock_ >= 0) ::close(lock_);
}

StoreDirectory::StoreDirectory(StoreDirectory&& other) noexcept
    : directory_(std::move(other.directory_)), lock_(std::exchange(other.lock_, -1)), writable_(other.writable_) {}

std::uint64_t StoreDirectory::WalBytes() const {
  std::error_code error;
  const auto size = fs::file_size(directory_ / "kiln.db-wal", error);
  return error ? 0 : size;
}

std::expected<bool, Error> StoreDirectory::MarkOpen() {
  const fs::path mark = directory_ / "open";
  const int file = ::open(mark.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
  if (file < 0) {
    if (errno == EEXIST) return true;
    return FailedTo("create", mark, errno);
  }
  ::close(file);
  // The mark must survive the power cut that it reports.
  if (const int parent = ::open(directory_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); parent >= 0) {
    ::fsync(parent);
    ::close(parent);
  }
  return false;
}

void StoreDirectory::MarkClosed() {
  std::error_code ignored;
  fs::remove(directory_ / "open", ignored);
}

std::expected<fs::path, Error> StoreDirectory::SetAside() {
  auto aside = ListAside(directory_);
  std::uint64_t number = 1;
  for (const auto& [used, path] : aside) number = std::max(number, used + 1);
  const fs::path target = directory_ / fmt::format("{}{}", kAside, number);
  // Renames the database last: if the process dies before that, the next start finds it damaged again.
  for (const char* suffix : {"-wal", "-shm", ""}) {
    const fs::path from = database().string() + suffix;
    const fs::path to = target.string() + suffix;
    std::error_code error;
    fs::rename(from, to, error);
    if (error && error != std::errc::no_such_file_or_directory) return FailedTo("set aside", from, error.value());
  }
  for (const auto& [used, path] : aside) {
    std::error_code ignored;
    if (used + kKeptAside <= number) fs::remove(path, ignored);
  }
  return target;
}

}  // namespace kiln::cache
