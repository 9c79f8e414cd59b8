// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/manifest_file.h"

#include <fcntl.h>
#include <sys/file.h>

#include <algorithm>
#include <iterator>
#include <system_error>
#include <utility>

#include "clients/common/unique_fd.h"
#include "clients/cpp/pieces_of_file.h"
#include "clients/cpp/replaced_file.h"
#include "clients/manifest/recorded_folder.h"

namespace kiln {
namespace {

namespace fs = std::filesystem;

struct Held {
  std::vector<v1::ManifestEntry> entries;
  ManifestForm form = ManifestForm::kBinary;
};

Error Bad(const fs::path& file, const std::string& why) { return {.code = ErrorCode::kInvalid, .message = file.string() + ": " + why}; }

std::expected<Held, Error> ReadForms(const fs::path& file) {
  const auto bytes = WholeFile(file);
  if (!bytes) return std::unexpected(bytes.error());
  auto manifest = ReadManifest(*bytes);
  if (!manifest) return std::unexpected(Bad(file, manifest.error()));
  auto& entries = *manifest->mutable_entries();
  return Held{{std::make_move_iterator(entries.begin()), std::make_move_iterator(entries.end())}, FormOfManifest(*bytes)};
}

// Nothing of a file that is not there, or is a pipe or a terminal.
std::expected<Held, Error> ReadIfThere(const fs::path& file) {
  std::error_code error;
  if (!fs::is_regular_file(file, error)) return Held{};
  return ReadForms(file);
}

}  // namespace

std::expected<std::vector<v1::ManifestEntry>, Error> ReadManifestFile(const fs::path& file) {
  std::error_code error;
  if (fs::is_directory(file, error)) {
    auto entries = ReadFolder(file);
    if (!entries) return std::unexpected(Bad(file, entries.error()));
    return std::move(*entries);
  }
  auto held = ReadForms(file);
  if (!held) return std::unexpected(std::move(held.error()));
  return std::move(held->entries);
}

std::expected<void, Error> CheckManifestFile(const fs::path& file) {
  if (const auto held = ReadIfThere(file); !held) return std::unexpected(held.error());
  return ReplacedFile(file).Open();
}

std::expected<std::size_t, Error> AddToManifestFile(const fs::path& file, std::vector<v1::ManifestEntry> entries) {
  const fs::path folder = file.has_parent_path() ? file.parent_path() : fs::path(".");
  const UniqueFd lock(::open(folder.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (lock) ::flock(lock.get(), LOCK_EX);
  auto held = ReadIfThere(file);
  if (!held) return std::unexpected(std::move(held.error()));
  std::ranges::move(held->entries, std::back_inserter(entries));
  const v1::Manifest manifest = MakeManifest(entries);
  if (auto written = WriteManifestFile(file, manifest, held->form); !written) return std::unexpected(std::move(written.error()));
  return static_cast<std::size_t>(manifest.entries_size());
}

std::expected<void, Error> WriteManifestFile(const fs::path& file, const v1::Manifest& manifest, ManifestForm form) {
  ReplacedFile out(file);
  if (auto opened = out.Open(); !opened) return opened;
  out.Write(WriteManifest(manifest, form));
  return out.Keep();
}

}  // namespace kiln
