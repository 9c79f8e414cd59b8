// SPDX-License-Identifier: Apache-2.0
#include <charconv>
#include <chrono>
#include <expected>
#include <optional>
#include <vector>

#include <fmt/format.h>

#include "clients/common/run_names.h"
#include "clients/runtime/artifact.h"
#include "clients/runtime/kernel.h"
#include "clients/runtime/sensors/sensor.h"
#include "clients/runtime/timing.h"
#include "server/execute/device_timing.h"
#include "server/execute/device_worker.h"
#include "server/execute/gpu_copies.h"
#include "server/execute/gpu_energy.h"
#include "server/execute/gpu_probe.h"
#include "server/execute/gpu_session.h"
#include "server/execute/loaded_programs.h"
#include "server/execute/run_tensors.h"
#include "server/system/utf8.h"
#include "server/worker/gpu_files.h"

namespace kiln::server {
namespace {

using DevicePtr = std::shared_ptr<const runtime::Device>;

constexpr runtime::DriverKind kDrivers[] = {runtime::DriverKind::kCuda, runtime::DriverKind::kHip};

std::expected<DevicePtr, std::string> Open(std::shared_ptr<const runtime::Driver> driver, int index) {
  auto device = runtime::Device::Open(std::move(driver), index);
  if (!device) return std::unexpected(device.error().message);
  return std::move(*device);
}

// "cuda:0"
std::expected<DevicePtr, std::string> Open(std::string_view name) {
  for (const auto kind : kDrivers) {
    const std::string prefix = fmt::format("{}:", Name(kind));
    if (!name.starts_with(prefix)) continue;
    int index = -1;
    std::from_chars(name.data() + prefix.size(), name.data() + name.size(), index);
    const auto driver = runtime::Driver::Open(kind);
    if (!driver) return std::unexpected(driver.error().message);
    return Open(*driver, index);
  }
  return std::unexpected(fmt::format("{} is no GPU", name));
}

// A driver that exists but does not start: most often because of the permissions of its device files.
std::string WhyNot(const runtime::Error& error, runtime::DriverKind kind) {
  const GpuDriver driver = kind == runtime::DriverKind::kCuda ? GpuDriver::kNvidia : GpuDriver::kAmd;
  const std::string files = error.name.empty() ? std::string() : GpuFilesProblem(driver);
  return files.empty() ? error.message : fmt::format("{}; {}", error.message, files);
}

void Describe(const runtime::DeviceInfo& info, v1::DeviceInfo& device) {
  device.set_name(fmt::format("{}:{}", Name(info.kind), info.index));
  device.set_target(info.arch);
  device.set_description(info.name);
  device.set_memory_bytes(info.memory_bytes);
  device.set_driver_version(info.driver_version);
  device.set_pci(info.pci);
}

// A worker that was given no device lists all of them, and tries the first on behalf of the others.
class GpuDevice final : public WorkerProgram::Device {
 public:
  explicit GpuDevice(const cache::Clock& clock) : clock_(clock) {}

  void Start(std::string_view device) override {
    device_ = device.empty() ? Find() : Open(device);
    if (device_) (void)ProbeGpu(*device_, 0);  // fails again where it matters
    if (device_ && !device.empty()) sensor_ = runtime::OpenSensor((*device_)->info().kind, (*device_)->info().pci);
  }

  std::string Trouble() override {
    if (!device_) return Utf8(device_.error());
    const auto works = ProbeGpu(*device_, 1);
    return works ? std::string() : Utf8(works.error());
  }

  v1::DeviceList List() override { return list_; }

  v1::DeviceResult Run(const v1::DeviceRun& run, int memory, const WorkerProgram::OnStage& on_stage) override {
    v1::DeviceResult result;
    bool of_device = !device_;
    if (auto done = TryRun(run, memory, on_stage, result, of_device); !done) {
      result.Clear();
      result.set_refusal(Utf8(done.error()));
      result.set_unusable(of_device);  // the next worker may find it, or memory
    }
    return result;
  }

