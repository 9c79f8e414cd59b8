// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/manifest_parts.h"

#include <algorithm>
#include <numeric>

namespace kiln {
namespace {

std::size_t CeilDiv(std::size_t a, std::size_t b) { return (a + b - 1) / b; }

}  // namespace

std::vector<std::vector<std::uint32_t>> SplitManifest(const std::vector<std::size_t>& bytes, std::size_t targets, const PartLimits& limits) {
  const std::size_t most = std::max<std::size_t>(1, limits.items / std::max<std::size_t>(1, targets));
  const std::size_t all = std::accumulate(bytes.begin(), bytes.end(), std::size_t{0});
  const std::size_t stride = std::max({std::size_t{1}, CeilDiv(all, limits.bytes), CeilDiv(bytes.size(), most)});
  std::vector<std::vector<std::uint32_t>> parts(1);
  std::size_t in_part = 0;
  for (std::size_t first = 0; first < stride; ++first) {
    for (std::size_t i = first; i < bytes.size(); i += stride) {
      if (!parts.back().empty() && (in_part + bytes[i] > limits.bytes || parts.back().size() == most)) {
        parts.emplace_back();
        in_part = 0;
      }
      parts.back().push_back(static_cast<std::uint32_t>(i));
      in_part += bytes[i];
    }
  }
  return parts;
}

void ProgressOfParts::Begin(std::size_t requests) {
  before_.total += part_.total;
  before_.known += part_.known;
  before_.compiled += part_.compiled;
  before_.failed += part_.failed;
  before_.elapsed_seconds += part_.elapsed_seconds;
  part_ = {};
  in_part_ = requests;
}

EnsureProgress ProgressOfParts::Note(const EnsureProgress& part) {
  part_ = part;
  // The daemon counts a target once, however it is spelled: as many for each request in every part.
  const std::uint32_t targets = in_part_ == 0 ? 0 : part.total / static_cast<std::uint32_t>(in_part_);
  const std::uint32_t total = targets * static_cast<std::uint32_t>(requests_);
  return {.total = total,
          .known = before_.known + part.known,
          .compiled = before_.compiled + part.compiled,
          .failed = before_.failed + part.failed,
          .elapsed_seconds = before_.elapsed_seconds + part.elapsed_seconds,
          .remaining_seconds = Remaining(total)};
}

// The parts to come take as long for each item as those up to this one.
std::optional<double> ProgressOfParts::Remaining(std::uint32_t total) const {
  const std::uint32_t seen = before_.total + part_.total;
  if (!part_.remaining_seconds || seen == 0) return std::nullopt;
  const double seconds = before_.elapsed_seconds + part_.elapsed_seconds + *part_.remaining_seconds;
  return *part_.remaining_seconds + seconds * (static_cast<double>(total) - seen) / seen;
}

}  // namespace kiln
