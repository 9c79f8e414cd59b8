// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "clients/cli/random_data.h"
#include "clients/cli/report.h"
#include "clients/cli/run_arguments.h"
#include "clients/cli/sources.h"
#include "clients/runtime/kernel.h"
#include "clients/runtime/timing.h"

namespace kiln::cli {
namespace {

using runtime::Artifact;
using Align = Table::Align;

std::expected<std::shared_ptr<const runtime::Device>, Error> OpenDevice(int wanted, std::string_view target) {
  Error last = InvalidInput("no GPU driver opens here (libcuda.so.1, libamdhip64.so); `kiln devices` shows what there is");
  last.code = ErrorCode::kUnavailable;
  for (const auto kind : {runtime::DriverKind::kCuda, runtime::DriverKind::kHip}) {
    if (!target.empty() && !target.starts_with(Name(kind))) continue;
    const auto driver = runtime::Driver::Open(kind);
    if (!driver) continue;
    auto device = runtime::Device::Open(*driver, wanted);
    if (device) return std::move(*device);
    last = ToError(device.error());
  }
  return std::unexpected(std::move(last));
}

// A parameter's tensor on the device.
struct Buffer {
  const runtime::LaunchParam* param;
  std::vector<std::int64_t> shape;
  std::uint64_t elements = 1;
  runtime::DeviceBuffer memory;
};

struct RunCommand : RunArguments {
  void Run(Context& context) const {
    const auto done = emulated() ? RunEmulated(context, *this) : TryRun(context);
    if (!done) context.Fail(done.error());
  }

  std::expected<void, Error> TryRun(Context& context) const {
    const auto gpu = OpenDevice(index(), program.target);
    if (!gpu) return std::unexpected(gpu.error());
    const auto bytes = ArtifactBytes(context, (*gpu)->info().arch);
    if (!bytes) return std::unexpected(bytes.error());
    const auto artifact = runtime::DecodeArtifact(*bytes);
    if (!artifact) return std::unexpected(ToError(artifact.error()));
    auto kernel = runtime::Kernel::Load(*artifact, *gpu);
    if (!kernel) return std::unexpected(ToError(kernel.error()));
    return Launch(context, *artifact, **kernel);
  }

  // The file may be an artifact already.
  std::expected<std::string, Error> ArtifactBytes(Context& context, const std::string& arch) const {
    CompileArguments arguments = program;
    if (arguments.target.empty()) arguments.target = arch;
    auto request = MakeRequest(arguments);
    if (!request) return std::unexpected(std::move(request.error()));
    const std::string_view head = std::string_view(request->module).substr(0, 16);
    if (head.find("cuda:") == 2 || head.find("hip:") == 2) return std::move(request->module);  // its target is field 1
    auto compiled = CompileWithProgress(context, arguments, *request, true);
    if (!compiled) return std::unexpected(std::move(compiled.error()));
    return std::move(compiled->artifact);
  }

  std::expected<void, Error> Launch(const Context& context, const Artifact& artifact, runtime::Kernel& kernel) const {
    auto sizes = ParseValues(dims);
    if (!sizes) return std::unexpected(std::move(sizes.error()));
    auto values = ParseValues(scalars);
    if (!values) return std::unexpected(std::move(values.error()));
    RandomData random(seed);
    std::vector<Buffer> buffers(artifact.launch.params.size());
    std::vector<runtime::Arg> args;
    for (std::size_t i = 0; i < buffers.size(); ++i) {
      const runtime::LaunchParam& param = artifact.launch.params[i];
      if (!param.tensor) {
        args.push_back(ScalarArg(param, *values));
        continue;
      }
      auto made = MakeBuffer(artifact.launch, param, *sizes, kernel, random);
      if (!made) return std::unexpected(std::move(made.error()));
      buffers[i] = std::move(*made);
      args.push_back(runtime::Arg::Of(runtime::Tensor{.data = buffers[i].memory.address(),
                                                      .dtype = param.dtype,
                                                      .place = PlaceOf(kernel),
                                                      .device = index(),
                                                      .shape = buffers[i].shape}));
    }
    const auto launched = kernel.Launch(args, nullptr);
    if (!launched) return std::unexpected(ToError(launched.error()));
    if (const auto waited = runtime::SynchronizeStream(kernel.device(), nullptr); !waited) {
      return std::unexpected(ToError(waited.error()));
    }
    return Show(context, buffers, args, kernel);
  }

  static runtime::Place PlaceOf(const runtime::Kernel& kernel) {
    return kernel.device().driver().kind() == runtime::DriverKind::kCuda ? runtime::Place::kCuda : runtime::Place::kHip;
  }

  static runtime::Arg ScalarArg(const runtime::LaunchParam& param, const Values& values) {
    const std::int64_t value = ScalarOf(param, values);
    return runtime::IsFloat(param.dtype) ? runtime::Arg::Of(static_cast<double>(value)) : runtime::Arg::Of(value);
  }

