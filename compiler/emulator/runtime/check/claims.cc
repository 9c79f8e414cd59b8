// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/check/claims.h"

#include <algorithm>
#include <string>

#include "compiler/emulator/runtime/block.h"
#include "compiler/emulator/runtime/place.h"

namespace kiln::emulator {

void Claims::Clear() {
  claims_.clear();
  came_.clear();
  within_.assign(within_.size(), false);
}

bool Claims::Begin(uint32_t thread, uint32_t threads, uint32_t site, uint32_t location) {
  std::vector<uint32_t>& came = came_[site];
  came.resize(current_.size());
  const auto [claim, first] = claims_.try_emplace({site, came[thread]++}, Claim{location, thread, threads});
  current_[thread] = claim;
  within_[thread] = true;
  return first;
}

void Claims::Add(uint32_t thread, const std::byte* data, uint32_t bytes, bool shared) {
  current_[thread]->second.elements.push_back({data, bytes, shared});
}

void Claims::Wrote(uint32_t thread, const std::byte* data, uint32_t bytes) {
  if (!within_[thread]) return;
  Claim& claim = current_[thread]->second;
  if (!claim.sorted) std::ranges::sort(claim.elements, {}, &Element::data);
  claim.sorted = true;
  for (auto element = std::ranges::lower_bound(claim.elements, data, {}, &Element::data);
       element != claim.elements.end() && element->data < data + bytes; ++element) {
    element->written = true;
  }
}

void Claims::End(uint32_t thread) {
  const auto claim = current_[thread];
  within_[thread] = false;
  if (++claim->second.ended < claim->second.threads) return;
  Look(claim->second);
  claims_.erase(claim);
}

void Claims::Finish() {
  for (const auto& [key, claim] : claims_) Look(claim);
  Clear();
}

void Claims::Look(const Claim& claim) {
  const auto missing = std::ranges::count(claim.elements, false, &Element::written);
  const About about{claim.thread, claim.location};
  if (missing == 0 || !block_.Wants(FindingKind::kUnwritten, about)) return;
  const Element& first = *std::ranges::find(claim.elements, false, &Element::written);
  NamedPlace at =
      first.shared ? SharedPlace(block_, uint64_t(first.data - block_.shared()), block_, claim.location) : block_.grid().shadow->NameOf(first.data);
  block_.Add(FindingKind::kUnwritten, about,
             "no thread of block " + block_.IndexName() + " writes " + at.text +
                 (missing > 1 ? ", nor " + std::to_string(missing - 1) + " more of the " + std::to_string(claim.elements.size()) + " elements" : "") +
                 " that the statement says it writes",
             std::move(at.place));
}

}  // namespace kiln::emulator
