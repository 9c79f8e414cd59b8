// SPDX-License-Identifier: Apache-2.0
#include "server/flow/rank_memory.h"

#include <chrono>
#include <map>
#include <utility>

#include <fmt/format.h>
#include <grpcpp/support/status.h>

#include "server/reply/tenant_key.h"
#include "server/reply/tune_record.h"

namespace kiln::server {

std::expected<cache::Digest, Failure> RankMemory::KeyOf(const v1::RankRequest& request) const {
  v1::CompileRequest first = request.candidates(0);
  first.clear_explain();
  const auto program = parts_.compile.KeysOf(first);
  if (!program) return std::unexpected(program.error());
  cache::Hasher key;
  key.Update("kiln ranking 1\n").Update(program->result.view()).Update(cache::Sha256(request.space()).view());
  const v1::EstimateOptions& options = request.options();
  key.Update(cache::Sha256(options.board()).view());
  for (const auto& [name, value] : std::map<std::string, std::int64_t>(options.symbols().begin(), options.symbols().end())) {  // in one order
    key.Update(cache::Sha256(name).view()).Update(fmt::format("{}\n", value));
  }
  for (const v1::EstimateArgument& argument : options.arguments()) key.Update(cache::Sha256(argument.SerializeAsString()).view());
  return key.Finish();
}

std::optional<v1::RankProgress> RankMemory::Find(const std::string& tenant, const cache::Digest& key) const {
  cache::Waited waited{.asker = tenant};
  const auto hit = parts_.cache.Get(KeptUnder(tenant, key), waited);
  if (!hit) return std::nullopt;
  const auto record = TuneRecordFrom(hit->entry, tenant);
  if (!record) return std::nullopt;
  if (hit->outside) parts_.store_keeper.Note(tenant, hit->entry.sealed().size());
  v1::RankProgress known;
  known.set_known(true);
  for (const v1::TuneMeasurement& said : record->measurements()) {
    v1::RankedCandidate& ranked = *known.add_candidates();
    ranked.set_candidate(static_cast<std::uint32_t>(known.candidates_size() - 1));
    if (said.has_estimate()) {
      *ranked.mutable_estimate() = said.estimate();
    } else {
      ranked.set_code(static_cast<std::uint32_t>(grpc::StatusCode::INVALID_ARGUMENT));
      ranked.set_message(said.problem());
    }
  }
  return known;
}

void RankMemory::Keep(const std::string& tenant, const cache::Digest& key, const std::string& target,
                      const std::vector<v1::RankedCandidate>& said) const {
  v1::TuneRecord record;
  record.set_key(std::string(key.view()));
  record.set_target(target);
  record.set_compiler(build_id_);
  record.set_created_unix(std::chrono::floor<std::chrono::seconds>(parts_.clock.WallNow()).time_since_epoch().count());
  for (const v1::RankedCandidate& one : said) {
    v1::TuneMeasurement& kept = *record.add_measurements();
    if (!one.has_estimate()) {
      kept.set_outcome(v1::TUNE_REFUSED);
      kept.set_problem(one.message());
      continue;
    }
    kept.mutable_estimate()->set_microseconds(one.estimate().microseconds());
    kept.mutable_estimate()->set_board(one.estimate().board());
    record.set_device(one.estimate().board());
  }
  const cache::Digest kept_under = KeptUnder(tenant, key);
  const std::string name = fmt::format("ranking of {} candidates", said.size());
  record = parts_.sealer.Seal(kept_under, std::move(record), {.tenant = tenant, .name = name});
  auto entry = SealTuneRecord(kept_under, tenant, record, name);
  if (!entry || !parts_.store_keeper.Fits(tenant, entry->sealed().size())) return;
  const std::size_t bytes = entry->sealed().size();
  parts_.cache.Put(std::move(*entry));
  parts_.store_keeper.Note(tenant, bytes);
}

}  // namespace kiln::server
