// SPDX-License-Identifier: Apache-2.0
#include "server/flow/two_layers.h"

#include <algorithm>
#include <utility>

#include "kiln/v1/seal.pb.h"
#include "server/flow/compile_flow.h"
#include "server/flow/compile_under_way.h"

namespace kiln::server {

std::string_view PortableIn(const std::optional<cache::Digest>& key) { return key ? key->view() : std::string_view(); }

std::string_view ProgramToKeep(const v1::CompileRequest& request) {
  constexpr std::size_t kMost = std::size_t{1} << 20;
  return request.module().size() <= kMost ? std::string_view(request.module()) : std::string_view();
}

void AddAssembled(v1::Assembled&& assembled, v1::CompileReply& reply) {
  reply.mutable_artifact()->set_cubin(std::move(*assembled.mutable_cubin()));
  for (v1::KernelResources& kernel : *reply.mutable_artifact()->mutable_report()->mutable_kernels()) {
    const auto measured = std::ranges::find(assembled.kernels(), kernel.entry(), &v1::KernelResources::entry);
    if (measured == assembled.kernels().end()) continue;
    const std::uint32_t shared = kernel.shared_bytes();
    kernel.MergeFrom(*measured);
    kernel.set_shared_bytes(std::max(shared, measured->shared_bytes()));  // ptxas does not know of what is given at launch
  }
  for (v1::Diagnostic& warning : *assembled.mutable_warnings()) *reply.add_diagnostics() = std::move(warning);
}

// On the worker's thread. A refresh makes all anew, and an explained compile shows all stages. A client may have put anything: that is served,
// and not built upon.
std::optional<CompileFlow::Ptx> CompileFlow::FindPtx(Compile& compile, const v1::CompileRequest& request) {
  if (!compile.portable || compile.from_source || request.refresh() || request.has_explain()) return std::nullopt;
  const std::string& tenant = compile.caller.tenant;
  const auto known = FromCache(KeptUnder(tenant, *compile.portable), tenant, compile.waited);
  if (!known || !*known) return std::nullopt;
  const std::string_view kept = (**known).kept;
  v1::SealedReply sealed;
  v1::Provenance provenance;
  Ptx ptx;
  if (!sealed.ParseFromArray(kept.data(), static_cast<int>(kept.size())) || !provenance.ParseFromString(sealed.seal().provenance()))
    return std::nullopt;
  if (!ptx.reply.mutable_artifact()->ParseFromString(sealed.artifact())) return std::nullopt;
  const v1::Artifact& artifact = ptx.reply.artifact();
  if (!provenance.put_by().empty() || artifact.kind() != v1::PTX || !artifact.cubin().empty()) return std::nullopt;
  for (const std::string& bytes : sealed.diagnostics()) {
    if (!ptx.reply.add_diagnostics()->ParseFromString(bytes)) return std::nullopt;
  }
  ptx.maker = provenance.taken_from();
  compile.notes->Mark("ptx");
  return ptx;
}

// Whether ptxas, or the compiler, refused what the job brought.
bool IsRefused(const JobOutcome& outcome) {
  if (outcome.end != JobOutcome::End::kResult) return false;
  return std::ranges::any_of(outcome.result.diagnostics(), [](const v1::Diagnostic& d) { return d.severity() == v1::Diagnostic::ERROR; });
}

// From the source: what is wrong with kept PTX is not the program's fault.
void CompileFlow::LaunchAnew(const std::shared_ptr<Compile>& compile) {
  compile->ptx.reset();
  compile->from_source = compile->again = true;
  compile->lease.reset();
  Launch(compile);
}

// Not in memory, where nobody asks for it while the result with the cubin is there.
void CompileFlow::KeepPtx(const Compile& compile, const v1::CompileReply& ptx) {
  const std::string& tenant = compile.caller.tenant;
  const cache::Digest kept_under = KeptUnder(tenant, *compile.portable);
  v1::CompileReply reply = ptx;
  reply.set_key(compile.portable->bytes.data(), compile.portable->bytes.size());
  const std::string target = ptx.artifact().target();
  auto entry = SealReply(kept_under, tenant, parts_.sealer.Seal(std::move(reply), compile.request, {.tenant = tenant, .name = compile.name}),
                         {.target = target, .name = compile.name, .compiler = options_.build_id}, ProgramToKeep(compile.request));
  if (!entry) return;
  const std::size_t bytes = entry->sealed().size();
  if (compile.request.refresh()) parts_.cache.EraseOutside(kept_under);
  if (parts_.cache.PutFar(std::move(*entry))) parts_.store_keeper.Note(tenant, bytes);
}

}  // namespace kiln::server
