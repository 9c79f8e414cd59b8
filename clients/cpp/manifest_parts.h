// SPDX-License-Identifier: Apache-2.0
//
// A manifest larger than a message may be goes to the daemon in parts, one after the other, with one progress. Not part of the client's
// interface.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

#include "clients/cpp/client.h"

namespace kiln {

struct PartLimits {
  std::size_t bytes = std::size_t{8} << 20;  // half of what kilnd takes by default (--max-message)
  std::size_t items = 100'000;               // requests × targets, as kilnd counts them
};

// Indices into `bytes`, the sizes of a manifest's requests. Each part has requests from all over the manifest, so that the time of the
// first part is an estimate for the others. The same manifest always has the same parts, so that ranks which send it share its compiles. A
// request larger than a part is a part of its own.
std::vector<std::vector<std::uint32_t>> SplitManifest(const std::vector<std::size_t>& bytes, std::size_t targets, const PartLimits& limits = {});

// The progress of all parts together, from that of the one under way.
class ProgressOfParts {
 public:
  explicit ProgressOfParts(std::size_t requests) : requests_(requests) {}

  void Begin(std::size_t requests);  // the next part, with so many
  EnsureProgress Note(const EnsureProgress& part);

 private:
  std::optional<double> Remaining(std::uint32_t total) const;

  const std::size_t requests_;
  std::size_t in_part_ = 0;
  EnsureProgress before_;  // of the parts that have ended
  EnsureProgress part_;
};

}  // namespace kiln
