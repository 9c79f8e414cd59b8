// SPDX-License-Identifier: Apache-2.0
//
// What `precompile` is given: programs, and manifests with the requests that were recorded.
#pragma once

#include <string>
#include <vector>

#include "clients/cli/sources.h"
#include "clients/cpp/client.h"

namespace kiln::cli {

struct Wanted {
  // Where a request of the manifest comes from.
  struct Source {
    std::string file;      // "the store": of the daemon
    std::string program;   // its name; empty: unknown
    bool refused = false;  // the compiler refused it where it was recorded
  };

  Manifest manifest;
  std::vector<Source> sources;  // one for each request
};

// Each request for each of the targets. Without any, those of manifests are for their own. The options are those of programs.
std::expected<Wanted, Error> ReadWanted(const std::vector<std::string>& files, const std::vector<std::string>& targets, const Options& options);

// Also the `count` programs of the daemon's store that were used most, of those that another build of the compiler compiled; as a manifest's.
// How many there are.
std::expected<std::size_t, Error> AddHot(Client& client, std::uint32_t count, const std::vector<std::string>& targets, const Options& options,
                                         Wanted& wanted);

}  // namespace kiln::cli
