// SPDX-License-Identifier: Apache-2.0
//
// kiln::Recording: a manifest of what clients ask for, for `kiln precompile` on another machine.
//
//   auto recording = kiln::Recording::Begin("engine.manifest");
//   auto client = kiln::Client::Connect({.record = recording->folder()});
//   …
//   auto ended = recording->End();
//
// Clients note each request before they make it: it need not succeed, and no GPU need be there. `kiln record` has the same done by every client
// below a command, through the variable KILN_RECORD.
#pragma once

#include <expected>
#include <filesystem>
#include <string>

#include "clients/cpp/client.h"

namespace kiln {

class Recording {
 public:
  // Fails where the file is there and no manifest, or cannot be written.
  static std::expected<Recording, Error> Begin(std::filesystem::path file);
  ~Recording();  // what was recorded is dropped, unless End was called
  Recording(Recording&&) noexcept = default;
  Recording& operator=(Recording&&) = delete;

  // For ConnectOptions::record, and for the KILN_RECORD of children. It is gone once the recording ends.
  const std::string& folder() const { return folder_; }

  // Adds what was recorded to the file, which keeps its form; what it held before stays. Returns how many requests it has now.
  std::expected<std::size_t, Error> End();

 private:
  Recording(std::filesystem::path file, std::string folder) : file_(std::move(file)), folder_(std::move(folder)) {}

  std::filesystem::path file_;
  std::string folder_;  // empty: ended
};

}  // namespace kiln
