// SPDX-License-Identifier: Apache-2.0
#include "clients/cpp/kernel.h"

#include <algorithm>
#include <string_view>
#include <utility>

#include "clients/runtime/kernel.h"
#include "clients/runtime/timing.h"

namespace kiln {
namespace {

static_assert(int(DType::kF16) == int(runtime::DType::kF16) && int(DType::kF4E2M1) == int(runtime::DType::kF4E2M1));

Error ToError(const runtime::Error& error) {
  if (error.kind != runtime::Error::Kind::kDriver) return {.code = ErrorCode::kInvalid, .message = error.message};
  return {.code = error.name.empty() ? ErrorCode::kUnavailable : ErrorCode::kInternal, .message = error.message};
}

template <class T>
std::expected<void, Error> ToResult(const runtime::Result<T>& result) {
  if (!result) return std::unexpected(ToError(result.error()));
  return {};
}

std::expected<std::shared_ptr<const runtime::Device>, Error> Open(std::string_view target, int index) {
  for (const auto kind : {runtime::DriverKind::kCuda, runtime::DriverKind::kHip}) {
    if (!target.starts_with(Name(kind))) continue;
    const auto driver = runtime::Driver::Open(kind);
    if (!driver) return std::unexpected(ToError(driver.error()));
    auto device = runtime::Device::Open(*driver, index);
    if (!device) return std::unexpected(ToError(device.error()));
    return std::move(*device);
  }
  return std::unexpected(Error{.code = ErrorCode::kInvalid, .message = "target " + std::string(target) + " runs on no GPU"});
}

runtime::Place PlaceOn(const runtime::Device& device) {
  return device.info().kind == runtime::DriverKind::kCuda ? runtime::Place::kCuda : runtime::Place::kHip;
}

}  // namespace

std::expected<std::vector<DeviceDescription>, Error> Devices() {
  std::vector<DeviceDescription> found;
  std::string why;
  for (const auto kind : {runtime::DriverKind::kCuda, runtime::DriverKind::kHip}) {
    const auto driver = runtime::Driver::Open(kind);
    const auto devices = driver ? runtime::ListDevices(**driver) : std::unexpected(driver.error());
    if (!devices) why += (why.empty() ? "" : "; ") + devices.error().message;
    for (const runtime::DeviceInfo& d : devices.value_or(std::vector<runtime::DeviceInfo>()))
      found.push_back({d.index, d.name, d.arch, d.memory_bytes, d.driver_version});
  }
  if (!found.empty()) return found;
  return std::unexpected(Error{.code = ErrorCode::kUnavailable, .message = why.empty() ? "there is no GPU here" : why});
}

struct DeviceMemory::Impl {
  runtime::DeviceBuffer buffer;
  std::shared_ptr<const runtime::Device> device;
};

DeviceMemory::DeviceMemory(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
DeviceMemory::~DeviceMemory() = default;
DeviceMemory::DeviceMemory(DeviceMemory&&) noexcept = default;
DeviceMemory& DeviceMemory::operator=(DeviceMemory&&) noexcept = default;

std::expected<DeviceMemory, Error> DeviceMemory::Allocate(std::uint64_t bytes, const std::string& target, int device) {
  auto opened = Open(target, device);
  if (!opened) return std::unexpected(std::move(opened.error()));
  auto buffer = runtime::DeviceBuffer::Allocate(*opened, bytes);
  if (!buffer) return std::unexpected(ToError(buffer.error()));
  return DeviceMemory(std::make_unique<Impl>(std::move(*buffer), std::move(*opened)));
}

void* DeviceMemory::data() const { return reinterpret_cast<void*>(impl_->buffer.address()); }
std::uint64_t DeviceMemory::bytes() const { return impl_->buffer.bytes(); }

std::expected<void, Error> DeviceMemory::CopyFrom(const void* host, std::uint64_t bytes) { return ToResult(impl_->buffer.CopyFrom(host, bytes)); }

std::expected<void, Error> DeviceMemory::CopyTo(void* host, std::uint64_t bytes) const {
  if (auto ok = impl_->buffer.CopyTo(host, bytes); !ok) return ToResult(ok);
  return ToResult(runtime::SynchronizeStream(*impl_->device, nullptr));
}

struct Kernel::Impl {
  std::unique_ptr<runtime::Kernel> kernel;

  std::vector<runtime::Arg> Read(const std::vector<Argument>& arguments) const {
    std::vector<runtime::Arg> read;
    for (const Argument& argument : arguments) {
      if (const auto* tensor = std::get_if<Tensor>(&argument)) {
        read.push_back(runtime::Arg::Of(runtime::Tensor{.data = reinterpret_cast<std::uint64_t>(tensor->data),
                                                        .dtype = runtime::DType(tensor->dtype),
                                                        .place = PlaceOn(kernel->device()),
                                                        .device = kernel->device().info().index,
                                                        .shape = tensor->shape,
                                                        .strides = tensor->strides.empty() ? nullptr : tensor->strides.data()}));
      } else if (const auto* integer = std::get_if<std::int64_t>(&argument)) {
        read.push_back(runtime::Arg::Of(*integer));
      } else {
        read.push_back(runtime::Arg::Of(std::get<double>(argument)));
      }
    }
    return read;
  }

  // What the binder cannot see: strides come as a bare pointer.
  static std::expected<void, Error> CheckStrides(const std::vector<Argument>& arguments) {
    for (const Argument& argument : arguments) {
      const auto* tensor = std::get_if<Tensor>(&argument);
      if (tensor == nullptr || tensor->strides.empty() || tensor->strides.size() == tensor->shape.size()) continue;
      return std::unexpected(Error{.code = ErrorCode::kInvalid,
                                   .message = "a tensor of " + std::to_string(tensor->shape.size()) + " dimensions has " +
                                              std::to_string(tensor->strides.size()) + " strides"});
    }
    return {};
  }
};

Kernel::Kernel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Kernel::~Kernel() = default;
Kernel::Kernel(Kernel&&) noexcept = default;
Kernel& Kernel::operator=(Kernel&&) noexcept = default;

std::expected<Kernel, Error> Kernel::Load(const Compiled& compiled, const LoadOptions& options) {
  auto artifact = runtime::DecodeArtifact(compiled.artifact);
  if (!artifact) return std::unexpected(ToError(artifact.error()));
  const std::size_t named = std::min(options.parameters.size(), artifact->launch.params.size());
  for (std::size_t i = 0; i < named; ++i) artifact->launch.params[i].name = options.parameters[i];
  auto device = Open(artifact->target, options.device);
  if (!device) return std::unexpected(std::move(device.error()));
  auto kernel = runtime::Kernel::Load(*artifact, std::move(*device), options.name);
  if (!kernel) return std::unexpected(ToError(kernel.error()));
  return Kernel(std::make_unique<Impl>(std::move(*kernel)));
}

std::expected<void, Error> Kernel::Launch(const std::vector<Argument>& arguments, void* stream) {
  if (auto ok = Impl::CheckStrides(arguments); !ok) return ok;
  return ToResult(impl_->kernel->Launch(impl_->Read(arguments), stream));
}

std::expected<std::vector<double>, Error> Kernel::Measure(const std::vector<Argument>& arguments, int repeat) {
  if (auto ok = Impl::CheckStrides(arguments); !ok) return std::unexpected(std::move(ok.error()));
  auto times = runtime::MeasureLaunches(*impl_->kernel, impl_->Read(arguments), nullptr, 3, repeat);
  if (!times) return std::unexpected(ToError(times.error()));
  return std::move(*times);
}

}  // namespace kiln
