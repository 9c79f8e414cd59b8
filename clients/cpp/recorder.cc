// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/recorder.h"

#include <algorithm>
#include <utility>

#include "clients/manifest/recorded_folder.h"

namespace kiln {
namespace {

Error CannotRecord(std::string why) { return {.code = ErrorCode::kInvalid, .message = std::move(why)}; }

// The compiler's word on the program and its target: a lack of rights, for instance, comes without diagnostics.
bool IsRefusal(const Error& error) {
  return (error.code == ErrorCode::kInvalid || error.code == ErrorCode::kUnsupported) && !error.diagnostics.empty();
}

}  // namespace

Recorder::Recorder(std::string_view folders) {
  while (!folders.empty()) {
    const std::size_t end = std::min(folders.find(':'), folders.size());
    if (end > 0) folders_.emplace_back(folders.substr(0, end));
    folders.remove_prefix(std::min(end + 1, folders.size()));
  }
}

std::expected<void, Error> Recorder::Note(const v1::CompileRequest& request) const {
  for (const std::filesystem::path& folder : folders_) {
    if (auto noted = NoteRequest(folder, request); !noted) return std::unexpected(CannotRecord(std::move(noted.error())));
  }
  return {};
}

std::expected<void, Error> Recorder::NoteFor(const std::vector<std::string>& targets, const v1::CompileRequest& request) const {
  if (targets.empty() || !active()) return Note(request);
  v1::CompileRequest other = request;
  for (const std::string& target : targets) {
    other.set_target(target);
    if (auto noted = Note(other); !noted) return noted;
  }
  return {};
}

std::expected<void, Error> Recorder::NoteEnd(const v1::CompileRequest& request, const Error& error) const {
  if (!IsRefusal(error)) return {};
  for (const std::filesystem::path& folder : folders_) {
    if (auto noted = NoteRefusal(folder, request); !noted) return std::unexpected(CannotRecord(std::move(noted.error())));
  }
  return {};
}

}  // namespace kiln
