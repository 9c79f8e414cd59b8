// SPDX-License-Identifier: Apache-2.0
#include "server/flow/two_layers.h"

#include <algorithm>
#include <utility>

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

// On the executor. A refresh makes all anew, and what is explained shows all stages.
std::optional<v1::CompileReply> CompileFlow::FindPtx(Compile& compile) {
  if (!compile.portable || compile.request.refresh() || compile.request.has_explain()) return std::nullopt;
  const std::string& tenant = compile.caller.tenant;
  const auto known = FromCache(KeptUnder(tenant, *compile.portable), tenant, compile.waited);
  if (!known || !*known) return std::nullopt;
  v1::CompileReply ptx;
  const std::string_view kept = (**known).kept;
  if (!ptx.ParseFromArray(kept.data(), static_cast<int>(kept.size())) || ptx.artifact().kind() != v1::PTX) return std::nullopt;
  ptx.DiscardUnknownFields();  // its seal is of this artifact alone
  compile.notes->Mark("ptx");
  return ptx;
}

// Not in memory, where nobody asks for it while the result with the cubin is there.
void CompileFlow::KeepPtx(const Compile& compile, const v1::CompileReply& ptx) {
  const std::string& tenant = compile.caller.tenant;
  v1::CompileReply reply = ptx;
  reply.set_key(compile.portable->bytes.data(), compile.portable->bytes.size());
  const std::string target = ptx.artifact().target();
  auto entry = SealReply(KeptUnder(tenant, *compile.portable), tenant,
                         parts_.sealer.Seal(std::move(reply), compile.request, {.tenant = tenant, .name = compile.name}),
                         {.target = target, .name = compile.name, .compiler = options_.build_id}, ProgramToKeep(compile.request));
  if (!entry || !parts_.store_keeper.Fits(tenant, entry->sealed().size())) return;
  const std::size_t bytes = entry->sealed().size();
  parts_.cache.PutFar(std::move(*entry));
  parts_.store_keeper.Note(tenant, bytes);
}

}  // namespace kiln::server
