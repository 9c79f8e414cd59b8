// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/tensor_plan.h"

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "clients/runtime/bind.h"

namespace kiln::cli {
namespace {

constexpr std::uint64_t kMostElements = std::uint64_t{1} << 40;

std::expected<PlannedTensor, Error> Own(const runtime::LaunchInfo& info, std::size_t index, const Values& values) {
  const runtime::LaunchParam& param = info.params[index];
  auto shape = ShapeOf(info, param, values);
  if (!shape) return std::unexpected(std::move(shape.error()));
  const auto count = runtime::ElementCount(*shape);
  PlannedTensor tensor{.type = runtime::Find(param.dtype), .shape = std::move(*shape), .elements = count.value_or(0), .owner = index};
  if (!count || tensor.type == nullptr || *count > kMostElements) {
    return std::unexpected(InvalidInput("the shape of " + param.name + " makes no sense"));
  }
  tensor.bytes = tensor.memory_bytes = runtime::Bytes(*tensor.type, tensor.elements);
  return tensor;
}

// The tensor moves into the memory of another.
std::expected<void, Error> Move(const runtime::LaunchInfo& info, std::vector<PlannedTensor>& plan, const std::string& name, const Share& share) {
  const auto find = [&](const std::string& wanted) {
    return static_cast<std::size_t>(std::ranges::find(info.params, wanted, &runtime::LaunchParam::name) - info.params.begin());
  };
  const std::size_t at = find(name), owner = find(share.of);
  const auto refuse = [&](std::string_view why) { return std::unexpected(InvalidInput(fmt::format("--share {}={}: {}", name, share.of, why))); };
  for (const auto& [index, word] : {std::pair(at, name), std::pair(owner, share.of)}) {
    if (index == info.params.size() || plan[index].type == nullptr) return refuse("the program has no tensor " + word);
  }
  if (at == owner) return refuse("a tensor has its own memory anyway");
  if (plan[owner].owner != owner) return refuse(share.of + " lies in another tensor's memory itself; name that one");
  if (std::ranges::count(plan, at, &PlannedTensor::owner) > 1) return refuse(name + " has memory that others share; let it share none");
  if (share.elements > kMostElements || (share.elements * plan[at].type->bits) % 8 != 0) {
    return refuse("it would begin between two bytes, or too far off");
  }
  plan[at].owner = owner;
  plan[at].offset = share.elements * plan[at].type->bits / 8;
  plan[owner].memory_bytes = std::max(plan[owner].memory_bytes, plan[at].offset + plan[at].bytes);
  return {};
}

}  // namespace

std::expected<std::vector<PlannedTensor>, Error> PlanTensors(const runtime::LaunchInfo& info, const Values& values) {
  std::vector<PlannedTensor> plan(info.params.size());
  for (std::size_t i = 0; i < plan.size(); ++i) {
    plan[i].owner = i;
    if (!info.params[i].tensor) continue;
    auto tensor = Own(info, i, values);
    if (!tensor) return std::unexpected(std::move(tensor.error()));
    plan[i] = std::move(*tensor);
  }
  for (const auto& [name, share] : values.shares) {
    if (auto moved = Move(info, plan, name, share); !moved) return std::unexpected(std::move(moved.error()));
  }
  return plan;
}

}  // namespace kiln::cli
