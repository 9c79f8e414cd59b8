// SPDX-License-Identifier: Apache-2.0
#include "server/flow/run_outputs.h"

#include <optional>
#include <utility>
#include <vector>

#include "clients/runtime/artifact.h"
#include "clients/runtime/bind.h"
#include "kiln/v1/compile.pb.h"

namespace kiln::server {
namespace {

constexpr std::uint64_t kSomewhere = 4096;  // shapes are asked for, nothing is read

std::optional<runtime::Arg> ArgOf(const v1::RunArgument& argument) {
  if (argument.kind_case() == v1::RunArgument::kInteger) return runtime::Arg::Of(std::int64_t{argument.integer()});
  if (argument.kind_case() == v1::RunArgument::kReal) return runtime::Arg::Of(argument.real());
  if (argument.kind_case() == v1::RunArgument::KIND_NOT_SET) return runtime::Arg();
  const v1::RunTensor& tensor = argument.tensor();
  const auto dtype = static_cast<runtime::DType>(tensor.dtype());
  if (!argument.has_tensor() || runtime::Find(dtype) == nullptr) return std::nullopt;
  if (tensor.strides_size() != 0 && tensor.strides_size() != tensor.shape_size()) return std::nullopt;
  return runtime::Arg::Of(runtime::Tensor{.data = kSomewhere,
                                          .dtype = dtype,
                                          .place = runtime::Place::kHost,
                                          .shape = {tensor.shape().data(), static_cast<std::size_t>(tensor.shape_size())},
                                          .strides = tensor.strides_size() == 0 ? nullptr : tensor.strides().data()});
}

std::optional<runtime::Binder> BinderOf(std::string_view reply) {
  v1::CompileReply parsed;
  if (!parsed.ParseFromArray(reply.data(), static_cast<int>(reply.size()))) return std::nullopt;
  auto artifact = runtime::DecodeArtifact(parsed.artifact().SerializeAsString());
  if (!artifact) return std::nullopt;
  auto binder = runtime::Binder::Create(std::move(artifact->launch), "kernel", runtime::Place::kHost, 0);
  if (!binder) return std::nullopt;
  return std::move(*binder);
}

}  // namespace

std::uint64_t OutputBytes(const v1::RunStart& start, std::string_view reply, std::uint64_t page, std::uint64_t most) {
  const auto binder = BinderOf(reply);
  const auto given = static_cast<std::size_t>(start.arguments_size());
  if (!binder || given + binder->output_count() != binder->info().params.size()) return 0;
  std::vector<runtime::Arg> inputs;
  for (const v1::RunArgument& argument : start.arguments()) {
    const auto arg = ArgOf(argument);
    if (!arg) return 0;
    inputs.push_back(*arg);
  }
  const auto outputs = binder->Outputs(inputs);
  if (!outputs) return 0;
  std::uint64_t sum = 0, pages = 0;
  for (const runtime::OutputShape& output : *outputs) {
    const runtime::DTypeInfo* type = runtime::Find(output.dtype);
    const auto count = runtime::ElementCount(output.shape);
    if (type == nullptr || !count) return 0;
    const std::uint64_t bytes = runtime::Bytes(*type, *count);
    if (bytes > most - sum) return 0;
    sum += bytes;
    pages += (bytes + page - 1) / page;
  }
  return pages * page;
}

}  // namespace kiln::server
