// SPDX-License-Identifier: Apache-2.0
//
// What a tuning's record is kept under, when a kept one suffices, and how it is kept: for its driver and compiler, and once more for the next.
#include <algorithm>
#include <chrono>
#include <cmath>
#include <utility>

#include <fmt/format.h>

#include "server/reply/tenant_key.h"
#include "server/reply/tune_record.h"
#include "server/tune/tune_call.h"

namespace kiln::server {
namespace {

using Kind = Failure::Kind;

constexpr std::size_t kKnown = 4096;  // keys by what was sent

// Whether a record says all that a tuning with these budgets would, in which a measurement may take so long (0: as TuneStart's).
bool Suffices(const v1::TuneRecord& record, double budget_seconds, const v1::TuneStart& start) {
  const std::uint32_t budget_candidates = start.budget_candidates();
  const double candidate_seconds = start.candidate_seconds();
  const auto none_is = [&](v1::TuneOutcome outcome) {
    return std::ranges::none_of(record.measurements(), [outcome](const v1::TuneMeasurement& said) { return said.outcome() == outcome; });
  };
  const double allowed = record.candidate_seconds();
  const bool as_patient = allowed == candidate_seconds || (candidate_seconds > 0 && allowed > candidate_seconds);
  const std::uint32_t most = record.budget_candidates();
  const bool as_many = most == 0 || (budget_candidates > 0 && most >= budget_candidates);
  const bool as_far = (record.budget_seconds() >= budget_seconds && as_many) || none_is(v1::TUNE_NOT_REACHED);
  const bool as_much_energy = record.energy_candidates() >= start.energy_candidates();
  return as_far && as_much_energy && (as_patient || none_is(v1::TUNE_TIMED_OUT));
}

}  // namespace

// Of all that decides what a tuning finds. A program has its own key's part in it, so names and lines of its source have none; one that has
// no key, because it is none, its bytes'.
std::expected<TuneFlow::Keys, Failure> TuneFlow::KeysOf(Call& call) {
  const v1::DeviceInfo& device = call.device->info;
  const std::string environment = fmt::format("{}\n{}\n{}\n", device.driver_version(), options_.build_id, parts_.compile.PtxasVersion());
  cache::Hasher rest;
  rest.Update(fmt::format("{}\n{}\nreference {}\n", device.target(), device.description(), call.start.reference()));
  rest.Update(call.tensors->DigestOfGiven().view());
  for (const std::string& label : call.labels) rest.Update(cache::Sha256(label).view());
  const cache::Digest others = rest.Finish();
  cache::Hasher sent;
  for (const v1::CompileRequest& program : call.programs) sent.Update(cache::Sha256(program.SerializeAsString()).view());
  v1::CompileRequest first;  // with the options of another
  first.set_priority(v1::TUNING);
  *first.mutable_module() = call.programs.front().module();
  const cache::Digest asked = sent.Update(others.view()).Update(environment).Finish();
  {
    cache::MutexLock lock(mutex_);
    if (const auto known = known_.find(asked); known != known_.end()) return known->second;
  }
  cache::Hasher all, near;
  all.Update("kiln tuning 2\n").Update(cache::Sha256(environment).view());
  near.Update("kiln tuning in any environment 1\n");
  for (const v1::CompileRequest& program : call.programs) {
    if (call.cancelled) return std::unexpected(TuneCancelled());
    if (program.module().empty()) {
      first.set_target(program.target());
      *first.mutable_options() = program.options();
    }
    const v1::CompileRequest& whole = program.module().empty() ? first : program;
    const auto key = parts_.compile.KeysOf(whole);
    if (!key && (key.error().kind == Kind::kDraining || key.error().kind == Kind::kCancelled)) return std::unexpected(key.error());
    const cache::Digest bytes = key ? cache::Digest() : cache::Sha256(whole.SerializeAsString());
    all.Update(key ? key->result.view() : bytes.view());
    near.Update(key ? key->program.view() : bytes.view());
  }
  const Keys keys{all.Update(others.view()).Finish(), near.Update(others.view()).Finish()};
  cache::MutexLock lock(mutex_);
  if (known_.size() >= kKnown) known_.clear();
  known_[asked] = keys;
  return keys;
}

// The record in an entry, if it says all that the call asks for.
std::optional<v1::TuneRecord> TuneFlow::Sufficing(const Call& call, const cache::Entry& entry) const {
  auto record = TuneRecordFrom(entry, call.caller.tenant);
  const bool whole = record && static_cast<std::size_t>(record->measurements_size()) == call.programs.size() && record->winner() > 0 &&
                     record->winner() <= call.programs.size();
  if (whole && call.start.mode() != v1::TUNE_WAIT) return record;
  const double budget = std::chrono::duration<double>(call.Budget(options_.limit)).count();
  if (!whole || !Suffices(*record, budget, call.start)) return std::nullopt;
  return record;
}

// What hosts share under the key, where this host's own record does not suffice; that one stays where they have no better.
std::optional<cache::TieredCache::Hit> TuneFlow::FromOthers(const Call& call, const cache::Entry& own, cache::Waited& waited) {
  if (const auto erased = parts_.cache.Erase(own.key()); !erased || !*erased) return std::nullopt;
  auto hit = parts_.cache.Get(own.key(), waited);
  if (hit && Sufficing(call, hit->entry)) return hit;
  parts_.cache.Put(own);
  return std::nullopt;
}

std::optional<v1::TuneProgress> TuneFlow::FromCache(Call& call) {
  cache::Waited waited{.asker = call.caller.tenant};
  auto hit = parts_.cache.Get(KeptUnder(call.caller.tenant, call.key), waited);
  if (!hit) return std::nullopt;
  auto record = Sufficing(call, hit->entry);
  call.replaces = !record;
  if (!record && !hit->outside) {
    hit = FromOthers(call, hit->entry, waited);
    record = hit ? Sufficing(call, hit->entry) : std::nullopt;
  }
  if (!record) return std::nullopt;
  if (hit->outside) parts_.store_keeper.Note(call.caller.tenant, hit->entry.sealed().size());
  return ToldFrom(*hit, std::move(*record));
}

v1::TuneProgress TuneFlow::ToldFrom(const cache::TieredCache::Hit& hit, v1::TuneRecord record) const {
  v1::TuneProgress told;
  told.set_candidates(static_cast<std::uint32_t>(record.measurements_size()));
  told.set_best(record.winner());
  told.set_best_microseconds(record.measurements(static_cast<int>(record.winner()) - 1).median());
  told.set_origin(hit.outside ? v1::CLUSTER : hit.read_only ? v1::BUNDLE : hit.level == 0 ? v1::MEMORY : v1::DISK);
  told.mutable_record()->Swap(&record);
  return told;
}

// What was measured on this device with another driver or compiler. The winner is the first: others may have had a shorter time and wrong outputs.
bool TuneFlow::FromNear(Call& call) {
  cache::Waited waited{.asker = call.caller.tenant};
  const auto hit = parts_.cache.Get(KeptUnder(call.caller.tenant, call.near), waited);
  if (!hit) return false;
  const auto record = TuneRecordFrom(hit->entry, call.caller.tenant);
  if (!record || static_cast<std::size_t>(record->measurements_size()) != call.programs.size()) return false;
  if (record->winner() == 0 || record->winner() > call.programs.size()) return false;
  if (hit->outside) parts_.store_keeper.Note(call.caller.tenant, hit->entry.sealed().size());
  call.known.assign(call.programs.size(), 0);
  const double best = record->measurements(static_cast<int>(record->winner()) - 1).median();
  for (std::size_t i = 0; i < call.programs.size(); ++i) {
    const v1::TuneMeasurement& said = record->measurements(static_cast<int>(i));
    const bool ran = said.outcome() == v1::TUNE_MEASURED || said.outcome() == v1::TUNE_DROPPED;
    if (ran) call.known[i] = i + 1 == record->winner() ? best : std::max(said.median(), std::nextafter(best, best + 1));
  }
  if (call.known[record->winner() - 1] == 0) call.known.clear();
  return !call.known.empty();
}

v1::TuneRecord TuneFlow::Keep(const Call& call, v1::TuneRecord record) {
  const std::string& tenant = call.caller.tenant;
  const cache::Digest kept_under = KeptUnder(tenant, call.key);
  const v1::DeviceInfo& device = call.device->info;
  record.set_key(std::string(call.key.view()));
  record.set_device(device.description());
  record.set_target(device.target());
  record.set_driver(device.driver_version());
  record.set_compiler(options_.build_id);
  record.set_candidate_seconds(call.start.candidate_seconds());
  record.set_created_unix(std::chrono::floor<std::chrono::seconds>(parts_.clock.WallNow()).time_since_epoch().count());
  const std::string name = fmt::format("tuning of {} candidates", call.labels.size());
  record = parts_.sealer.Seal(kept_under, std::move(record), {.tenant = tenant, .name = name});
  auto entry = SealTuneRecord(kept_under, tenant, record, name);
  if (entry && parts_.store_keeper.Fits(tenant, entry->sealed().size())) {
    const std::size_t bytes = entry->sealed().size();
    // What nobody here can use, or what says less, would stay where hosts share it. A record that another host has put there meanwhile stays.
    cache::Waited waited{.asker = tenant};
    if (call.start.refresh() || call.replaces || !parts_.cache.Get(kept_under, waited)) parts_.cache.EraseOutside(kept_under);
    parts_.cache.Put(std::move(*entry));
    parts_.store_keeper.Note(tenant, bytes);
    KeepNear(call, record);
  }
  return record;
}

// The same once more, for the next driver and the next compiler. The latest counts.
void TuneFlow::KeepNear(const Call& call, v1::TuneRecord record) {
  const std::string& tenant = call.caller.tenant;
  const cache::Digest kept_under = KeptUnder(tenant, call.near);
  record.clear_seal();
  const std::string name = fmt::format("latest tuning of {} candidates", call.labels.size());
  record = parts_.sealer.Seal(kept_under, std::move(record), {.tenant = tenant, .name = name});
  auto entry = SealTuneRecord(kept_under, tenant, record, name);
  if (!entry || !parts_.store_keeper.Fits(tenant, entry->sealed().size())) return;
  const std::size_t bytes = entry->sealed().size();
  parts_.cache.EraseOutside(kept_under);
  parts_.cache.Put(std::move(*entry));
  parts_.store_keeper.Note(tenant, bytes);
}

}  // namespace kiln::server
