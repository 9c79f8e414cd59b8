// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/pieces_of_file.h"

#include <linux/magic.h>
#include <sys/statfs.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

namespace kiln {
namespace {

constexpr std::size_t kPiece = 256 << 10;

std::unexpected<Error> CannotRead(const std::string& name, int error) {
  return std::unexpected(Error{.code = ErrorCode::kInvalid, .message = "cannot read " + name + ": " + std::strerror(error)});
}

}  // namespace

PiecesOfFile::PiecesOfFile(const std::filesystem::path& file)
    : name_(file.string()), file_(std::fopen(file.c_str(), "rbe")), open_error_(file_ == nullptr ? errno : 0) {}

std::expected<void, Error> PiecesOfFile::Next(std::string& piece) {
  if (file_ == nullptr) return CannotRead(name_, open_error_);
  piece.resize(kPiece);
  errno = 0;
  piece.resize(std::fread(piece.data(), 1, piece.size(), file_.get()));
  if (std::ferror(file_.get()) != 0) return CannotRead(name_, errno);
  return {};
}

std::expected<std::string, Error> WholeFile(const std::filesystem::path& file) {
  PiecesOfFile pieces(file);
  std::string whole, piece;
  for (;;) {
    if (auto read = pieces.Next(piece); !read) return std::unexpected(std::move(read.error()));
    if (piece.empty()) return whole;
    whole += piece;
  }
}

std::expected<std::string, Error> CredentialFile(const std::filesystem::path& file) {
  std::error_code error;
  struct statfs system{};
  const bool fifo = std::filesystem::is_fifo(file, error) && ::statfs(file.c_str(), &system) == 0;
  if (fifo && system.f_type != PIPEFS_MAGIC) {  // a pipe has a writer
    return std::unexpected(
        Error{.code = ErrorCode::kInvalid, .message = "cannot read " + file.string() + ": it is a FIFO; a regular file is needed"});
  }
  return WholeFile(file);
}

}  // namespace kiln
