// SPDX-License-Identifier: Apache-2.0
//
// A file that takes its name once it is complete. Until then the old file of that name stays, and nobody else writes into the new one. If
// the name is a link, the file takes the name that the link leads to. A pipe or a terminal is written at once.
#pragma once

#include <expected>
#include <filesystem>
#include <fstream>
#include <optional>
#include <string>
#include <string_view>

#include "clients/cpp/client.h"

namespace kiln {

class ReplacedFile {
 public:
  explicit ReplacedFile(std::filesystem::path file);
  ~ReplacedFile();  // what was not kept is gone
  ReplacedFile(const ReplacedFile&) = delete;
  ReplacedFile& operator=(const ReplacedFile&) = delete;

  std::expected<void, Error> Open();
  void Write(std::string_view bytes) { out_ << bytes; }
  // Also says that not everything could be written.
  std::expected<void, Error> Keep();

 private:
  Error CannotWrite(const std::string& why) const;

  const std::filesystem::path file_;            // as it was named, for errors
  std::filesystem::path target_;                // where its links lead
  std::filesystem::path part_;                  // beside that; empty: `file_` is no file
  std::optional<std::filesystem::perms> mode_;  // that it had
  std::ofstream out_;
};

}  // namespace kiln
