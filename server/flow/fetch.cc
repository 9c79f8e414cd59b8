// SPDX-License-Identifier: Apache-2.0
//
// CompileFlow::Fetch: entries as they are kept, for kilnds downstream.
#include <memory>
#include <utility>

#include <fmt/format.h>

#include "server/flow/compile_flow.h"
#include "server/queue/refusals.h"
#include "server/reply/tune_record.h"

namespace kiln::server {

// That of the tenant, or nothing: whatever key is named, an entry is its tenant's alone. Only this host's own tiers are asked: whoever asks waits
// for its own --tier-timeout, and leaves alone a kilnd that is late. It is not to be late because of a store that may take longer.
void CompileFlow::Fetch(const cache::Digest& kept_under, const std::string& tenant, FetchEnd done) {
  ++parts_.metrics.counts.requests;
  const auto judge = [this, kept_under, tenant](std::optional<cache::TieredCache::Hit> hit) -> std::expected<cache::Entry, Failure> {
    if (hit && (OutcomeFrom(hit->entry, tenant, v1::MEMORY, false) || TuneRecordFrom(hit->entry, tenant))) {
      ++parts_.metrics.counts.hits;
      return std::move(hit->entry);
    }
    return std::unexpected(
        Failure{.kind = Failure::Kind::kNotFound, .message = fmt::format("nothing is kept under {} for this tenant", kept_under.ToHex())});
  };
  if (auto hit = parts_.cache.GetWithoutBlocking(kept_under)) return done(judge(std::move(hit)));
  auto shared = std::make_shared<FetchEnd>(std::move(done));
  const bool posted = Post(parts_.executor, tenant, [this, kept_under, tenant, judge, shared] { (*shared)(judge(parts_.cache.GetOwn(kept_under))); });
  if (!posted) (*shared)(std::unexpected(ExecutorFull(tenant)));
}

}  // namespace kiln::server