  static std::expected<Buffer, Error> MakeBuffer(const runtime::LaunchInfo& info, const runtime::LaunchParam& param,
                                                 const Values& sizes, const runtime::Kernel& kernel, RandomData& random) {
    Buffer buffer{.param = &param};
    auto shape = ShapeOf(info, param, sizes);
    if (!shape) return std::unexpected(std::move(shape.error()));
    buffer.shape = std::move(*shape);
    const auto count = runtime::ElementCount(buffer.shape);
    const runtime::DTypeInfo* type = runtime::Find(param.dtype);
    if (!count || type == nullptr) return std::unexpected(InvalidInput("the shape of " + param.name + " makes no sense"));
    buffer.elements = *count;
    const std::uint64_t bytes = runtime::Bytes(*type, *count);
    auto memory = runtime::DeviceBuffer::Allocate(kernel.shared_device(), bytes);
    if (!memory) return std::unexpected(ToError(memory.error()));
    buffer.memory = std::move(*memory);
    const std::string data = random.Fill(*type, *count);
    if (const auto copied = buffer.memory.CopyFrom(data.data(), data.size()); !copied) {
      return std::unexpected(ToError(copied.error()));
    }
    return buffer;
  }

  std::expected<void, Error> Show(const Context& context, const std::vector<Buffer>& buffers,
                                  std::span<const runtime::Arg> args, runtime::Kernel& kernel) const {
    Table table({{"tensor"}, {"dtype"}, {"shape"}, {"", Align::kLeft}, {"largest", Align::kRight},
                 {"not finite", Align::kRight}});
    std::vector<Json> tensors;
    for (const Buffer& buffer : buffers) {
      if (buffer.param == nullptr) continue;
      std::string data(buffer.memory.bytes(), '\0');
      if (const auto copied = buffer.memory.CopyTo(data.data(), data.size()); !copied) {
        return std::unexpected(ToError(copied.error()));
      }
      if (const auto waited = runtime::SynchronizeStream(kernel.device(), nullptr); !waited) {
        return std::unexpected(ToError(waited.error()));
      }
      const Summary summary = Summarize(*runtime::Find(buffer.param->dtype), data);
      const std::string_view type = runtime::Name(buffer.param->dtype);
      const std::string largest = summary.known ? fmt::format("{:.4g}", summary.largest) : "-";
      table.Add({buffer.param->name, std::string(type), fmt::format("{}", fmt::join(buffer.shape, "×")),
                 buffer.param->written || buffer.param->output ? "written" : "", largest,
                 summary.known ? std::to_string(summary.not_finite) : "-"});
      tensors.push_back(Json::Object({{"name", buffer.param->name}, {"dtype", type}, {"largest", summary.largest},
                                      {"not_finite", summary.not_finite}}));
    }
    auto times = runtime::MeasureLaunches(kernel, args, nullptr, 5, repeat.value_or(50));
    if (!times) return std::unexpected(ToError(times.error()));
    std::ranges::sort(*times);
    const double median = (*times)[times->size() / 2];
    if (context.json()) {
      context.Print(Json::Object({{"device", kernel.device().info().name}, {"target", kernel.target()},
                                  {"microseconds", median}, {"best", times->front()}, {"tensors", Json::Array(tensors)}}));
      return {};
    }
    fmt::print("{} on {}\n{}\nmedian {:.2f} µs, best {:.2f} µs of {} launches\n",
               Paint(kernel.target(), Style::kBold, context.colours()), kernel.device().info().name,
               table.Text(context.colours()), median, times->front(), times->size());
    return {};
  }
};

}  // namespace

void AddRun(CLI::App& app, Context& context) {
  const auto command = std::make_shared<RunCommand>();
  CLI::App& sub = *app.add_subcommand("run", "Run a program with random data and time it: on a GPU here, or in the daemon's emulator");
  AddProgram(sub, command->program);
  sub.add_option("--dim", command->dims, "NAME=SIZE of a dimension that the program leaves open");
  sub.add_option("--scalar", command->scalars, "NAME=VALUE of a scalar parameter (1)");
  sub.add_option("--device", command->device, "index of a GPU, or emu:sm_90a and the like, as `kiln devices` shows them");
  sub.add_option("--repeat", command->repeat, "timed launches (50; emulated: 1)")->check(CLI::Range(1, 10'000));
  sub.add_option("--seed", command->seed, "of the random data");
  sub.add_flag("--check", command->check, "emulated: look for races, accesses out of bounds, missing waits and the like");
  sub.add_option("--schedule", command->schedule,
                 "emulated: seed of the order in which threads run; even: asynchronous copies land late, odd: at once");
  sub.add_option("--run-limit", command->run_limit, "emulated: seconds that the run may take");
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
