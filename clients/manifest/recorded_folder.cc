// SPDX-License-Identifier: Apache-2.0
#include "clients/manifest/recorded_folder.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>
#include <random>
#include <sstream>
#include <string_view>
#include <system_error>

#include <fmt/format.h>

#include "cache/digest.h"
#include "clients/common/unique_fd.h"
#include "clients/manifest/manifest.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kRefusedSuffix = ".refused";

std::string NameOf(std::string_view bytes) { return cache::Sha256(bytes).ToHex(); }

bool WriteAll(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t wrote = ::write(fd, bytes.data(), bytes.size());
    if (wrote < 0 && errno == EINTR) continue;
    if (wrote <= 0) return false;
    bytes.remove_prefix(static_cast<std::size_t>(wrote));
  }
  return true;
}

// False with errno.
bool WriteFile(const fs::path& part, const fs::path& name, std::string_view bytes) {
  UniqueFd file(::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0600));
  if (!file) return false;
  if (WriteAll(file.get(), bytes) && ::rename(part.c_str(), name.c_str()) == 0) return true;
  const int error = errno;
  ::unlink(part.c_str());
  errno = error;
  return false;
}

std::expected<void, std::string> Keep(const fs::path& folder, const std::string& name, std::string_view bytes) {
  if (::access((folder / name).c_str(), F_OK) == 0) return {};
  std::random_device random;
  const fs::path part = folder / fmt::format(".{}-{}{}", ::getpid(), random(), random());
  if (WriteFile(part, folder / name, bytes) || errno == ENOENT) return {};
  return std::unexpected(fmt::format("cannot record into {} (KILN_RECORD): {}", folder.string(), std::strerror(errno)));
}

}  // namespace

std::expected<void, std::string> NoteRequest(const fs::path& folder, const v1::CompileRequest& request) {
  if (request.has_explain()) return {};
  const std::string bytes = AsRecorded(request).SerializeAsString();
  return Keep(folder, NameOf(bytes), bytes);
}

std::expected<void, std::string> NoteRefusal(const fs::path& folder, const v1::CompileRequest& request) {
  if (request.has_explain()) return {};
  return Keep(folder, NameOf(AsRecorded(request).SerializeAsString()).append(kRefusedSuffix), {});
}

std::expected<std::vector<v1::ManifestEntry>, std::string> ReadFolder(const fs::path& folder) {
  std::vector<v1::ManifestEntry> entries;
  std::error_code error;
  for (fs::directory_iterator at(folder, error), end; !error && at != end; at.increment(error)) {
    const std::string name = at->path().filename().string();
    if (name.starts_with('.') || name.ends_with(kRefusedSuffix)) continue;
    std::ostringstream bytes;
    bytes << std::ifstream(at->path(), std::ios::binary).rdbuf();
    v1::ManifestEntry entry;
    if (NameOf(bytes.view()) != name || !entry.mutable_request()->ParseFromString(bytes.str())) {
      return std::unexpected(fmt::format("{} is no request that a client recorded", at->path().string()));
    }
    entry.set_refused(::access((folder / name).concat(kRefusedSuffix).c_str(), F_OK) == 0);
    entries.push_back(std::move(entry));
  }
  if (error) return std::unexpected(fmt::format("cannot read {}: {}", folder.string(), error.message()));
  return entries;
}

}  // namespace kiln
