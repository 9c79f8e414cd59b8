// SPDX-License-Identifier: Apache-2.0
#include "server/reply/sealer.h"

#include <array>
#include <optional>

#include "cache/digest.h"
#include "clients/common/seal.h"
#include "kiln/v1/service.pb.h"
#include "server/reply/tenant_key.h"

namespace kiln::server {
namespace {

struct Kept {
  std::string blob;  // its name
  v1::SealedReply reply;
};

// The reply in an entry, which must be the only thing in it.
std::expected<Kept, std::string> ReplyIn(const cache::Entry& entry) {
  v1::CacheEntry label;
  Kept kept;
  if (!label.ParseFromString(std::string(entry.metadata())) || entry.blobs().size() != 1) {
    return std::unexpected("the entry is not one of kilnd's");
  }
  kept.blob = BlobOf("reply", label.tenant());
  const std::string_view bytes = entry.blob(kept.blob);
  if (bytes.empty() || !kept.reply.ParseFromArray(bytes.data(), static_cast<int>(bytes.size()))) {
    return std::unexpected("the entry holds no reply of the tenant it is labelled with");
  }
  const auto key = cache::Digest::FromBytes(kept.reply.key());
  if (!key || KeptUnder(label.tenant(), *key) != entry.key()) {
    return std::unexpected("the entry is kept under another key than that of its reply");
  }
  return kept;
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

// What is signed of a refusal: no artifact begins like this.
std::string SignedPart(const v1::KeptFailure& failure) { return "refusal\n" + failure.SerializeAsString(); }

}  // namespace

std::string CompilerOf(const cache::Entry& entry) {
  const auto kept = ReplyIn(entry);
  v1::Provenance provenance;
  if (!kept || !provenance.ParseFromString(kept->reply.seal().provenance())) return {};
  return provenance.compiler();
}

v1::KeptFailure Sealer::Seal(const cache::Digest& kept_under, v1::KeptFailure failure) const {
  failure.clear_seal();
  v1::Provenance provenance;
  provenance.set_compiler(options_.compiler);
  provenance.set_host(options_.host);
  failure.set_seal(MakeSeal(key_, std::move(provenance), kept_under.view(), SignedPart(failure)).SerializeAsString());
  return failure;
}

std::expected<cache::Entry, std::string> Sealer::TakeInRefusal(const cache::Entry& entry) const {
  if (auto checked = CheckRefusal(entry); !checked) return std::unexpected(std::move(checked.error()));
  v1::KeptFailure failure;
  failure.ParseFromString(std::string(entry.blobs().front().bytes));
  v1::SealedReply signed_part;
  if (failure.seal().empty() || !signed_part.mutable_seal()->ParseFromString(failure.seal())) {
    return std::unexpected("a refusal by another compiler is not accepted without its seal");
  }
  failure.clear_seal();
  signed_part.set_key(std::string(entry.key().view()));
  signed_part.set_artifact(SignedPart(failure));
  if (const auto provenance = Verify(signed_part, Trusted()); !provenance) return std::unexpected(provenance.error());
  return entry;
}

std::string Sealer::Seal(v1::CompileReply&& reply, const v1::CompileRequest& request, std::string_view put_by) const {
  v1::Provenance provenance;
  const cache::Digest module = cache::Sha256(request.module());
  provenance.set_ir_sha256(module.bytes.data(), module.bytes.size());
  provenance.set_target(reply.artifact().target());  // its one spelling
  *provenance.mutable_options() = request.options();
  provenance.set_compiler(options_.compiler);
  provenance.set_host(options_.host);
  provenance.set_put_by(std::string(put_by));
  v1::SealedReply sealed;
  sealed.set_key(reply.key());
  sealed.set_artifact(reply.artifact().SerializeAsString());
  *sealed.mutable_seal() = MakeSeal(key_, std::move(provenance), reply.key(), sealed.artifact());
  reply.clear_artifact();
  reply.clear_key();
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

std::expected<void, std::string> Sealer::CheckForeign(const v1::SealedReply& reply) const {
  const auto provenance = Verify(reply, Trusted());
  if (!provenance) return std::unexpected(provenance.error());
  return {};
}

std::expected<void, std::string> Sealer::Check(const cache::Entry& entry) const {
  if (IsRefusal(entry)) return CheckRefusal(entry);
  const auto kept = ReplyIn(entry);
  if (!kept) return std::unexpected(kept.error());
  const std::array own = {key_.public_key()};
  const auto provenance = Verify(kept->reply, own);
  if (!provenance) return std::unexpected(provenance.error());
  return {};
}

std::expected<cache::Entry, std::string> Sealer::TakeIn(const cache::Entry& entry) const {
  if (IsRefusal(entry)) return TakeInRefusal(entry);
  auto kept = ReplyIn(entry);
  if (!kept) return std::unexpected(std::move(kept.error()));
  v1::SealedReply& reply = kept->reply;
  auto provenance = Verify(reply, Trusted());
  if (!provenance) return std::unexpected(std::move(provenance.error()));
  if (reply.seal().public_key() == key_.public_key().view()) return entry;
  provenance->set_taken_from(reply.seal().public_key());
  *reply.mutable_seal() = MakeSeal(key_, std::move(*provenance), reply.key(), reply.artifact());
  const std::string bytes = reply.SerializeAsString();
  const std::array<cache::BlobView, 1> blobs = {cache::BlobView{kept->blob, bytes}};
  auto sealed = cache::Seal(entry.key(), entry.metadata(), blobs);
  if (!sealed) return std::unexpected(std::move(sealed.error().message));
  return *sealed;
}

}  // namespace kiln::server
