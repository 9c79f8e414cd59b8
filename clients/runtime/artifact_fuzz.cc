// SPDX-License-Identifier: Apache-2.0
//
// Hostile artifacts, and hostile shapes for those that decode: the last bytes of the input are the arguments' extents.
#include <cstring>

#include "clients/runtime/bind.h"
#include "clients/runtime/tensor_map.h"

using namespace kiln::runtime;

namespace {

// What Bind took, the maps of launches that take place can hold.
void DescribeMaps(const LaunchInfo& info, const Binding& binding, const std::vector<Arg>& args) {
  for (size_t i = 0; i < info.launches.size(); ++i) {
    for (const KernelArg& arg : info.launches[i].args) {
      if (binding.grids[i].empty || arg.kind != KernelArg::Kind::kTensorMap) continue;
      const TensorMap& map = info.tensor_maps[arg.index];
      if (!DescribeTensor(map, info.params[map.tensor], MappedTensor(map, args[map.tensor].tensor, binding.views))) __builtin_trap();
    }
  }
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  constexpr size_t kExtents = 8;
  if (size < sizeof(int64_t) * kExtents) return 0;
  int64_t extents[kExtents];
  std::memcpy(extents, data, sizeof extents);
  const std::string_view bytes(reinterpret_cast<const char*>(data) + sizeof extents, size - sizeof extents);
  auto artifact = DecodeArtifact(bytes);
  if (!artifact) return 0;
  auto binder = Binder::Create(artifact->launch, "fuzz", Place::kCuda, 0);
  if (!binder) return 0;
  std::vector<Arg> args, inputs;
  for (const LaunchParam& param : binder->info().params) {
    const size_t rank = std::min(param.shape.size(), kExtents / 2);
    const Tensor tensor{.data = 0x1000, .dtype = param.dtype, .shape = {extents, rank}, .strides = extents + kExtents / 2};
    args.push_back(param.tensor ? Arg::Of(tensor) : Arg::Of(extents[0]));
    if (!param.output) inputs.push_back(args.back());
  }
  if (auto binding = binder->Bind(args)) DescribeMaps(binder->info(), *binding, args);
  (void)binder->Outputs(inputs);
  return 0;
}
