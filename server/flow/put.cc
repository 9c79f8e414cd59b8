// SPDX-License-Identifier: Apache-2.0
//
// CompileFlow::Put: results that were made elsewhere.
#include <utility>

#include <fmt/format.h>

#include "server/flow/compile_flow.h"
#include "server/flow/two_layers.h"
#include "server/queue/refusals.h"

namespace kiln::server {

struct CompileFlow::ToPut {
  cache::Digest key;
  cache::Entry entry;
  bool sealed;  // by whoever made it
};

std::expected<CompileFlow::ToPut, Failure> CompileFlow::PrepareToPut(const Caller& caller, v1::PutRequest put) {
  if (closed_) return std::unexpected(Draining());  // it waited for a thread until then
  const auto memory = MemoryToDecode(put.request());
  if (!memory) return std::unexpected(memory.error());
  auto resolved = ResolveInTurn(put.request(), *memory, nullptr, nullptr);
  if (!resolved) return std::unexpected(std::move(resolved.error()));
  v1::Artifact& artifact = *put.mutable_artifact();
  if (artifact.compiler() != options_.build_id || artifact.target() != resolved->target) {
    return std::unexpected(Failure{.kind = Failure::Kind::kMalformed,
                                   .message = fmt::format("the artifact is of compiler {} for {}; this daemon keeps those of {} for {}",
                                                          artifact.compiler(), artifact.target(), options_.build_id, resolved->target)});
  }
  const std::string key(resolved->key.view());
  if (auto allowed = MayPut(caller, put, key); !allowed) return std::unexpected(std::move(allowed.error()));
  v1::CompileReply reply;
  reply.set_key(key);
  reply.mutable_artifact()->Swap(&artifact);
  auto entry =
      SealReply(KeptUnder(caller.tenant, resolved->key), caller.tenant,
                parts_.sealer.Seal(std::move(reply), put.request(), {caller.tenant, resolved->name, caller.name, resolved->portable}),
                {.target = resolved->target, .name = resolved->name, .compiler = options_.build_id, .portable_key = PortableIn(resolved->portable)},
                ProgramToKeep(put.request()));
  if (!entry) return std::unexpected(Failure{.kind = Failure::Kind::kMalformed, .message = entry.error().message});
  if (auto fits = parts_.store_keeper.Fits(caller.tenant, entry->sealed().size()); !fits) return std::unexpected(std::move(fits.error()));
  return ToPut{resolved->key, std::move(*entry), put.has_seal()};
}

void CompileFlow::Put(const Caller& caller, v1::PutRequest put, PutEnd done) {
  auto prepared = PrepareToPut(caller, std::move(put));
  if (!prepared) return done(std::unexpected(std::move(prepared.error())));
  const std::size_t bytes = prepared->entry.sealed().size();
  // Answered only once the store has committed it: an earlier answer would promise what a kill could still lose.
  parts_.cache.Put(std::move(prepared->entry), [this, caller, bytes, key = prepared->key, sealed = prepared->sealed,
                                                done = std::move(done)](std::expected<void, cache::Error> put) mutable {
    parts_.executor.PostFirst([this, caller, bytes, key, sealed, put = std::move(put), done = std::move(done)]() mutable {
      if (!put) return done(std::unexpected(NotStored(put.error().message)));
      parts_.store_keeper.Note(caller.tenant, bytes);
      parts_.gate.NotePut(caller, key.ToHex(), sealed);
      done(key);
    });
  });
}

std::expected<void, Failure> CompileFlow::MayPut(const Caller& caller, const v1::PutRequest& put, const std::string& key) const {
  if (!put.has_seal()) {
    const bool admin = options_.accept_unsigned == AcceptUnsigned::kOfAdmins && caller.May(Scope::kAdmin);
    if (admin || options_.accept_unsigned == AcceptUnsigned::kOfAnybody) return {};
    return std::unexpected(Failure{.kind = Failure::Kind::kRefused,
                                   .message = "this kilnd takes results from elsewhere only with the seal of a key that it trusts "
                                              "(--trusted-keys); on a Unix socket an admin may put them without "
                                              "(--accept-put=auto), and with --accept-put=yes anybody who may compile"});
  }
  v1::SealedReply reply;
  reply.set_key(key);
  reply.set_artifact(put.artifact().SerializeAsString());
  *reply.mutable_seal() = put.seal();
  auto checked = parts_.sealer.CheckForeign(reply);
  if (!checked) return std::unexpected(Failure{.kind = Failure::Kind::kForbidden, .message = std::move(checked.error())});
  return {};
}

}  // namespace kiln::server
