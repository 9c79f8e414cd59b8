// SPDX-License-Identifier: Apache-2.0
#include "tests/emulator/ops/run.h"

#include <algorithm>
#include <cstring>
#include <random>
#include <stdexcept>

#include "compiler/artifact.h"
#include "compiler/llvm/codegen.h"
#include "compiler/passes.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"

namespace kiln::emulator::testing {
namespace {

[[noreturn]] void Fail(const std::string& what, const ir::Diagnostics& diagnostics, const std::string& text) {
  const ir::Diagnostic& first = diagnostics.all().at(0);
  throw std::runtime_error(what + ": " + first.message + " | " + first.statement + " | " + first.hint + "\n" + text);
}

compiler::Context ContextOf(std::string_view target, const v1::CompileOptions& options) {
  const auto found = target::Find(target);
  if (!found) throw std::runtime_error(found.error());
  return {*found, options};
}

template <typename T>
void Encode(const std::vector<double>& values, std::vector<std::byte>& bytes) {
  bytes.resize(values.size() * sizeof(T));
  for (size_t i = 0; i < values.size(); ++i) {
    const T value = T(values[i]);
    std::memcpy(bytes.data() + i * sizeof(T), &value, sizeof(T));
  }
}

template <typename T>
void Decode(const std::vector<std::byte>& bytes, std::vector<double>& values) {
  for (size_t i = 0; i < values.size(); ++i) {
    T value;
    std::memcpy(&value, bytes.data() + i * sizeof(T), sizeof(T));
    values[i] = double(value);
  }
}

}  // namespace

ir::Module Parsed(const std::string& text) {
  ir::Diagnostics diagnostics;
  auto module = ir::Parse(text, diagnostics);
  if (!module || !ir::Verify(*module, diagnostics)) Fail("not a program", diagnostics, text);
  return *std::move(module);
}

void RunPassesUpTo(std::string_view pass, ir::Module& module, std::string_view target, const v1::CompileOptions& options) {
  const compiler::Context context = ContextOf(target, options);
  ir::Diagnostics diagnostics;
  for (const compiler::Pass& row : compiler::Passes()) {
    if (!row.run(module, context, diagnostics)) Fail(std::string(row.name), diagnostics, ir::Print(module));
    if (row.name == pass) return;
  }
  throw std::runtime_error("no pass " + std::string(pass));
}

Runner::Runner(ir::Module module, std::string_view target, std::string_view after, const v1::CompileOptions& options) {
  static const bool initialised = (llvm_ir::InitializeTargets(), true);
  (void)initialised;
  for (const ir::Param& param : module.params) {
    const ir::BufferId id = std::get<ir::BufferId>(param);
    params_.push_back({module[id].name, module[id].dtype, *module.ConstShape(id)});
  }
  const compiler::Context context = ContextOf(target, options);
  const std::vector<compiler::Assumptions> assumptions = compiler::AssumptionsOf(module);
  ir::Diagnostics diagnostics;
  bool runs = after.empty();
  for (const compiler::Pass& pass : compiler::Passes()) {
    if (runs && (!pass.run(module, context, diagnostics) || !ir::Verify(module, diagnostics))) {
      Fail(std::string(target) + ", pass " + std::string(pass.name), diagnostics, ir::Print(module));
    }
    runs |= pass.name == after;
    if (runs) dumps_[std::string(pass.name)] = ir::Print(module);
  }
  v1::Artifact artifact;
  v1::WorkerResult result;
  compiler::Generated generated;
  if (!llvm_ir::Generate(module, context, {}, {}, diagnostics, result, artifact, generated)) Fail("code", diagnostics, ir::Print(module));
  artifact.set_target(std::string(context.target->name));
  *artifact.mutable_launch() = compiler::MakeLaunchInfo(module, context);
  for (size_t i = 0; i < assumptions.size(); ++i) *artifact.mutable_launch()->mutable_launches(int(i))->mutable_assumptions() = assumptions[i];
  *artifact.mutable_report() = compiler::MakeReport(module, context, generated, compiler::UsersOfBuffers(module));
  auto program = Emulated::Load(artifact, true);
  if (!program) throw std::runtime_error(program.error());
  program_ = std::move(*program);
}

Tensors Runner::Run(const Tensors& before, uint64_t seed) {
  std::vector<std::vector<std::byte>> bytes(params_.size());
  std::vector<TensorArg> tensors;
  for (size_t i = 0; i < params_.size(); ++i) {
    const std::vector<double>& values = before.at(params_[i].name);
    if (params_[i].dtype == ir::DType::kF16) {
      Encode<_Float16>(values, bytes[i]);
    } else {
      Encode<float>(values, bytes[i]);
    }
    tensors.push_back({runtime::DType(uint8_t(params_[i].dtype)), params_[i].shape, {}, &bytes[i]});
  }
  const auto report = program_->Run(tensors, {.seed = seed});
  if (!report) throw std::runtime_error(report.error());
  if (!report->findings.empty()) throw std::runtime_error(std::string(Name(report->findings[0].kind)) + ": " + report->findings[0].message);
  Tensors after = before;
  for (size_t i = 0; i < params_.size(); ++i) {
    if (params_[i].dtype == ir::DType::kF16) {
      Decode<_Float16>(bytes[i], after[params_[i].name]);
    } else {
      Decode<float>(bytes[i], after[params_[i].name]);
    }
  }
  return after;
}

Tensors SmallNumbers(const ir::Module& module, uint32_t seed) {
  std::mt19937 random(seed);
  Tensors tensors;
  for (const ir::Param& param : module.params) {
    const ir::BufferId id = std::get<ir::BufferId>(param);
    int64_t elements = 1;
    const std::vector<int64_t> shape = *module.ConstShape(id);
    for (int64_t extent : shape) elements *= extent;
    std::vector<double>& values = tensors[module[id].name];
    values.resize(size_t(elements));
    std::ranges::generate(values, [&] { return 1 + int(random() % 4); });
  }
  return tensors;
}

}  // namespace kiln::emulator::testing
