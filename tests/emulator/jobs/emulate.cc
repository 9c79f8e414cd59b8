// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/jobs/emulate.h"

#include "compiler/compile.h"
#include "server/execute/emulated_launch.h"
#include "tests/ptx/program.h"

namespace kiln::emulator::testing {

std::expected<v1::Artifact, std::string> CompileFor(const std::string& target, std::string module, const v1::CompileOptions& options) {
  static const bool initialised = (compiler::Initialize(), true);
  (void)initialised;
  v1::CompileRequest request;
  request.set_target(target);
  request.set_module(std::move(module));
  *request.mutable_options() = options;
  v1::WorkerResult result = compiler::Compile(request, {});
  if (result.has_artifact()) return std::move(*result.mutable_artifact());
  std::string text;
  for (const v1::Diagnostic& d : result.diagnostics()) {
    const char* kind = d.kind() == v1::Diagnostic::UNSUPPORTED ? "unsupported: " : d.kind() == v1::Diagnostic::INTERNAL ? "internal: " : "";
    text += (text.empty() ? "" : "\n") + std::string(kind) + d.message();
  }
  return std::unexpected(text);
}

std::expected<std::unique_ptr<Emulated>, std::string> Emulated::Load(const v1::Artifact& artifact, bool check) {
  const auto decoded = runtime::DecodeArtifact(artifact.SerializeAsString());
  if (!decoded) return std::unexpected(decoded.error().message);
  auto binder = runtime::Binder::Create(decoded->launch, "kernel", runtime::Place::kHost, 0);
  if (!binder) return std::unexpected(binder.error().message);
  auto program = artifact.kind() == v1::PTX ? ptx::Load(artifact.code()) : Program::Load(artifact, check);
  if (!program) return std::unexpected(program.error());
  return std::unique_ptr<Emulated>(new Emulated(std::move(*binder), std::move(*program)));
}

std::expected<Report, std::string> Emulated::Run(std::span<const TensorArg> tensors, const Options& options) {
  std::vector<runtime::Arg> args;
  std::vector<Memory> memory;
  for (const TensorArg& tensor : tensors) {
    std::byte* first = tensor.bytes->data() + tensor.first;
    runtime::Tensor view{.data = uint64_t(first),
                         .dtype = tensor.dtype,
                         .place = runtime::Place::kHost,
                         .device = 0,
                         .shape = tensor.shape,
                         .strides = tensor.strides.empty() ? nullptr : tensor.strides.data()};
    args.push_back(runtime::Arg::Of(view));
    const uint32_t element = runtime::Find(tensor.dtype)->bits / 8;
    uint64_t last = 0;
    bool empty = false;
    int64_t dense = 1;
    for (size_t d = tensor.shape.size(); d-- > 0;) {
      const int64_t stride = tensor.strides.empty() ? dense : tensor.strides[d];
      dense *= tensor.shape[d];
      empty |= tensor.shape[d] == 0;
      if (tensor.shape[d] > 0) last += uint64_t((tensor.shape[d] - 1) * stride);
    }
    memory.push_back({first, empty ? 0 : (last + 1) * element, element, "tensor " + std::to_string(args.size() - 1)});
  }
  auto launch = server::EmulatedLaunch::Bind(binder_, args, std::move(memory));
  if (!launch) return std::unexpected(std::move(launch.error()));
  return launch->Run(*program_, options);
}

}  // namespace kiln::emulator::testing
