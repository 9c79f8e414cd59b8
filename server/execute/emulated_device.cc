// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <chrono>
#include <expected>
#include <vector>

#include "clients/common/run_names.h"
#include "clients/runtime/artifact.h"
#include "clients/runtime/bind.h"
#include "compiler/emulator/names.h"
#include "compiler/emulator/program.h"
#include "ir/codec/decode.h"
#include "server/execute/device_timing.h"
#include "server/execute/device_worker.h"
#include "server/execute/emulated_launch.h"
#include "server/execute/loaded_programs.h"
#include "server/execute/run_tensors.h"
#include "server/system/utf8.h"

namespace kiln::server {
namespace {

using Microseconds = std::chrono::duration<double, std::micro>;

void Fill(v1::RunStatement& to, std::uint32_t number, const emulator::Names& names) {
  to.set_number(number);
  if (number >= names.statements.size()) return;
  const emulator::Statement& statement = names.statements[number];
  to.set_text(Utf8(statement.text));
  to.set_file(Utf8(statement.file));
  to.set_line(statement.line);
}

v1::RunFault ToFault(const emulator::Finding& finding, const emulator::Names& names) {
  v1::RunFault fault;
  fault.set_kind(std::string(emulator::Name(finding.kind)));
  fault.set_message(Utf8(emulator::Message(finding, names)));
  if (finding.location != 0) Fill(*fault.mutable_statement(), finding.location, names);
  if (finding.other_location != 0) Fill(*fault.mutable_other(), finding.other_location, names);
  for (const std::uint32_t index : finding.block) fault.add_block(index);
  fault.set_thread(finding.thread);
  const emulator::Element element = emulator::ElementOf(finding, names);
  fault.set_buffer(Utf8(element.buffer));
  fault.set_address(finding.place.address);
  fault.set_element(element.number);
  return fault;
}

emulator::Names NamesOf(const std::string& bytes) {
  ir::Diagnostics ignored;
  const auto module = bytes.empty() ? std::unexpected(ir::Failed()) : ir::DecodeModule(bytes, ignored);
  return module ? emulator::NamesOf(*module) : emulator::Names{};
}

std::vector<std::int64_t> StridesOf(const v1::RunTensor& tensor) {
  if (tensor.strides_size() > 0) return {tensor.strides().begin(), tensor.strides().end()};
  std::vector<std::int64_t> strides(std::size_t(tensor.shape_size()), 1);
  for (std::size_t d = strides.size(); d-- > 1;) strides[d - 1] = strides[d] * tensor.shape(int(d));
  return strides;
}

// What the tensors lie in, for checked runs.
std::vector<emulator::Memory> MemoryOf(const runtime::Binder& binder, const RunTensors& tensors) {
  std::vector<emulator::Memory> memory;
  for (const RunTensors::Tensor& tensor : tensors.tensors()) {
    const runtime::DTypeInfo& type = *runtime::Find(static_cast<runtime::DType>(tensor.shape.dtype()));
    memory.push_back({tensors.storages()[tensor.storage].host().data() + tensor.first,
                      tensor.span,
                      std::max(1u, type.bits / 8u),
                      binder.info().params[tensor.param].name,
                      {tensor.shape.shape().begin(), tensor.shape.shape().end()},
                      StridesOf(tensor.shape)});
  }
  return memory;
}

std::chrono::steady_clock::duration LimitOf(const v1::DeviceRun& run) {
  return std::chrono::duration_cast<std::chrono::steady_clock::duration>(std::chrono::duration<double>(run.limit_seconds()));
}

void Tell(const emulator::Report& report, const v1::DeviceRun& run, v1::RunResult& said) {
  said.set_finished(report.finished);
  const emulator::Names names = report.findings.empty() ? emulator::Names{} : NamesOf(run.module());
  for (const emulator::Finding& finding : report.findings) *said.add_faults() = ToFault(finding, names);
}

// A run that is ready to be made.
struct Execution {
  emulator::Program& program;
  EmulatedLaunch launch;
  emulator::Options options;

  std::expected<emulator::Report, std::string> Launch() { return launch.Run(program, options); }
};

class EmulatedDevice final : public WorkerProgram::Device {
 public:
  explicit EmulatedDevice(const cache::Clock& clock) : clock_(clock) {}

  v1::DeviceList List() override { return {}; }

  v1::DeviceResult Run(const v1::DeviceRun& run, int memory, const WorkerProgram::OnStage& on_stage) override {
    v1::DeviceResult result;
    if (auto done = TryRun(run, memory, on_stage, Limit::kFromTheJob, result); !done) {
      result.Clear();
      result.set_refusal(Utf8(done.error()));
    }
    return result;
  }

  // Its caches are this host's, and kilnd gives each measurement tensors of its own.
  v1::DeviceResult Measure(const v1::DeviceMeasure& measure, int memory, const WorkerProgram::OnStage& on_stage) override {
    v1::DeviceResult result;
    if (auto done = TryRun(measure.run(), memory, on_stage, Limit::kFromTheLaunch, result); !done) {
      result.Clear();
      result.set_refusal(Utf8(done.error()));
    }
    return result;
  }

