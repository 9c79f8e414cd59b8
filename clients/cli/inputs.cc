// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/inputs.h"

#include "clients/cli/random_data.h"
#include "clients/runtime/bind.h"

namespace kiln::cli {

std::expected<Inputs, Error> Inputs::Make(const runtime::LaunchInfo& info, const RunArguments& arguments) {
  auto sizes = ParseValues(arguments.dims);
  if (!sizes) return std::unexpected(std::move(sizes.error()));
  auto values = ParseValues(arguments.scalars);
  if (!values) return std::unexpected(std::move(values.error()));
  RandomData random(arguments.seed);
  Inputs inputs;
  for (const runtime::LaunchParam& param : info.params) {
    if (!param.tensor) {
      const std::int64_t value = ScalarOf(param, *values);
      inputs.arguments.push_back(runtime::IsFloat(param.dtype) ? HostArgument(static_cast<double>(value)) : HostArgument(value));
      continue;
    }
    auto shape = ShapeOf(info, param, *sizes);
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
