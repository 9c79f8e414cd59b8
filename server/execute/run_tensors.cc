// SPDX-License-Identifier: Apache-2.0
#include "server/execute/run_tensors.h"

#include <sys/mman.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "clients/runtime/overlap.h"
#include "server/system/utf8.h"

namespace kiln::server {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t RoundUp(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// How many bytes before the first element, and from it on, a tensor's elements span, partial bytes included; nullopt on overflow.
struct Reach {
  std::uint64_t before = 0, after = 0;
};
std::optional<Reach> ReachOf(const v1::RunTensor& tensor, unsigned bits) {
  const auto count = runtime::ElementCount({tensor.shape().data(), static_cast<std::size_t>(tensor.shape_size())});
  if (!count) return std::nullopt;
  if (*count == 0) return Reach{};
  std::int64_t low = 0, high = 0;
  for (int d = 0; d < tensor.strides_size(); ++d) {
    std::int64_t steps = 0;
    if (__builtin_mul_overflow(tensor.shape(d) - 1, tensor.strides(d), &steps)) return std::nullopt;
    if (__builtin_add_overflow(steps < 0 ? low : high, steps, steps < 0 ? &low : &high)) return std::nullopt;
  }
  if (tensor.strides_size() == 0) high = static_cast<std::int64_t>(*count) - 1;
  constexpr std::int64_t kMost = std::int64_t{1} << 50;
  if (low < -kMost || high > kMost) return std::nullopt;
  return Reach{(static_cast<std::uint64_t>(-low) * bits + 7) / 8, (static_cast<std::uint64_t>(high + 1) * bits + 7) / 8};
}

}  // namespace

MappedBytes& MappedBytes::operator=(MappedBytes&& other) noexcept {
  std::swap(reserved_, other.reserved_);
  std::swap(reserved_bytes_, other.reserved_bytes_);
  std::swap(bytes_, other.bytes_);
  return *this;
}

MappedBytes::~MappedBytes() {
  if (reserved_ != nullptr) ::munmap(reserved_, reserved_bytes_);
}

MappedBytes MappedBytes::Map(int memory, std::uint64_t position, std::uint64_t bytes) {
  MappedBytes mapped;
  const std::uint64_t whole = std::max(RoundUp(bytes), kPage);
  void* reserved = ::mmap(nullptr, whole + 2 * kPage, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (reserved == MAP_FAILED) return mapped;
  mapped.reserved_ = reserved;
  mapped.reserved_bytes_ = whole + 2 * kPage;
  void* wanted = static_cast<std::byte*>(reserved) + kPage;
  if (::mmap(wanted, whole, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, memory, static_cast<off_t>(position)) == MAP_FAILED) {
    return MappedBytes();
  }
  mapped.bytes_ = {static_cast<std::byte*>(wanted), bytes};
  return mapped;
}

class RunTensors::Maker {
 public:
  Maker(const v1::DeviceRun& run, int memory, const runtime::Binder& binder, const Where& where)
      : run_(run), memory_(memory), binder_(binder), where_(where), used_(RoundUp(run.memory_used())) {}

  std::expected<RunTensors, std::string> Make() {
    const auto& params = binder_.info().params;
    const auto given = static_cast<std::size_t>(run_.arguments_size());
    const bool allocate = binder_.output_count() > 0 && given + binder_.output_count() == params.size();
    if (given != params.size() && !allocate) {
      return std::unexpected(fmt::format("{}: num_args should be {} ({} with the outputs), but got {}", binder_.name(),
                                         params.size() - binder_.output_count(), params.size(), given));
    }
    made_.args_.resize(params.size());
    made_.tensors_.reserve(params.size());
    storage_of_.resize(given);
    int next = 0;
    std::vector<runtime::Arg> inputs;
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (allocate && params[i].output) continue;
      if (std::string problem = Take(i, next++); !problem.empty()) return std::unexpected(std::move(problem));
      inputs.push_back(made_.args_[i]);
    }
    if (auto problem = runtime::ForbiddenOverlap(binder_, made_.args_)) return std::unexpected(std::move(*problem));
    if (allocate) {
      auto outputs = binder_.Outputs(inputs);
      if (!outputs) return std::unexpected(std::move(outputs.error().message));
      for (const runtime::OutputShape& output : *outputs) {
        if (std::string problem = Allocate(output); !problem.empty()) return std::unexpected(std::move(problem));
      }
    }
    return std::move(made_);
  }

 private:
  // The job's argument `index` for parameter `param`.
  std::string Take(std::size_t param, int index) {
    const v1::RunArgument& argument = run_.arguments(index);
    switch (argument.kind_case()) {
      case v1::RunArgument::kInteger: made_.args_[param] = runtime::Arg::Of(std::int64_t{argument.integer()}); return {};
      case v1::RunArgument::kReal: made_.args_[param] = runtime::Arg::Of(argument.real()); return {};
      case v1::RunArgument::kTensor: break;
      case v1::RunArgument::KIND_NOT_SET: return binder_.info().params[param].tensor ? "" : fmt::format("argument {} is none", index);
    }
    Tensor tensor{.param = param, .argument = static_cast<std::uint32_t>(index) + 1, .shape = argument.tensor()};
    const std::uint32_t shared = tensor.shape.storage();
    if (shared == 0) {
      const std::uint64_t position = run_.positions(index), bytes = tensor.shape.bytes();
      if (position % kPage != 0 || position > run_.memory_bytes() || bytes > run_.memory_bytes() - position) {
        return fmt::format("argument {} lies outside of the run's memory", index);
      }
      if (std::string problem = Store(position, bytes); !problem.empty()) return problem;
      storage_of_[static_cast<std::size_t>(index)] = made_.storages_.size() - 1;
    } else {
      const std::size_t owner = shared - 1;
      const bool before = owner < static_cast<std::size_t>(index) && storage_of_[owner];
      if (!before || run_.arguments(static_cast<int>(owner)).tensor().storage() != 0) {
        return fmt::format("argument {} shares the bytes of no argument before it", index);
      }
      storage_of_[static_cast<std::size_t>(index)] = storage_of_[owner];
    }
    tensor.storage = *storage_of_[static_cast<std::size_t>(index)];
    return Add(std::move(tensor));
  }

  std::string Allocate(const runtime::OutputShape& output) {
    Tensor tensor{.param = output.param, .shape = {}};
    tensor.shape.set_dtype(static_cast<v1::DType>(output.dtype));
    for (const std::int64_t extent : output.shape) tensor.shape.add_shape(extent);
    const std::uint64_t bytes = runtime::Bytes(*runtime::Find(output.dtype), *runtime::ElementCount(output.shape));
    if (bytes > run_.limit_bytes() - std::min(total_, run_.limit_bytes())) {
      return fmt::format(
          "with the output {} the tensors of this call have more than the {} bytes that a run may have; use smaller ones, "
          "or start kilnd with more (--run-data)",
          output.name, run_.limit_bytes());
    }
    if (bytes > run_.memory_bytes() - std::min(used_, run_.memory_bytes())) return "the run's memory is too small";
    if (std::string problem = Store(used_, bytes); !problem.empty()) return problem;
    used_ += RoundUp(bytes);
    tensor.storage = made_.storages_.size() - 1;
    return Add(std::move(tensor));
  }

  // Bytes at this place of the memory, for the device.
  std::string Store(std::uint64_t position, std::uint64_t bytes) {
    Storage storage{.position = position, .mapped = MappedBytes::Map(memory_, position, bytes)};
    if (storage.mapped.bytes().data() == nullptr) return "the run's memory cannot be mapped";
    total_ += bytes;
    const auto address = where_.give(storage.host());
    if (!address) return address.error().message;
    storage.address = *address;
    made_.storages_.push_back(std::move(storage));
    return {};
  }

  std::string Add(Tensor tensor) {
    const runtime::LaunchParam& param = binder_.info().params[tensor.param];
    const v1::RunTensor& shape = tensor.shape;
    const runtime::DTypeInfo* type = runtime::Find(static_cast<runtime::DType>(shape.dtype()));
    if (type == nullptr) return fmt::format("{} is of a type that is not known here", param.name);
    if (shape.strides_size() != 0 && shape.strides_size() != shape.shape_size()) {
      return fmt::format("{} has {} dimensions and {} strides", param.name, shape.shape_size(), shape.strides_size());
    }
    Storage& storage = made_.storages_[tensor.storage];
    const std::uint64_t bytes = storage.host().size();
    const auto reach = ReachOf(shape, type->bits);
    if (!reach || reach->before > shape.offset() || shape.offset() > bytes || reach->after > bytes - shape.offset()) {
      return fmt::format("the elements of {} do not lie within the {} bytes that were sent for it", param.name, bytes);
    }
    tensor.first = shape.offset() - reach->before;
    tensor.span = reach->before + reach->after;
    tensor.written = param.written || param.output;
    storage.written |= tensor.written;
    return Bind(made_.tensors_.emplace_back(std::move(tensor)), type->dtype);
  }

  std::string Bind(const Tensor& tensor, runtime::DType dtype) {
    const v1::RunTensor& shape = tensor.shape;
    made_.args_[tensor.param] = runtime::Arg::Of(runtime::Tensor{.data = made_.storages_[tensor.storage].address + shape.offset(),
                                                                 .dtype = dtype,
                                                                 .place = where_.place,
                                                                 .device = where_.device,
                                                                 .shape = {shape.shape().data(), static_cast<std::size_t>(shape.shape_size())},
                                                                 .strides = shape.strides_size() == 0 ? nullptr : shape.strides().data()});
    return {};
  }

  const v1::DeviceRun& run_;
  const int memory_;
  const runtime::Binder& binder_;
  const Where& where_;
  std::uint64_t used_;                                  // of the memory
  std::uint64_t total_ = 0;                             // bytes of tensors
  std::vector<std::optional<std::size_t>> storage_of_;  // of each argument that is a tensor
  RunTensors made_;
};

std::expected<RunTensors, std::string> RunTensors::Create(const v1::DeviceRun& run, int memory, const runtime::Binder& binder, const Where& where) {
  if (run.positions_size() != run.arguments_size()) return std::unexpected("a run needs a position for each argument");
  return Maker(run, memory, binder, where).Make();
}

void RunTensors::Describe(const runtime::Binder& binder, v1::DeviceResult& result) const {
  std::vector<std::uint32_t> with(storages_.size());  // the output that comes with a storage's bytes, from 1; 0: none yet
  for (const Tensor& tensor : tensors_) {
    if (!tensor.written) continue;
    const Storage& storage = storages_[tensor.storage];
    v1::RunOutput& output = *result.mutable_result()->add_outputs();
    output.set_param(static_cast<std::uint32_t>(tensor.param));
    output.set_name(Utf8(binder.info().params[tensor.param].name));
    *output.mutable_tensor() = tensor.shape;
    output.mutable_tensor()->set_storage(with[tensor.storage]);
    output.mutable_tensor()->set_bytes(with[tensor.storage] == 0 ? storage.host().size() : 0);
    output.set_argument(tensor.argument);
    result.add_positions(storage.position);
    if (with[tensor.storage] == 0) with[tensor.storage] = static_cast<std::uint32_t>(result.result().outputs_size());
  }
}

}  // namespace kiln::server
