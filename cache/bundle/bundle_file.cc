// SPDX-License-Identifier: Apache-2.0
#include "cache/bundle/bundle_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <system_error>

#include "cache/bundle/bundle_format.h"
#include "cache/entry.h"
#include "cache/little_endian.h"
#include "cache/try.h"

namespace kiln::cache {
namespace {

namespace fs = std::filesystem;

constexpr std::uint64_t kUsualHead = 4096;  // kilnd's heads are shorter

std::string Reason(int error) { return std::generic_category().message(error); }

}  // namespace

std::expected<BundleFile, Error> BundleFile::Open(const fs::path& path) {
  // Does not block on a FIFO.
  const int file = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NOFOLLOW | O_NONBLOCK);
  if (file < 0 && errno == ELOOP) return Fail(ErrorCode::kRefused, fmt::format("{} is a symbolic link; name the file itself", path.string()));
  if (file < 0) return Fail(ErrorCode::kUnreachable, fmt::format("cannot open {}: {}", path.string(), Reason(errno)));
  BundleFile bundle(path, file);
  KILN_RETURN_IF_ERROR(bundle.Check());
  return bundle;
}

BundleFile::~BundleFile() {
  if (file_ >= 0) ::close(file_);
}

std::expected<void, Error> BundleFile::Check() {
  if (::fstat(file_, &opened_) != 0) return Fail(ErrorCode::kUnreachable, fmt::format("cannot read {}: {}", path_.string(), Reason(errno)));
  if (!S_ISREG(opened_.st_mode)) return Fail(ErrorCode::kRefused, fmt::format("{} is no ordinary file", path_.string()));
  if (opened_.st_uid != ::geteuid() && opened_.st_uid != 0) {
    return Fail(ErrorCode::kRefused, fmt::format("{} belongs to user {}, who could change it; give it to root or to user {}, who runs this process",
                                                 path_.string(), opened_.st_uid, ::geteuid()));
  }
  if ((opened_.st_mode & S_IWOTH) != 0) {
    return Fail(ErrorCode::kRefused, fmt::format("{} can be written by everybody; chmod o-w it", path_.string()));
  }
  auto start = Read(0, std::min<std::uint64_t>(size(), kBundleStartSize));
  if (!start) return std::unexpected(std::move(start.error()));
  if (auto checked = CheckBundleStart(*start); !checked) {
    return Fail(checked.error().code, fmt::format("{}: {}", path_.string(), checked.error().message));
  }
  return {};
}

std::expected<std::string, Error> BundleFile::Read(std::uint64_t offset, std::uint64_t size) const {
  std::string bytes(size, '\0');
  for (std::uint64_t done = 0; done < size;) {
    const ssize_t got = ::pread(file_, bytes.data() + done, size - done, static_cast<off_t>(offset + done));
    if (got < 0 && errno == EINTR) continue;
    if (got < 0) return Fail(ErrorCode::kUnreachable, fmt::format("cannot read {}: {}", path_.string(), Reason(errno)));
    if (got == 0) return Fail(ErrorCode::kCorrupt, fmt::format("{} ends before its byte {}", path_.string(), offset + size));
    done += static_cast<std::uint64_t>(got);
  }
  return bytes;
}

BundleFile::Contents BundleFile::Index() const {
  Contents contents;
  contents.trouble = Walk(contents);
  return contents;
}

// Why it stopped before the end, if it did.
std::string BundleFile::Walk(Contents& contents) const {
  std::uint64_t at = kBundleStartSize;
  for (;;) {
    const std::uint64_t left = size() - at;
    if (left < kBundleRecordSize) return fmt::format("it ends at byte {}, before its end is marked", size());
    const auto bytes = Read(at, std::min(left, kBundleRecordSize + kUsualHead));
    if (!bytes) return bytes.error().message;
    const auto entry_size = LoadLittleEndian<std::uint64_t>(*bytes);
    if (entry_size == 0) break;
    if (entry_size > Entry::kMaxSize || entry_size > left - kBundleRecordSize) {
      return fmt::format("it claims an entry of {} bytes at byte {}, where {} are left", entry_size, at, left - kBundleRecordSize);
    }
    Note(at + kBundleRecordSize, entry_size, std::string_view(*bytes).substr(kBundleRecordSize), contents);
    at += kBundleRecordSize + entry_size;
  }
  return TroubleAtEnd(at, contents.records.size() + contents.damaged);
}

// `start`: bytes from `offset` on, of the entry and of what follows it.
void BundleFile::Note(std::uint64_t offset, std::uint64_t size, std::string_view start, Contents& contents) const {
  auto head = UnsealLeadingHead(start.substr(0, size));
  if (!head && size > start.size()) {  // it may be longer
    if (const auto more = Read(offset, std::min<std::uint64_t>(size, Entry::kMaxHeadSize))) head = UnsealLeadingHead(*more);
  }
  if (head && head->sealed_size == size) contents.records.push_back({head->key, offset, static_cast<std::uint32_t>(size)});
  else ++contents.damaged;
}

// Of all its bytes only their digest is left out, since each entry has its own.
std::string BundleFile::TroubleAtEnd(std::uint64_t at, std::uint64_t records) const {
  if (size() - at != kBundleEndSize) return fmt::format("{} bytes are left at its end, and {} are expected", size() - at, kBundleEndSize);
  const auto count = Read(at + kBundleRecordSize, sizeof(std::uint64_t));
  if (!count) return count.error().message;
  const auto marked = LoadLittleEndian<std::uint64_t>(*count);
  return marked == records ? std::string() : fmt::format("it says that it has {} entries, and has {}", marked, records);
}

bool BundleFile::IsAsOpened() const {
  struct stat now{};
  return ::fstat(file_, &now) == 0 && now.st_size == opened_.st_size && now.st_mtim.tv_sec == opened_.st_mtim.tv_sec &&
         now.st_mtim.tv_nsec == opened_.st_mtim.tv_nsec;
}

}  // namespace kiln::cache
