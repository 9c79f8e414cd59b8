// SPDX-License-Identifier: Apache-2.0
#include "server/run_tensors.h"

#include <sys/mman.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>

#include "server/utf8.h"

namespace kiln::server {
namespace {

constexpr std::uint64_t kPage = 4096;

std::uint64_t RoundUp(std::uint64_t bytes) { return (bytes + kPage - 1) / kPage * kPage; }

// The bytes before and from the first element on that the elements span, those that they begin in included; nothing on overflow.
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
    int next = 0;
    std::vector<runtime::Arg> inputs;
    for (std::size_t i = 0; i < params.size(); ++i) {
      if (allocate && params[i].output) continue;
      if (std::string problem = Take(i, next++); !problem.empty()) return std::unexpected(std::move(problem));
      inputs.push_back(made_.args_[i]);
    }
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
      case v1::RunArgument::KIND_NOT_SET: return fmt::format("argument {} is none", index);
    }
    Tensor tensor{.param = param, .argument = static_cast<std::uint32_t>(index) + 1, .shape = argument.tensor(), .position = run_.positions(index)};
    if (tensor.position % kPage != 0 || tensor.position > run_.memory_bytes() ||
        tensor.shape.bytes() > run_.memory_bytes() - tensor.position) {
      return fmt::format("argument {} lies outside of the run's memory", index);
    }
    return Add(std::move(tensor));
  }

  std::string Allocate(const runtime::OutputShape& output) {
    Tensor tensor{.param = output.param, .position = used_};
    tensor.shape.set_dtype(static_cast<v1::DType>(output.dtype));
    for (const std::int64_t extent : output.shape) tensor.shape.add_shape(extent);
    tensor.shape.set_bytes(runtime::Bytes(*runtime::Find(output.dtype), *runtime::ElementCount(output.shape)));
    if (tensor.shape.bytes() > run_.limit_bytes() - std::min(total_, run_.limit_bytes())) {
      return fmt::format("with the output {} the tensors of this call have more than the {} bytes that a run may have; use smaller ones, "
                         "or start kilnd with more (--run-data)", output.name, run_.limit_bytes());
    }
    if (tensor.shape.bytes() > run_.memory_bytes() - std::min(used_, run_.memory_bytes())) return "the run's memory is too small";
    used_ += RoundUp(tensor.shape.bytes());
    return Add(std::move(tensor));
  }

  std::string Add(Tensor tensor) {
    const runtime::LaunchParam& param = binder_.info().params[tensor.param];
    const v1::RunTensor& shape = tensor.shape;
    const runtime::DTypeInfo* type = runtime::Find(static_cast<runtime::DType>(shape.dtype()));
    if (type == nullptr) return fmt::format("{} is of a type that is not known here", param.name);
    if (shape.strides_size() != 0 && shape.strides_size() != shape.shape_size()) {
      return fmt::format("{} has {} dimensions and {} strides", param.name, shape.shape_size(), shape.strides_size());
    }
    const auto reach = ReachOf(shape, type->bits);
    if (!reach || reach->before > shape.offset() || shape.offset() > shape.bytes() ||
        reach->after > shape.bytes() - shape.offset()) {
      return fmt::format("the elements of {} do not lie within the {} bytes that were sent for it", param.name, shape.bytes());
    }
    tensor.first = shape.offset() - reach->before;
    tensor.span = reach->before + reach->after;
    tensor.written = param.written || param.output;
    tensor.mapped = MappedBytes::Map(memory_, tensor.position, shape.bytes());
    if (tensor.mapped.bytes().data() == nullptr) return "the run's memory cannot be mapped";
    total_ += shape.bytes();
    const auto address = where_.give(tensor.host());
    if (!address) return address.error().message;
    tensor.address = *address;
    return Bind(made_.tensors_.emplace_back(std::move(tensor)), type->dtype);
  }

  std::string Bind(const Tensor& tensor, runtime::DType dtype) {
    const v1::RunTensor& shape = tensor.shape;
    made_.args_[tensor.param] = runtime::Arg::Of(runtime::Tensor{
        .data = tensor.address + shape.offset(),
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
  std::uint64_t used_;       // of the memory
  std::uint64_t total_ = 0;  // bytes of tensors
  RunTensors made_;
};

std::expected<RunTensors, std::string> RunTensors::Create(const v1::DeviceRun& run, int memory, const runtime::Binder& binder,
                                                          const Where& where) {
  if (run.positions_size() != run.arguments_size()) return std::unexpected("a run needs a position for each argument");
  return Maker(run, memory, binder, where).Make();
}

void RunTensors::Describe(const runtime::Binder& binder, v1::DeviceResult& result) const {
  for (const Tensor& tensor : tensors_) {
    if (!tensor.written) continue;
    v1::RunOutput& output = *result.mutable_result()->add_outputs();
    output.set_param(static_cast<std::uint32_t>(tensor.param));
    output.set_name(Utf8(binder.info().params[tensor.param].name));
    *output.mutable_tensor() = tensor.shape;
    output.set_argument(tensor.argument);
    result.add_positions(tensor.position);
  }
}

}  // namespace kiln::server
