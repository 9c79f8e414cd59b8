// SPDX-License-Identifier: Apache-2.0
#include "compiler/compile.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <set>
#include <string>
#include <utility>

#include "compiler/artifact.h"
#include "compiler/front/unpack.h"
#include "compiler/key.h"
#include "compiler/llvm/assemble/assemble.h"
#include "compiler/llvm/codegen.h"
#include "compiler/options.h"
#include "compiler/passes.h"
#include "compiler/rank.h"
#include "compiler/stage_timer.h"
#include "ir/codec/decode.h"
#include "ir/visit.h"

namespace kiln::compiler {
namespace {

// `numbers`: what the line of each location stands for. Empty: it is a line of the program.
void WriteDiagnostics(const ir::Diagnostics& diagnostics, const std::vector<std::string>& files, const std::vector<ir::SourceLoc>& numbers,
                      v1::WorkerResult& result) {
  for (const ir::Diagnostic& d : diagnostics.all()) {
    v1::Diagnostic& out = *result.add_diagnostics();
    out.set_severity(v1::Diagnostic::Severity(int(d.severity)));
    out.set_kind(v1::Diagnostic::Kind(int(d.kind)));
    out.set_message(d.message);
    out.set_hint(d.hint);
    out.set_statement(d.statement);
    const ir::SourceLoc loc = d.loc.line < numbers.size() ? numbers[d.loc.line] : d.loc;
    out.set_line(loc.line);
    if (loc.line > 0 && loc.file < files.size()) out.set_file(files[loc.file]);
  }
}

// Assemblers take it as it is, and so do profilers.
bool IsEntryName(std::string_view name) {
  constexpr size_t kMost = 128;
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') || c == '_'; };
  return name.size() <= kMost && std::ranges::all_of(name, fits) && !(!name.empty() && name[0] >= '0' && name[0] <= '9');
}

// Names are not part of the key, so a cached artifact must not hold them.
void DropNames(ir::Module& module, const Context& context) {
  for (size_t i = 0; i < module.vars.size(); ++i) module.vars[i].name = "v" + std::to_string(i);
  for (size_t i = 0; i < module.buffers.size(); ++i) module.buffers[i].name = "b" + std::to_string(i);
  for (size_t i = 0; i < module.kernels.size(); ++i) module.kernels[i].name = EntryName(context, i);
  for (ir::Kernel& kernel : module.kernels) ir::Walk(kernel.body, [](ir::Stmt& stmt) { stmt.loc = {}; });
}

// Emulator code names statements by their number, in preorder from 1: unlike lines, that is the same for all requests that share
// a key. Returns what each number stands for.
std::vector<ir::SourceLoc> NumberStatements(ir::Module& module) {
  std::vector<ir::SourceLoc> locations{{}};
  for (ir::Kernel& kernel : module.kernels) {
    ir::Walk(kernel.body, [&](ir::Stmt& stmt) {
      locations.push_back(stmt.loc);
      stmt.loc = {.file = 0, .line = uint32_t(locations.size() - 1)};
    });
  }
  return locations;
}

class Compilation {
 public:
  Compilation(const v1::CompileRequest& request, const Hooks& hooks) : request_(request), hooks_(hooks) {}

  v1::WorkerResult Run() {
    const bool done = Compile();
    WriteDiagnostics(diagnostics_, files_, numbers_, result_);
    if (done && !result_.has_estimate()) *result_.mutable_artifact() = std::move(artifact_);
    return std::move(result_);
  }