  v1::DeviceResult Measure(const v1::DeviceMeasure& measure, int memory, const WorkerProgram::OnStage& on_stage) override {
    v1::DeviceResult result;
    bool of_device = !device_;
    if (auto done = TryMeasure(measure, memory, on_stage, result, of_device); !done) {
      result.Clear();
      result.set_refusal(Utf8(done.error()));
      result.set_unusable(of_device);
    }
    return result;
  }

 private:
  using Done = std::expected<void, std::string>;

  // The first there is.
  std::expected<DevicePtr, std::string> Find() {
    std::expected<DevicePtr, std::string> first = std::unexpected("no driver finds a device");
    for (const auto kind : kDrivers) {
      const auto driver = runtime::Driver::Open(kind);
      const auto devices = driver ? runtime::ListDevices(**driver) : std::unexpected(driver.error());
      if (!devices) {
        list_.add_problems(Utf8(WhyNot(devices.error(), kind)));
        if (!first) first = std::unexpected(list_.problems(0));
        continue;
      }
      for (const runtime::DeviceInfo& info : *devices) Describe(info, *list_.add_devices());
      if (!first && !devices->empty()) first = Open(*driver, 0);
    }
    return first;
  }

  // `of_device`: that it is the device's fault, which may have no memory now.
  Done TryRun(const v1::DeviceRun& run, int memory, const WorkerProgram::OnStage& on_stage, v1::DeviceResult& result, bool& of_device) {
    const auto began = clock_.SteadyNow();
    if (!device_) return std::unexpected(device_.error());
    const DevicePtr device = *device_;
    v1::CompileReply reply;
    if (!reply.ParseFromString(run.reply())) return std::unexpected("the artifact cannot be read");
    v1::RunResult& said = *result.mutable_result();
    said.set_key(reply.key());
    said.set_target(reply.artifact().target());
    said.set_device(device->info().name);
    session_.reset();  // its memory may be what this run needs
    auto kernel = Load(kernels_, run.reply(), reply, run.module());
    if (!kernel) return Refuse(kernel.error(), result);
    GpuCopies copies(device);
    const auto place = device->info().kind == runtime::DriverKind::kCuda ? runtime::Place::kCuda : runtime::Place::kHip;
    const auto give = [&](std::span<std::byte> host) {
      auto given = copies.Give(host);
      of_device = !given;
      return given;
    };
    auto tensors = RunTensors::Create(run, memory, (*kernel)->binder(), {.place = place, .device = device->info().index, .give = give});
    if (!tensors) return std::unexpected(std::move(tensors.error()));
    AddTiming(said, "load", clock_.SteadyNow() - began);
    on_stage("run");
    const auto started = clock_.SteadyNow();
    if (auto ran = Execute(run.options(), **kernel, *tensors, copies, said); !ran) return Refuse(ran.error(), result);
    AddTiming(said, "run", clock_.SteadyNow() - started);
    said.set_finished(true);
    tensors->Describe((*kernel)->binder(), result);
    return {};
  }

  Done TryMeasure(const v1::DeviceMeasure& measure, int memory, const WorkerProgram::OnStage& on_stage, v1::DeviceResult& result, bool& of_device) {
    const v1::DeviceRun& run = measure.run();
    if (!device_) return std::unexpected(device_.error());
    v1::CompileReply reply;
    if (!reply.ParseFromString(run.reply())) return std::unexpected("the artifact cannot be read");
    if (!session_ || session_->id() != measure.session()) {
      session_.reset();  // before the next one takes memory
      session_.emplace(measure.session(), *device_);
    }
    auto kernel = Load(*session_, run.reply(), reply, run.module());
    if (!kernel) return Refuse(kernel.error(), result);
    if (auto prepared = session_->Prepare(run, memory, (*kernel)->binder()); !prepared) {
      of_device = prepared.error().of_device;
      return std::unexpected(std::move(prepared.error().text));
    }
    on_stage("run");
    const auto measured =
        measure.energy_seconds() > 0 ? MeasureEnergy(**kernel, measure.energy_seconds(), result) : MeasureTimes(**kernel, run, result);
    if (!measured) return Refuse(measured.error(), result);
    result.mutable_result()->set_finished(true);
    return {};
  }

