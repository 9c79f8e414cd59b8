// SPDX-License-Identifier: Apache-2.0
#include "server/reply/sealer.h"

#include <algorithm>
#include <array>
#include <optional>
#include <utility>

#include "cache/digest.h"
#include "clients/common/seal.h"
#include "kiln/v1/service.pb.h"
#include "server/reply/reply.h"
#include "server/reply/tenant_key.h"
#include "server/reply/tune_record.h"

namespace kiln::server {
namespace {

struct Kept {
  v1::CacheEntry label;
  v1::SealedReply reply;
  std::string_view module;  // in the entry; may be empty
};

// Whether the bytes say each thing once and nothing else. Readers of a CompileReply merge what is said twice, and the seal is of the last.
bool IsAll(const v1::SealedReply& reply, std::string_view bytes) {
  const auto says_more = [](const auto& message) { return !message.GetReflection()->GetUnknownFields(message).empty(); };
  return !says_more(reply) && !says_more(reply.seal()) && reply.ByteSizeLong() == bytes.size();
}

// The reply in an entry. Nothing else may be in it but the program.
std::expected<Kept, std::string> ReplyIn(const cache::Entry& entry) {
  Kept kept;
  if (!kept.label.ParseFromString(std::string(entry.metadata()))) return std::unexpected("the entry is not one of kilnd's");
  kept.module = entry.blob(BlobOf(kModuleBlob, kept.label.tenant()));
  if (entry.blobs().size() != (kept.module.data() == nullptr ? 1 : 2)) return std::unexpected("the entry is not one of kilnd's");
  const std::string_view bytes = entry.blob(BlobOf("reply", kept.label.tenant()));
  if (bytes.empty() || !kept.reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return std::unexpected("the entry holds no reply of the tenant it is labelled with");
  }
  if (!IsAll(kept.reply, bytes)) return std::unexpected("the entry says something twice, or something that nobody signs");
  const auto key = cache::Digest::FromBytes(kept.reply.key());
  if (!key || KeptUnder(kept.label.tenant(), *key) != entry.key()) {
    return std::unexpected("the entry is kept under another key than that of its reply");
  }
  return kept;
}

// What the signature says beside the artifact and its key, where it does.
std::expected<void, std::string> CheckRest(const Kept& kept, const v1::Provenance& provenance) {
  if (!provenance.tenant().empty() && provenance.tenant() != kept.label.tenant()) {
    return std::unexpected("the artifact was signed for another tenant than the one it is kept for");
  }
  if (!provenance.diagnostics_sha256().empty() && provenance.diagnostics_sha256() != DiagnosticsDigest(kept.reply)) {
    return std::unexpected("the warnings are not those that were signed");
  }
  const v1::CacheEntry& label = kept.label;
  if (!label.portable_key().empty() && label.portable_key() != provenance.portable_key()) {
    return std::unexpected("the label names other PTX than what was signed");
  }
  if (!label.compiler().empty() && label.compiler() != provenance.compiler()) {
    return std::unexpected("the label names another compiler than the one that was signed");
  }
  if (kept.module.data() != nullptr && cache::Sha256(kept.module).view() != provenance.ir_sha256()) {
    return std::unexpected("the program is not the one that was signed");
  }
  return {};
}

bool IsRefusal(const cache::Entry& entry) { return entry.blobs().size() == 1 && entry.blobs().front().name.starts_with("failure"); }

// Whose it is cannot be told. That it is a refusal of its tenant's can.
std::expected<void, std::string> CheckRefusal(const cache::Entry& entry) {
  v1::CacheEntry label;
  v1::KeptFailure failure;
  const std::string_view blob = entry.blobs().front().name;
  if (!label.ParseFromString(std::string(entry.metadata())) || !label.refused() || blob != BlobOf("failure", label.tenant())) {
    return std::unexpected("the refusal is not one of the tenant it is labelled with");
  }
  if (!failure.ParseFromString(std::string(entry.blob(blob))) || failure.message().empty()) {
    return std::unexpected("the refusal says nothing");
  }
  return {};
}

struct KeptRecord {
  v1::CacheEntry label;
  v1::TuneRecord record;
  v1::Provenance provenance;
};

// The record in an entry, if one of the keys has signed it for its key and tenant.
std::expected<KeptRecord, std::string> RecordIn(const cache::Entry& entry, std::span<const cache::PublicKey> trusted) {
  KeptRecord kept;
  if (!kept.label.ParseFromString(std::string(entry.metadata()))) return std::unexpected("the entry is not one of kilnd's");
  auto record = TuneRecordFrom(entry, kept.label.tenant());
  if (!record) return std::unexpected("the entry holds no record of the tenant it is labelled with");
  v1::SealedReply signed_part;
  if (record->seal().empty() || !signed_part.mutable_seal()->ParseFromString(record->seal())) {
    return std::unexpected("a record is not accepted without its seal");
  }
  kept.record = std::move(*record);
  v1::TuneRecord without = kept.record;
  without.clear_seal();
  signed_part.set_key(std::string(entry.key().view()));
  signed_part.set_artifact(without.SerializeAsString());
  auto provenance = Verify(signed_part, trusted, Sealed::kTuning);
  if (!provenance) return std::unexpected(std::move(provenance.error()));
  if (provenance->tenant() != kept.label.tenant()) return std::unexpected("the record was signed for another tenant than the one it is kept for");
  kept.provenance = std::move(*provenance);
  return kept;
}

}  // namespace

v1::TuneRecord Sealer::Seal(const cache::Digest& kept_under, v1::TuneRecord record, const About& about) const {
  record.clear_seal();
  v1::Provenance provenance;
  provenance.set_target(record.target());
  provenance.set_compiler(record.compiler());
  provenance.set_host(options_.host);
  provenance.set_tenant(std::string(about.tenant));
  provenance.set_name(LabelName(about.name));
  provenance.set_taken_from(std::string(about.taken_from));
  const v1::Seal seal = MakeSeal(key_, std::move(provenance), kept_under.view(), record.SerializeAsString(), Sealed::kTuning);
  record.set_seal(seal.SerializeAsString());
  return record;
}

std::expected<cache::Entry, std::string> Sealer::TakeInRecord(const cache::Entry& entry) const {
  auto kept = RecordIn(entry, Trusted());
  if (!kept) return std::unexpected(std::move(kept.error()));
  v1::Seal seal;
  seal.ParseFromString(kept->record.seal());
  const v1::Provenance& said = kept->provenance;
  const bool is_own = seal.public_key() == key_.public_key().view();
  const v1::TuneRecord record =
      is_own ? kept->record : Seal(entry.key(), kept->record, {.tenant = said.tenant(), .name = said.name(), .taken_from = seal.public_key()});
  auto taken = SealTuneRecord(entry.key(), said.tenant(), record, said.name());
  if (!taken) return std::unexpected(std::move(taken.error().message));
  return std::move(*taken);
}

std::optional<v1::CompileRequest> ProgramOf(const cache::Entry& entry) {
  const auto kept = ReplyIn(entry);
  v1::Provenance provenance;
  if (!kept || kept->module.empty() || !provenance.ParseFromString(kept->reply.seal().provenance())) return std::nullopt;
  v1::CompileRequest program;
  program.set_module(std::string(kept->module));
  program.set_target(provenance.target());
  if (provenance.has_options()) *program.mutable_options() = provenance.options();
  return program;
}

std::string CompilerOf(const cache::Entry& entry) {
  const auto kept = ReplyIn(entry);
  v1::Provenance provenance;
  if (!kept || !provenance.ParseFromString(kept->reply.seal().provenance())) return {};
  return provenance.compiler();
}

v1::KeptFailure Sealer::Seal(const cache::Digest& kept_under, v1::KeptFailure failure, std::string_view target, const About& about) const {
  failure.clear_seal();
  v1::Provenance provenance;
  provenance.set_target(std::string(target));
  provenance.set_compiler(options_.compiler);
  provenance.set_host(options_.host);
  provenance.set_tenant(std::string(about.tenant));
  provenance.set_name(LabelName(about.name));
  const v1::Seal seal = MakeSeal(key_, std::move(provenance), kept_under.view(), failure.SerializeAsString(), Sealed::kRefusal);
  failure.set_seal(seal.SerializeAsString());
  return failure;
}

std::expected<cache::Entry, std::string> Sealer::TakeInRefusal(const cache::Entry& entry) const {
  if (auto checked = CheckRefusal(entry); !checked) return std::unexpected(std::move(checked.error()));
  v1::CacheEntry label;
  label.ParseFromString(std::string(entry.metadata()));
  v1::KeptFailure failure;
  failure.ParseFromString(std::string(entry.blobs().front().bytes));
  v1::SealedReply signed_part;
  if (failure.seal().empty() || !signed_part.mutable_seal()->ParseFromString(failure.seal())) {
    return std::unexpected("a refusal by another compiler is not accepted without its seal");
  }
  v1::KeptFailure without = failure;
  without.clear_seal();
  signed_part.set_key(std::string(entry.key().view()));
  signed_part.set_artifact(without.SerializeAsString());
  const auto provenance = Verify(signed_part, Trusted(), Sealed::kRefusal);
  if (!provenance) return std::unexpected(provenance.error());
  if (provenance->tenant() != label.tenant()) return std::unexpected("the refusal was signed for another tenant than the one it is kept for");
  auto taken = SealFailure(entry.key(), provenance->tenant(), failure, {.target = provenance->target(), .name = provenance->name()});
  if (!taken) return std::unexpected(std::move(taken.error().message));
  return std::move(*taken);
}

std::string Sealer::Seal(v1::CompileReply&& reply, const v1::CompileRequest& request, const About& about) const {
  v1::Provenance provenance;
  const cache::Digest module = cache::Sha256(request.module());
  provenance.set_ir_sha256(module.bytes.data(), module.bytes.size());
  provenance.set_target(reply.artifact().target());  // its one spelling
  *provenance.mutable_options() = request.options();
  provenance.set_compiler(options_.compiler);
  provenance.set_host(options_.host);
  provenance.set_put_by(std::string(about.put_by));
  provenance.set_tenant(std::string(about.tenant));
  provenance.set_name(LabelName(about.name));
  provenance.set_taken_from(std::string(about.taken_from));
  if (about.portable) provenance.set_portable_key(std::string(about.portable->view()));
  v1::SealedReply sealed;
  sealed.set_key(reply.key());
  sealed.set_artifact(reply.artifact().SerializeAsString());
  for (const v1::Diagnostic& diagnostic : reply.diagnostics()) *sealed.add_diagnostics() = diagnostic.SerializeAsString();
  provenance.set_diagnostics_sha256(DiagnosticsDigest(sealed));
  *sealed.mutable_seal() = MakeSeal(key_, std::move(provenance), reply.key(), sealed.artifact());
  reply.clear_artifact();
  reply.clear_key();
  reply.clear_diagnostics();
  std::string bytes;
  bytes.reserve(sealed.ByteSizeLong() + reply.ByteSizeLong());
  sealed.AppendToString(&bytes);
  reply.AppendToString(&bytes);
  return bytes;
}

void Sealer::Trust(std::vector<cache::PublicKey> keys) {
  cache::MutexLock lock(mutex_);
  trusted_ = std::move(keys);
}

std::vector<cache::PublicKey> Sealer::Trusted() const {
  cache::MutexLock lock(mutex_);
  std::vector<cache::PublicKey> keys = trusted_;
  lock.Unlock();
  keys.push_back(key_.public_key());
  return keys;
}

bool Sealer::Trusts(const cache::PublicKey& key) const { return std::ranges::count(Trusted(), key) > 0; }

std::expected<void, std::string> Sealer::CheckForeign(const v1::SealedReply& reply) const {
  const auto provenance = Verify(reply, Trusted());
  if (!provenance) return std::unexpected(provenance.error());
  return {};
}

std::expected<void, std::string> Sealer::Check(const cache::Entry& entry) const {
  if (IsRefusal(entry)) return CheckRefusal(entry);
  const std::array own = {key_.public_key()};
  if (IsTuneRecord(entry)) {
    auto record = RecordIn(entry, own);
    return record ? std::expected<void, std::string>() : std::unexpected(std::move(record.error()));
  }
  const auto kept = ReplyIn(entry);
  if (!kept) return std::unexpected(kept.error());
  const auto provenance = Verify(kept->reply, own);
  if (!provenance) return std::unexpected(provenance.error());
  return CheckRest(*kept, *provenance);
}

std::expected<cache::Entry, std::string> Sealer::TakeIn(const cache::Entry& entry, From from) const {
  if (IsRefusal(entry)) return TakeInRefusal(entry);
  if (IsTuneRecord(entry)) return TakeInRecord(entry);
  auto kept = ReplyIn(entry);
  if (!kept) return std::unexpected(std::move(kept.error()));
  v1::SealedReply& reply = kept->reply;
  auto provenance = Verify(reply, Trusted());
  if (!provenance) return std::unexpected(std::move(provenance.error()));
  if (auto checked = CheckRest(*kept, *provenance); !checked) return std::unexpected(std::move(checked.error()));
  const bool is_old = provenance->tenant().empty() || provenance->diagnostics_sha256().empty();
  const bool is_own = reply.seal().public_key() == key_.public_key().view();
  if (is_old && from == From::kStore) return std::unexpected("an older kilnd sealed it: the seal does not say for which tenant");
  if (is_old && is_own) return entry;
  if (is_old) {
    reply.clear_diagnostics();
    provenance->set_diagnostics_sha256(DiagnosticsDigest(reply));
    provenance->set_tenant(kept->label.tenant());
    provenance->set_name(kept->label.name());
  }
  if (!is_own) {
    provenance->set_taken_from(reply.seal().public_key());
    *reply.mutable_seal() = MakeSeal(key_, *provenance, reply.key(), reply.artifact());
  }
  auto sealed = SealReply(
      entry.key(), provenance->tenant(), reply.SerializeAsString(),
      {.target = provenance->target(), .name = provenance->name(), .compiler = provenance->compiler(), .portable_key = provenance->portable_key()},
      kept->module);
  if (!sealed) return std::unexpected(std::move(sealed.error().message));
  return std::move(*sealed);
}

}  // namespace kiln::server
