// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/replaced_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <optional>
#include <random>
#include <system_error>
#include <utility>

namespace kiln {
namespace {

namespace fs = std::filesystem;

// The path that the last link names; a file of that name need not exist. Empty where the links do not tell, for instance /dev/stdout's if
// the file was removed.
std::optional<fs::path> EndOfLinks(fs::path path, const fs::file_status& status) {
  constexpr int kMostLinks = 40;  // as Linux
  const fs::path given = path;
  std::error_code error;
  for (int i = 0; i < kMostLinks && fs::is_symlink(fs::symlink_status(path, error)); ++i) {
    path = path.parent_path() / fs::read_symlink(path, error);
    if (error) return std::nullopt;
  }
  const bool same = !fs::exists(status) || fs::equivalent(given, path, error);
  return same ? std::optional(path) : std::nullopt;
}

// A file of a name that nobody else has. mkstemp's would not have the mode that the umask leaves.
std::expected<fs::path, std::string> MakePart(const fs::path& target) {
  std::random_device random;
  for (;;) {
    fs::path part = target.parent_path() / (".kiln-" + std::to_string(random()) + std::to_string(random()) + ".partial");
    const int file = ::open(part.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (file < 0 && errno == EEXIST) continue;
    if (file < 0) return std::unexpected(std::strerror(errno));
    ::close(file);
    return part;
  }
}

}  // namespace

ReplacedFile::ReplacedFile(fs::path file) : file_(std::move(file)) {}

ReplacedFile::~ReplacedFile() {
  std::error_code ignored;
  if (!part_.empty()) fs::remove(part_, ignored);
}

Error ReplacedFile::CannotWrite(const std::string& why) const {
  return {.code = ErrorCode::kInvalid, .message = "cannot write " + file_.string() + ": " + why};
}

std::expected<void, Error> ReplacedFile::Open() {
  std::error_code error;
  const fs::file_status status = fs::status(file_, error);
  if (!fs::status_known(status)) return std::unexpected(CannotWrite(error.message()));
  const bool replaces = !fs::exists(status) || fs::is_regular_file(status);
  if (const auto target = replaces ? EndOfLinks(file_, status) : std::nullopt) {
    auto part = MakePart(*target);
    if (!part) return std::unexpected(CannotWrite(part.error()));
    target_ = *target;
    part_ = std::move(*part);
    if (fs::exists(status)) mode_ = status.permissions();
  }
  errno = 0;
  out_.open(part_.empty() ? file_ : part_, std::ios::binary | std::ios::trunc);
  if (!out_) return std::unexpected(CannotWrite(std::strerror(errno)));
  return {};
}

std::expected<void, Error> ReplacedFile::Keep() {
  out_.close();
  if (out_.fail()) return std::unexpected(CannotWrite("not all of it; is there room?"));
  if (part_.empty()) return {};
  std::error_code error;
  if (mode_) fs::permissions(part_, *mode_, error);
  fs::rename(part_, target_, error);
  if (error) return std::unexpected(CannotWrite(error.message()));
  part_.clear();
  return {};
}

}  // namespace kiln
