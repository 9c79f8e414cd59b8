// SPDX-License-Identifier: Apache-2.0
//
// What a client of a recording notes. Not part of the client's interface.
#pragma once

#include <expected>
#include <filesystem>
#include <string>
#include <string_view>
#include <vector>

#include "clients/cpp/client.h"
#include "kiln/v1/compile.pb.h"

namespace kiln {

class Recorder {
 public:
  // Folders, with colons between them; empty: nothing is noted.
  explicit Recorder(std::string_view folders);

  bool active() const { return !folders_.empty(); }
  std::expected<void, Error> Note(const v1::CompileRequest& request) const;
  // For each of the targets; without any, for the request's own.
  std::expected<void, Error> NoteFor(const std::vector<std::string>& targets, const v1::CompileRequest& request) const;
  // That the compiler refused it, if the error says so.
  std::expected<void, Error> NoteEnd(const v1::CompileRequest& request, const Error& error) const;

  // Notes the request before it is made, so that a process that ends meanwhile has it noted.
  template <class Call>
  auto Around(const v1::CompileRequest& request, const Call& call) const -> decltype(call()) {
    if (auto noted = Note(request); !noted) return std::unexpected(std::move(noted.error()));
    auto result = call();
    if (result) return result;
    if (auto noted = NoteEnd(request, result.error()); !noted) return std::unexpected(std::move(noted.error()));
    return result;
  }

 private:
  std::vector<std::filesystem::path> folders_;
};

}  // namespace kiln
