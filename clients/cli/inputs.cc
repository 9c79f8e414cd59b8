// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/inputs.h"

#include "clients/cli/random_data.h"
#include "clients/runtime/bind.h"

namespace kiln::cli {

std::expected<Inputs, Error> Inputs::Make(const runtime::LaunchInfo& info, const Values& values, std::uint64_t seed) {
  RandomData random(seed);
  Inputs inputs;
  for (const runtime::LaunchParam& param : info.params) {
    if (!param.tensor) {
      const auto scalar = ScalarOf(param, values);
      if (!scalar) return std::unexpected(scalar.error());
      std::visit([&](auto number) { inputs.arguments.emplace_back(number); }, *scalar);
      continue;
    }
    auto shape = ShapeOf(info, param, values);
    if (!shape) return std::unexpected(std::move(shape.error()));
    const auto count = runtime::ElementCount(*shape);
    const runtime::DTypeInfo* type = runtime::Find(param.dtype);
    if (!count || type == nullptr || *count > std::uint64_t{1} << 40) {
      return std::unexpected(InvalidInput("the shape of " + param.name + " makes no sense"));
    }
    inputs.data.push_back(random.Fill(*type, *count));
    inputs.arguments.push_back(HostTensor::Of(inputs.data.back(), static_cast<DType>(param.dtype), std::move(*shape)));
  }
  return inputs;
}

}  // namespace kiln::cli
