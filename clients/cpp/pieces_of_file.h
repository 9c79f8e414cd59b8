// SPDX-License-Identifier: Apache-2.0
//
// What a file holds, from its beginning to its end. An error while it is read, as of a folder or a disk, is not taken for the end.
#pragma once

#include <cstdio>
#include <expected>
#include <filesystem>
#include <memory>
#include <string>

#include "clients/cpp/client.h"

namespace kiln {

class PiecesOfFile {
 public:
  explicit PiecesOfFile(const std::filesystem::path& file);

  // The next piece, of 256 KiB at most; empty: that was all.
  std::expected<void, Error> Next(std::string& piece);
  // The first piece is next again. False: what it reads, a pipe say, has no way back.
  bool Rewind() { return std::fseek(file_.get(), 0, SEEK_SET) == 0; }

 private:
  struct Close {
    void operator()(std::FILE* file) const { std::fclose(file); }
  };

  const std::string name_;
  const std::unique_ptr<std::FILE, Close> file_;
  const int open_error_;  // 0: none
};

std::expected<std::string, Error> WholeFile(const std::filesystem::path& file);
// The same before any call, whose timeout does not count yet: a named FIFO, whose writer could be waited for forever, is refused.
std::expected<std::string, Error> CredentialFile(const std::filesystem::path& file);

}  // namespace kiln