  runtime::Result<void> MeasureTimes(runtime::Kernel& kernel, const v1::DeviceRun& run, v1::DeviceResult& result) {
    runtime::GpuClocks clocks;
    const auto times = session_->Measure(kernel, run.options().repeat(), [&] {
      if (sensor_) clocks = (*sensor_)->Clocks();
    });
    if (!times) return std::unexpected(times.error());
    for (const double time : *times) result.mutable_result()->add_microseconds(time);
    result.set_compute_mhz(clocks.compute_mhz.value_or(0));
    result.set_memory_mhz(clocks.memory_mhz.value_or(0));
    return {};
  }

  runtime::Result<void> MeasureEnergy(runtime::Kernel& kernel, double seconds, v1::DeviceResult& result) {
    if (!sensor_) {
      result.set_energy_problem(Utf8(sensor_.error()));
      return {};
    }
    if (auto restored = session_->Restore(); !restored) return restored;
    auto energy = server::MeasureEnergy(kernel, session_->args(), **sensor_, clock_, std::chrono::duration<double>(seconds));
    if (!energy) return std::unexpected(std::move(energy.error()));
    if (*energy) *result.mutable_energy() = std::move(**energy);
    else result.set_energy_problem(Utf8(energy->error()));
    return {};
  }

  // `programs` has Find and Add, as LoadedPrograms.
  template <class Programs>
  runtime::Result<runtime::Kernel*> Load(Programs& programs, const std::string& bytes, const v1::CompileReply& reply, const std::string& module) {
    auto artifact = runtime::DecodeArtifact(reply.artifact().SerializeAsString());
    if (!artifact) return std::unexpected(std::move(artifact.error()));
    NameParameters(module, artifact->launch);
    std::string key = LoadedUnder(bytes);  // and the names, which the kernel's error texts hold
    for (const runtime::LaunchParam& param : artifact->launch.params) key.append(param.name).push_back('\0');
    if (runtime::Kernel* known = programs.Find(key)) return known;
    auto kernel = runtime::Kernel::Load(*artifact, *device_);
    if (!kernel) return std::unexpected(std::move(kernel.error()));
    return programs.Add(std::move(key), std::move(*kernel));
  }

  static runtime::Result<void> Execute(const v1::RunOptions& options, runtime::Kernel& kernel, const RunTensors& tensors, const GpuCopies& copies,
                                       v1::RunResult& said) {
    // The first launch's results are returned; it is timed too where no others are asked for.
    auto once = runtime::MeasureLaunches(kernel, tensors.args(), nullptr, 0, 1);
    if (!once) return std::unexpected(std::move(once.error()));
    if (auto fetched = copies.Fetch(tensors); !fetched) return fetched;
    if (options.repeat() > 0) {
      once = runtime::MeasureLaunches(kernel, tensors.args(), nullptr, 0, static_cast<int>(options.repeat()));
      if (!once) return std::unexpected(std::move(once.error()));
    }
    for (const double time : *once) said.add_microseconds(time);
    return {};
  }

  // If the driver reports an error while it loads or runs a kernel, the kernel is at fault and the context is not used again. Any other
  // error is the request's fault.
  static Done Refuse(const runtime::Error& error, v1::DeviceResult& result) {
    if (error.kind != runtime::Error::Kind::kDriver) return std::unexpected(error.message);
    v1::RunFault& fault = *result.mutable_result()->add_faults();
    fault.set_kind("driver error");
    fault.set_name(error.name);
    fault.set_message(Utf8(error.message));
    result.set_unusable(true);
    return {};
  }

  const cache::Clock& clock_;
  v1::DeviceList list_;
  std::expected<DevicePtr, std::string> device_ = std::unexpected("no device was opened");
  LoadedPrograms<runtime::Kernel> kernels_;
  std::expected<std::unique_ptr<runtime::Sensor>, std::string> sensor_ = std::unexpected("no device was opened");
  std::optional<GpuSession> session_;  // of the last tuning; a run ends it
};

}  // namespace

std::unique_ptr<WorkerProgram::Device> MakeGpuDevice(const cache::Clock& clock) { return std::make_unique<GpuDevice>(clock); }

}  // namespace kiln::server