 private:
  bool Compile() {
    const auto found = target::Find(request_.target());
    if (!found) {
      diagnostics_.Unsupported(found.error());
      return false;
    }
    context_ = {*found, request_.options()};
    if (!HaveMeaning()) return false;
    std::expected<ir::Module, ir::Failed> module = std::unexpected(ir::Failed{});
    {
      const StageTimer timer("decode", hooks_, result_);
      module = ir::DecodeModule(request_.module(), diagnostics_);
    }
    if (!module) return false;
    files_ = module->files;
    const std::vector<Assumptions> assumptions = AssumptionsOf(*module);
    const std::vector<ir::Buffer> declared = module->buffers;
    if (context_.target->emulated) numbers_ = NumberStatements(*module);
    if (!RunPasses(*module, context_, request_.explain(), hooks_, diagnostics_, result_, numbers_)) return false;
    if (request_.explain().has_estimate()) {
      const StageTimer timer("plan", hooks_, result_);
      std::optional<v1::Estimate> estimate = Rank(*module, context_, request_.explain().estimate(), diagnostics_);
      if (!estimate) return false;
      *result_.mutable_estimate() = *std::move(estimate);
      return true;
    }
    Generated generated;
    if (!llvm_ir::Generate(*module, context_, request_.explain(), hooks_, diagnostics_, result_, artifact_, generated)) return false;
    const std::vector<std::set<uint32_t>> users = context_.target->emulated ? UsersOfBuffers(*module) : std::vector<std::set<uint32_t>>();
    RestoreLocations(*module);
    RestoreDeclared(*module, declared);
    if (!request_.has_explain()) DropNames(*module, context_);
    artifact_.set_target(std::string(context_.target->name));
    *artifact_.mutable_launch() = MakeLaunchInfo(*module, context_);
    for (size_t i = 0; i < assumptions.size(); ++i) {
      *artifact_.mutable_launch()->mutable_launches(int(i))->mutable_assumptions() = assumptions[i];
    }
    *artifact_.mutable_report() = MakeReport(*module, context_, generated, users);
    artifact_.set_compiler(std::string(BuildId()));
    const bool assembles = artifact_.kind() == v1::PTX && !hooks_.ptxas.empty();
    return !assembles || llvm_ir::Assemble(artifact_, context_, hooks_, diagnostics_, result_);
  }

  // Whether what the request asks for exists.
  bool HaveMeaning() {
    if (const uint32_t alignment = request_.options().pointer_alignment(); alignment != 0 && !std::has_single_bit(alignment)) {
      diagnostics_.Error(fmt::format("pointer_alignment is {}, which is no power of two", alignment), "leave it out, or name 1, 2, 4, 8, 16 …");
    }
    if (const std::string& name = request_.options().entry_name(); !IsEntryName(name)) {
      diagnostics_.Error(fmt::format("entry_name is '{}'", name), "a letter or _, then letters, digits and _, 128 at most; or leave it out");
    }
    for (const std::string& name : request_.explain().after()) {
      if (name == "all" || std::ranges::find(Passes(), name, &Pass::name) != Passes().end()) continue;
      std::vector<std::string_view> names;
      for (const Pass& pass : Passes()) names.push_back(pass.name);
      diagnostics_.Error(fmt::format("no pass is called '{}', after which to show the program", name),
                         fmt::format("all, {}", fmt::join(names, ", ")));
    }
    return !diagnostics_.HasErrors();
  }

  void RestoreLocations(ir::Module& module) {
    for (ir::Kernel& kernel : module.kernels) {
      ir::Walk(kernel.body, [&](ir::Stmt& stmt) {
        if (stmt.loc.line < numbers_.size()) stmt.loc = numbers_[stmt.loc.line];
      });
      for (ir::Decision& decision : kernel.decisions) {
        if (decision.loc.line < numbers_.size()) decision.loc = numbers_[decision.loc.line];
      }
    }
  }

  const v1::CompileRequest& request_;
  const Hooks& hooks_;
  Context context_;
  ir::Diagnostics diagnostics_;
  std::vector<std::string> files_;
  std::vector<ir::SourceLoc> numbers_;
  v1::WorkerResult result_;
  v1::Artifact artifact_;
};

}  // namespace

void Initialize() { llvm_ir::InitializeTargets(); }

v1::WorkerResult Compile(const v1::CompileRequest& request, const Hooks& hooks) { return Compilation(request, hooks).Run(); }

v1::WorkerResult Assemble(const v1::CompileRequest& request, const v1::Artifact& artifact, const Hooks& hooks) {
  v1::WorkerResult result;
  ir::Diagnostics diagnostics;
  const auto target = target::Find(request.target());
  if (!target || artifact.kind() != v1::PTX) {
    diagnostics.Internal("only PTX is assembled");
  } else if (hooks.ptxas.empty()) {
    result.set_unavailable("ptxas: no ptxas is installed now");
  } else {
    llvm_ir::Assemble(artifact, {*target, request.options()}, hooks, diagnostics, result);
  }
  WriteDiagnostics(diagnostics, {}, {}, result);
  return result;
}

}  // namespace kiln::compiler
