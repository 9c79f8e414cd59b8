// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/recording.h"

#include <stdlib.h>

#include <cerrno>
#include <cstring>
#include <system_error>
#include <utility>

#include "clients/cpp/manifest_file.h"
#include "clients/manifest/recorded_folder.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

Error CannotRecord(std::string why) { return {.code = ErrorCode::kInvalid, .message = "cannot record: " + std::move(why)}; }

// Of this user alone: programs may be secret.
std::expected<std::string, Error> MakeFolder() {
  std::error_code error;
  const fs::path scratch = fs::absolute(fs::temp_directory_path(error), error);
  if (error) return std::unexpected(CannotRecord("TMPDIR names no folder for temporary files"));
  std::string folder = (scratch / "kiln-record-XXXXXX").string();
  if (folder.find(':') != std::string::npos) {
    return std::unexpected(CannotRecord("a colon divides the folders of KILN_RECORD, and " + folder + " has one; set TMPDIR to another folder"));
  }
  if (::mkdtemp(folder.data()) == nullptr) return std::unexpected(CannotRecord(folder + ": " + std::strerror(errno)));
  return folder;
}

}  // namespace

std::expected<Recording, Error> Recording::Begin(fs::path file) {
  if (auto able = CheckManifestFile(file); !able) return std::unexpected(std::move(able.error()));
  auto folder = MakeFolder();
  if (!folder) return std::unexpected(std::move(folder.error()));
  return Recording(std::move(file), std::move(*folder));
}

Recording::~Recording() {
  std::error_code ignored;
  if (!folder_.empty()) fs::remove_all(folder_, ignored);
}

std::expected<std::size_t, Error> Recording::End() {
  if (folder_.empty()) return std::unexpected(CannotRecord("this recording has ended"));
  const std::string folder = std::exchange(folder_, {});
  const auto entries = ReadFolder(folder);
  if (!entries) return std::unexpected(CannotRecord(entries.error()));
  auto total = AddToManifestFile(file_, *entries);
  if (!total) {  // what was recorded is not lost with the file
    total.error().message += "; what was recorded is in " + folder + ", for `kiln manifest " + folder + " -o FILE`";
    return total;
  }
  std::error_code ignored;
  fs::remove_all(folder, ignored);
  return total;
}

}  // namespace kiln
