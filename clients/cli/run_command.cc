// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>

#include <fmt/format.h>

#include "clients/cli/random_data.h"
#include "clients/cli/report.h"
#include "clients/cli/run_arguments.h"
#include "clients/cli/sources.h"
#include "clients/cli/tensor_plan.h"
#include "clients/common/run_names.h"
#include "clients/runtime/kernel.h"
#include "clients/runtime/overlap.h"
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

// A parameter on the device; of a scalar and of a tensor in another's memory without memory.
struct Buffer {
  const runtime::LaunchParam* param;
  PlannedTensor plan;
  runtime::DeviceBuffer memory;
};

// What a run left in one.
struct Tensor {
  const runtime::LaunchParam& param;
  const std::vector<std::int64_t>& shape;
  Summary summary;
};

struct RunCommand : RunArguments {
  void Run(Context& context) const {
    const auto done = emulated() ? RunEmulated(context, *this) : TryRun(context);
    if (!done) context.Fail(done.error());
  }

  std::expected<void, Error> TryRun(Context& context) const {
    if (auto able = CheckForGpu(); !able) return able;
    const auto gpu = OpenDevice(index(), program.target);
    if (!gpu) return std::unexpected(gpu.error());
    const auto artifact = FindArtifact(context, (*gpu)->info().arch);
    if (!artifact) return std::unexpected(artifact.error());
    auto kernel = runtime::Kernel::Load(*artifact, *gpu);
    if (!kernel) return std::unexpected(ToError(kernel.error()));
    return Launch(context, *artifact, **kernel);
  }

  // The file may be an artifact already.
  std::expected<Artifact, Error> FindArtifact(Context& context, const std::string& arch) const {
    CompileArguments arguments = program;
    if (arguments.target.empty()) arguments.target = arch;
    auto request = MakeRequest(arguments);
    if (!request) return std::unexpected(std::move(request.error()));
    const std::string_view head = std::string_view(request->module).substr(0, 16);
    if (head.find("cuda:") == 2 || head.find("hip:") == 2) return Decode(request->module, {});  // its target is field 1
    const auto compiled = CompileWithProgress(context, arguments, *request, true);
    if (!compiled) return std::unexpected(compiled.error());
    return Decode(compiled->artifact, request->module);
  }

  static std::expected<Artifact, Error> Decode(const std::string& bytes, std::string_view module) {
    auto artifact = runtime::DecodeArtifact(bytes);
    if (!artifact) return std::unexpected(ToError(artifact.error()));
    NameParameters(module, artifact->launch);
    return std::move(*artifact);
  }

  std::expected<void, Error> Launch(const Context& context, const Artifact& artifact, runtime::Kernel& kernel) const {
    const auto values = Values::Parse(*this);
    if (!values) return std::unexpected(values.error());
    KnownNames names;
    names.Add(artifact.launch);
    if (auto known = names.Check(*values); !known) return known;
    std::vector<Buffer> buffers;
    const auto args = MakeArguments(artifact.launch, *values, kernel, buffers);
    if (!args) return std::unexpected(args.error());
    if (const auto launched = kernel.Launch(*args, nullptr); !launched) return std::unexpected(ToError(launched.error()));
    if (const auto waited = runtime::SynchronizeStream(kernel.device(), nullptr); !waited) {
      return std::unexpected(ToError(waited.error()));
    }
    const auto tensors = Look(buffers, kernel);
    if (!tensors) return std::unexpected(tensors.error());
    const auto times = Measure(*args, kernel);
    if (!times) return std::unexpected(times.error());
    Show(context, *tensors, *times, kernel);
    return {};
  }

  // Fills `buffers`, one for each parameter, to which the arguments refer.
  std::expected<std::vector<runtime::Arg>, Error> MakeArguments(const runtime::LaunchInfo& info, const Values& values, const runtime::Kernel& kernel,
                                                                std::vector<Buffer>& buffers) const {
    auto plan = PlanTensors(info, values);
    if (!plan) return std::unexpected(std::move(plan.error()));
    RandomData random(seed);
    for (std::size_t i = 0; i < plan->size(); ++i) {
      auto made = MakeBuffer(info.params[i], i, std::move((*plan)[i]), kernel, random);
      if (!made) return std::unexpected(std::move(made.error()));
      buffers.push_back(std::move(*made));
    }
    std::vector<runtime::Arg> args;
    for (const Buffer& buffer : buffers) {
      if (buffer.plan.type == nullptr) {
        const auto scalar = ScalarOf(*buffer.param, values);
        if (!scalar) return std::unexpected(scalar.error());
        args.push_back(std::visit([](auto number) { return runtime::Arg::Of(number); }, *scalar));
        continue;
      }
      args.push_back(runtime::Arg::Of(runtime::Tensor{.data = buffers[buffer.plan.owner].memory.address() + buffer.plan.offset,
                                                      .dtype = buffer.param->dtype,
                                                      .place = PlaceOf(kernel),
                                                      .device = index(),
                                                      .shape = buffer.plan.shape}));
    }
    if (auto problem = runtime::ForbiddenOverlap(kernel.binder(), args)) return std::unexpected(InvalidInput(std::move(*problem)));
    return args;
  }