 private:
  using Done = std::expected<void, std::string>;
  enum class Limit : std::uint8_t { kFromTheJob, kFromTheLaunch };

  Done TryRun(const v1::DeviceRun& run, int memory, const WorkerProgram::OnStage& on_stage, Limit limit, v1::DeviceResult& result) {
    const auto began = clock_.SteadyNow();
    v1::CompileReply reply;
    if (!reply.ParseFromString(run.reply())) return std::unexpected("the artifact cannot be read");
    auto artifact = runtime::DecodeArtifact(reply.artifact().SerializeAsString());
    if (!artifact) return std::unexpected(std::move(artifact.error().message));
    if (artifact->target != run.device()) {
      return std::unexpected("the kernel was compiled for " + artifact->target + "; compile it for " + run.device() + " to run it there");
    }
    NameParameters(run.module(), artifact->launch);
    const std::string name = artifact->launch.launches.empty() ? "kernel" : artifact->launch.launches[0].entry;
    auto binder = runtime::Binder::Create(std::move(artifact->launch), name, runtime::Place::kHost, 0);
    if (!binder) return std::unexpected(std::move(binder.error().message));
    auto tensors = RunTensors::Create(run, memory, *binder, {.give = [](std::span<std::byte> host) -> runtime::Result<std::uint64_t> {
                                        return reinterpret_cast<std::uint64_t>(host.data());
                                      }});
    if (!tensors) return std::unexpected(std::move(tensors.error()));
    auto program = Load(run.reply(), reply, run.options().check());
    if (!program) return std::unexpected(std::move(program.error()));
    auto launch = EmulatedLaunch::Bind(*binder, tensors->args(), MemoryOf(*binder, *tensors));
    if (!launch) return std::unexpected(std::move(launch.error()));
    const auto until = (limit == Limit::kFromTheJob ? began : clock_.SteadyNow()) + LimitOf(run);
    Execution execution{**program, std::move(*launch), {.seed = run.options().seed(), .threads = run.threads(), .until = until}};
    v1::RunResult& said = *result.mutable_result();
    said.set_key(reply.key());
    said.set_target(reply.artifact().target());
    said.set_device("emulator");
    AddTiming(said, "load", clock_.SteadyNow() - began);
    on_stage("run");
    return Execute(run, execution, *tensors, *binder, result);
  }

  std::expected<emulator::Program*, std::string> Load(const std::string& bytes, const v1::CompileReply& reply, bool check) {
    const std::string key = LoadedUnder(bytes) + (check ? "checked" : "plain");
    if (emulator::Program* known = programs_.Find(key)) return known;
    auto program = emulator::Program::Load(reply.artifact(), check);
    if (!program) return std::unexpected(std::move(program.error()));
    return programs_.Add(key, std::move(*program));
  }

  Done Execute(const v1::DeviceRun& run, Execution& execution, const RunTensors& tensors, const runtime::Binder& binder, v1::DeviceResult& result) {
    v1::RunResult& said = *result.mutable_result();
    const auto began = clock_.SteadyNow();
    const auto report = execution.Launch();
    const auto once = clock_.SteadyNow() - began;
    if (!report) return std::unexpected(report.error());
    AddTiming(said, "run", once);
    Tell(*report, run, said);
    if (!report->finished) return {};
    tensors.Describe(binder, result);
    if (run.options().repeat() == 0) {
      said.add_microseconds(Microseconds(once).count());
      return {};
    }
    return Repeat(run, execution, tensors, result);
  }

  // The results stay those of the first launch.
  Done Repeat(const v1::DeviceRun& run, Execution& execution, const RunTensors& tensors, v1::DeviceResult& result) {
    v1::RunResult& said = *result.mutable_result();
    std::vector<std::vector<std::byte>> results;
    for (const RunTensors::Storage& storage : tensors.storages()) {
      if (storage.written) results.emplace_back(storage.host().begin(), storage.host().end());
    }
    for (std::uint32_t i = 0; i < run.options().repeat(); ++i) {
      const auto began = clock_.SteadyNow();
      const auto report = execution.Launch();
      if (!report) return std::unexpected(report.error());
      if (!report->finished) {
        Tell(*report, run, said);
        said.clear_outputs();
        result.clear_positions();
        return {};
      }
      said.add_microseconds(Microseconds(clock_.SteadyNow() - began).count());
    }
    std::size_t next = 0;
    for (const RunTensors::Storage& storage : tensors.storages()) {
      if (storage.written) std::ranges::copy(results[next++], storage.host().begin());
    }
    return {};
  }

  const cache::Clock& clock_;
  LoadedPrograms<emulator::Program> programs_;
};

}  // namespace

std::unique_ptr<WorkerProgram::Device> MakeEmulatedDevice(const cache::Clock& clock) { return std::make_unique<EmulatedDevice>(clock); }

}  // namespace kiln::server
