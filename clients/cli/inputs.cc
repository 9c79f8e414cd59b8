// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/inputs.h"

#include "clients/cli/random_data.h"
#include "clients/cli/tensor_plan.h"

namespace kiln::cli {

std::expected<Inputs, Error> Inputs::Make(const runtime::LaunchInfo& info, const Values& values, std::uint64_t seed) {
  const auto plan = PlanTensors(info, values);
  if (!plan) return std::unexpected(plan.error());
  RandomData random(seed);
  Inputs inputs;
  std::vector<std::string*> memory(plan->size());
  for (std::size_t i = 0; i < plan->size(); ++i) {
    const PlannedTensor& tensor = (*plan)[i];
    if (tensor.type == nullptr || tensor.owner != i) continue;
    memory[i] = &inputs.data.emplace_back(random.Fill(*tensor.type, tensor.memory_elements()));
  }
  for (std::size_t i = 0; i < plan->size(); ++i) {
    const PlannedTensor& tensor = (*plan)[i];
    if (tensor.type == nullptr) {
      const auto scalar = ScalarOf(info.params[i], values);
      if (!scalar) return std::unexpected(scalar.error());
      std::visit([&](auto number) { inputs.arguments.emplace_back(number); }, *scalar);
      continue;
    }
    HostTensor argument = HostTensor::Of(*memory[tensor.owner], static_cast<DType>(info.params[i].dtype), tensor.shape);
    argument.bytes = argument.bytes.subspan(tensor.offset, tensor.bytes);
    inputs.arguments.emplace_back(std::move(argument));
  }
  return inputs;
}

}  // namespace kiln::cli
