// SPDX-License-Identifier: Apache-2.0
//
// CompileFlow::Fetch: entries as they are kept, for kilnds downstream.
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "server/flow/compile_flow.h"
#include "server/queue/refusals.h"

namespace kiln::server {

// That of the tenant, or nothing: whatever key is named, an entry is its tenant's alone.
void CompileFlow::Fetch(const cache::Digest& kept_under, const std::string& tenant, FetchEnd done) {
  ++parts_.metrics.counts.requests;
  const auto judge = [this, kept_under, tenant](std::optional<cache::TieredCache::Hit> hit) -> std::expected<cache::Entry, Failure> {
    if (hit && OutcomeFrom(hit->entry, tenant, v1::MEMORY, false)) {
      ++parts_.metrics.counts.hits;
      return std::move(hit->entry);
    }
    return std::unexpected(
        Failure{.kind = Failure::Kind::kNotFound, .message = fmt::format("nothing is kept under {} for this tenant", kept_under.ToHex())});
  };
  if (auto hit = parts_.cache.GetWithoutBlocking(kept_under)) return done(judge(std::move(hit)));
  auto shared = std::make_shared<FetchEnd>(std::move(done));
  const bool posted = Post(parts_.executor, tenant, [this, kept_under, tenant, judge, shared] {
    cache::Waited waited;  // of nobody: the own upstream kilnd is not asked
    auto hit = parts_.cache.Get(kept_under, waited);
    const std::size_t taken_in = hit && hit->outside ? hit->entry.sealed().size() : 0;
    auto entry = judge(std::move(hit));
    if (entry && taken_in > 0) parts_.store_keeper.Note(tenant, taken_in);
    (*shared)(std::move(entry));
  });
  if (!posted) (*shared)(std::unexpected(ExecutorFull(tenant)));
}

}  // namespace kiln::server
