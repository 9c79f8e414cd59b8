// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <list>
#include <memory>
#include <string>
#include <string_view>
#include <utility>

#include "cache/digest.h"

namespace kiln::server {

// Identifies a loaded program: its own bytes. The key in a reply names only what was asked for, and somebody may have put another artifact
// under it.
inline std::string LoadedUnder(std::string_view reply) { return std::string(cache::Hasher().Update(reply).Finish().view()); }

// The few programs that a device worker used last.
template <class Program, std::size_t kMost = 8>
class LoadedPrograms {
 public:
  // Null where it is not known.
  Program* Find(const std::string& key) {
    for (auto at = programs_.begin(); at != programs_.end(); ++at) {
      if (at->first != key) continue;
      programs_.splice(programs_.begin(), programs_, at);
      return at->second.get();
    }
    return nullptr;
  }

  Program* Add(std::string key, std::unique_ptr<Program> program) {
    if (programs_.size() == kMost) programs_.pop_back();
    programs_.emplace_front(std::move(key), std::move(program));
    return programs_.front().second.get();
  }

 private:
  std::list<std::pair<std::string, std::unique_ptr<Program>>> programs_;
};

}  // namespace kiln::server