  static runtime::Place PlaceOf(const runtime::Kernel& kernel) {
    return kernel.device().driver().kind() == runtime::DriverKind::kCuda ? runtime::Place::kCuda : runtime::Place::kHip;
  }

  static std::expected<Buffer, Error> MakeBuffer(const runtime::LaunchParam& param, std::size_t at, PlannedTensor plan, const runtime::Kernel& kernel,
                                                 RandomData& random) {
    Buffer buffer{.param = &param, .plan = std::move(plan), .memory = {}};
    if (buffer.plan.type == nullptr || buffer.plan.owner != at) return buffer;
    auto memory = runtime::DeviceBuffer::Allocate(kernel.shared_device(), buffer.plan.memory_bytes);
    if (!memory) return std::unexpected(ToError(memory.error()));
    buffer.memory = std::move(*memory);
    const std::string data = random.Fill(*buffer.plan.type, buffer.plan.memory_elements());
    if (const auto copied = buffer.memory.CopyFrom(data.data(), buffer.plan.memory_bytes); !copied) {
      return std::unexpected(ToError(copied.error()));
    }
    return buffer;
  }

  static std::expected<std::vector<Tensor>, Error> Look(const std::vector<Buffer>& buffers, const runtime::Kernel& kernel) {
    std::vector<Tensor> tensors;
    for (const Buffer& buffer : buffers) {
      if (buffer.plan.type == nullptr) continue;
      const runtime::DeviceBuffer& memory = buffers[buffer.plan.owner].memory;
      std::string data(memory.bytes(), '\0');
      if (const auto copied = memory.CopyTo(data.data(), data.size()); !copied) return std::unexpected(ToError(copied.error()));
      if (const auto waited = runtime::SynchronizeStream(kernel.device(), nullptr); !waited) {
        return std::unexpected(ToError(waited.error()));
      }
      const auto own = std::string_view(data).substr(buffer.plan.offset, buffer.plan.bytes);
      tensors.push_back({*buffer.param, buffer.plan.shape, Summarize(*buffer.plan.type, own)});
    }
    return tensors;
  }

  // In microseconds, the shortest first.
  std::expected<std::vector<double>, Error> Measure(std::span<const runtime::Arg> args, runtime::Kernel& kernel) const {
    auto times = runtime::MeasureLaunches(kernel, args, nullptr, 5, repeat.value_or(50));
    if (!times) return std::unexpected(ToError(times.error()));
    std::ranges::sort(*times);
    return std::move(*times);
  }

  static Json ToJson(const Tensor& tensor) {
    return Json::Object({{"name", tensor.param.name},
                         {"dtype", runtime::Name(tensor.param.dtype)},
                         {"largest", tensor.summary.largest},
                         {"not_finite", tensor.summary.not_finite}});
  }

  static void Show(const Context& context, const std::vector<Tensor>& tensors, const std::vector<double>& times, const runtime::Kernel& kernel) {
    const double median = times[times.size() / 2];
    if (context.json()) {
      return context.Print(Json::Object({{"device", kernel.device().info().name},
                                         {"target", kernel.target()},
                                         {"microseconds", median},
                                         {"best", times.front()},
                                         {"tensors", Json::Map(tensors, ToJson)}}));
    }
    Table table({{"tensor"}, {"dtype"}, {"shape"}, {"", Align::kLeft}, {"largest", Align::kRight}, {"not finite", Align::kRight}});
    for (const auto& [param, shape, summary] : tensors) {
      table.Add({param.name, std::string(runtime::Name(param.dtype)), fmt::format("{}", fmt::join(shape, "×")),
                 param.written || param.output ? "written" : "", summary.known ? fmt::format("{:.4g}", summary.largest) : "-",
                 summary.known ? std::to_string(summary.not_finite) : "-"});
    }
    fmt::print("{} on {}\n{}\nmedian {:.2f} µs, best {:.2f} µs of {} launches\n", Paint(kernel.target(), Style::kBold, context.colours()),
               kernel.device().info().name, table.Text(context.colours()), median, times.front(), times.size());
  }
};

}  // namespace

void AddRun(CLI::App& app, Context& context) {
  const auto command = std::make_shared<RunCommand>();
  CLI::App& sub = *app.add_subcommand("run", "Run a program with random data and time it: on a GPU here, or in the daemon's emulator");
  AddProgram(sub, command->program);
  sub.add_option("--dim", command->dims, "NAME=INTEGER of a dimension that the program leaves open");
  sub.add_option("--scalar", command->scalars, "NAME=NUMBER of a scalar parameter (1)");
  sub.add_option("--share", command->shares,
                 "NAME=OTHER or NAME=OTHER+ELEMENTS: a tensor in another's memory, so many of its elements from "
                 "the beginning; the program must let both overlap");
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
