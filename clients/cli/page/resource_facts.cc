// SPDX-License-Identifier: Apache-2.0
#include <algorithm>

#include "clients/cli/page/facts.h"

namespace kiln::cli {
namespace {

template <class Value>
Json Known(bool has, Value value) {
  return has ? Json(value) : Json::Null();
}

Json TargetFacts(const target::Target* target) {
  if (target == nullptr) return Json::Null();
  const bool nvidia = target->family == target::Family::kNvptx;
  return Json::Object({{"name", target->name},
                       {"family", nvidia ? "nvidia" : "amd"},
                       {"emulated", target->emulated},
                       {"warp", target->warp_size},
                       {"threads", target->max_threads},
                       {"shared", target->max_shared_bytes},
                       {"registers", target->registers_per_thread},
                       {"multiprocessors", target->multiprocessors},
                       // The page counts the blocks that fit by how NVIDIA's multiprocessors give out registers.
                       {"all_registers", nvidia ? Json(target->registers_per_multiprocessor) : Json::Null()}});
}

}  // namespace

Json ResourceFacts(const Decided& decided, const v1::Artifact& artifact, const target::Target* target) {
  std::vector<Json> kernels;
  const auto& known = artifact.report().kernels();
  for (int i = 0; i < known.size(); ++i) {
    const v1::KernelResources& k = known[i];
    const ir::Kernel* kernel = size_t(i) < decided.module.kernels.size() ? &decided.module.kernels[size_t(i)] : nullptr;
    kernels.push_back(Json::Object({{"entry", k.entry()},
                                    {"name", kernel != nullptr ? Json(kernel->name) : Json::Null()},
                                    {"threads", kernel != nullptr ? Json(kernel->threads) : Json::Null()},
                                    {"producers", kernel != nullptr ? Json(kernel->producers) : Json::Null()},
                                    {"min_blocks", kernel != nullptr ? Json(kernel->min_blocks) : Json::Null()},
                                    {"shared", k.shared_bytes()},
                                    {"registers", Known(k.has_registers(), k.registers())},
                                    {"spilled", Known(k.has_spill_bytes(), k.spill_bytes())},
                                    {"local", Known(k.has_local_bytes(), k.local_bytes())},
                                    {"scalar", Known(k.has_scalar_registers(), k.scalar_registers())}}));
  }
  return Json::Object({{"target", TargetFacts(target)}, {"cubin", !artifact.cubin().empty()}, {"kernels", Json::Array(kernels)}});
}

}  // namespace kiln::cli
