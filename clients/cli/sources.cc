// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/sources.h"

#include <fstream>
#include <iostream>
#include <iterator>
#include <map>

#include <fmt/format.h>

#include "clients/cli/local.h"
#include "clients/common/config_environment.h"
#include "clients/cpp/convert.h"
#include "clients/cpp/pieces_of_file.h"
#include "clients/cpp/recorder.h"

namespace kiln::cli {
namespace {

// Text does not know the file that it comes from.
void NameProgram(const std::string& file, Error& error) {
  if (file.empty() || file == "-") return;
  for (Diagnostic& diagnostic : error.diagnostics)
    if (diagnostic.line > 0 && (diagnostic.file.empty() || diagnostic.file == "<text>")) diagnostic.file = file;
}

std::expected<CompileRequest, Error> FromReproducer(const std::string& path) {
  const auto bytes = ReadFile(path);
  if (!bytes) return std::unexpected(bytes.error());
  v1::Reproducer reproducer;
  if (!reproducer.ParseFromString(*bytes) || reproducer.request().module().empty()) {
    return std::unexpected(InvalidInput(path + " is no reproducer; kilnd writes them to STATE/reproducers"));
  }
  fmt::print(stderr, "{}: {}", path, reproducer.cause());
  if (!reproducer.cause().ends_with('\n')) fmt::print(stderr, "\n");
  return FromProto(reproducer.request());
}

}  // namespace

Error InvalidInput(std::string message) { return {.code = ErrorCode::kInvalid, .message = std::move(message)}; }

std::expected<std::string, Error> ReadFile(const std::string& path) {
  if (path == "-") return std::string(std::istreambuf_iterator<char>(std::cin), {});
  return WholeFile(path);
}

std::expected<void, Error> WriteFile(const std::string& path, std::string_view bytes) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file.write(bytes.data(), static_cast<std::streamsize>(bytes.size()));
  file.close();
  if (file.fail()) return std::unexpected(InvalidInput("cannot write " + path + "; is the directory there and writable?"));
  return {};
}

void AddOptions(CLI::App& command, Options& options) {
  command.add_flag("--fast-math", options.fast_math,
                   "approximate division, roots and transcendental functions; sums of products may be multiplied by factors of operands, and must "
                   "be in range without them");
  command.add_flag("--fast-accumulation", options.fast_accumulation, "sm_90a: products of 8-bit floats keep the unit's sums of 13 bits");
  command.add_option("--max-registers", options.max_registers, "per thread; 0: the compiler's choice");
  command.add_option("--max-fragment-registers", options.max_fragment_registers,
                     "registers of a thread that fragments may take at a time; a program with more is refused, since it would spill most of them; "
                     "0: 640");
  command.add_option("--max-unrolled", options.max_unrolled, "statements that an unrolled loop becomes; longer ones stay loops; 0: 4096");
  command.add_option("--max-code", options.max_code,
                     "LLVM instructions of the kernels before optimization; a branch counts as 16; more are refused; 0: 600000, for AMD's GPUs "
                     "60000");
  command.add_option("--max-crowding", options.max_crowding,
                     "AMD's GPUs: values alive beyond 256, added up over all instructions; kernels with more are optimized only in part; 0: 64000");
  command.add_option("--entry-name", options.entry_name, "what the kernels' names begin with, as profilers show them; kernel")->type_name("NAME");
  command.add_flag("--no-async-copy", options.disable_async_copy, "no cp.async");
  command.add_flag("--no-warp-specialization", options.disable_warp_specialization, "sm_90a: no warps that only fill tiles for the others");
  command.add_flag("--no-tma", options.disable_tma, "sm_90a: no tensor copies, nor warps that only start them");
  static const std::map<std::string, StreamK> kStreamK{{"auto", StreamK::kAuto}, {"never", StreamK::kNever}, {"always", StreamK::kAlways}};
  command
      .add_option("--stream-k", options.stream_k, "sm_90a: whether blocks share the steps of tiles; auto: by cost; always: where the program allows")
      ->transform(CLI::CheckedTransformer(kStreamK).description("{auto,never,always}"))  // its own shows the values as characters
      ->type_name("WHEN");
  command.add_flag("--no-wgmma", options.disable_wgmma, "sm_90a: products by mma.sync, without tensor copies and warp roles");
}

void AddProgram(CLI::App& command, CompileArguments& a) {
  command.add_option("file", a.file, "a program: the IR's text form (.kiln) or a serialized kiln.v1.Module; - for stdin");
  command.add_option("-t,--target", a.target, "cuda:sm_90a, hip:gfx942, …; `kiln devices` lists them");
  AddOptions(command, a.options);
  command.add_flag("--local", a.local, "compile in this machine's kiln-worker, without a daemon and its cache");
  command.add_option("--worker", a.worker, "the kiln-worker of --local");
  command.add_flag("--raw", a.raw, "with --local: also programs with functions in other languages, which run as they are");
}

std::expected<CompileRequest, Error> MakeRequest(const CompileArguments& a) {
  if (!a.reproducer.empty()) return FromReproducer(a.reproducer);
  if (a.file.empty()) return std::unexpected(InvalidInput("name a program's file, or a reproducer with --repro"));
  if (a.target.empty()) {
    return std::unexpected(InvalidInput("say what to compile for: --target cuda:sm_90a; `kiln devices` lists the targets"));
  }
  auto module = ReadFile(a.file);
  if (!module) return std::unexpected(std::move(module.error()));
  static const std::map<std::string, Priority> priorities = {
      {"interactive", Priority::kInteractive}, {"batch", Priority::kBatch}, {"tuning", Priority::kTuning}};
  return CompileRequest{.module = std::move(*module),
                        .target = a.target,
                        .options = a.options,
                        .priority = priorities.at(a.priority),
                        .refresh = a.refresh,
                        .durable = a.durable};
}

std::expected<Compiled, Error> CompileWithProgress(Context& context, const CompileArguments& a, const CompileRequest& request, bool fall_back) {
  Progress progress(context.terminal.err && !context.json());
  const Client::OnStage on_stage = [&](std::string_view stage) {
    progress.Show(fmt::format("{} for {}: {} …", a.file.empty() ? a.reproducer : a.file, request.target, stage));
  };
  const LocalOptions local{.worker = a.worker, .timeout = context.timeout(), .raw = a.raw};
  const auto locally = [&] {
    auto compiled = Recorder(Environment("KILN_RECORD")).Around(ToProto(request), [&] { return CompileLocally(request, local, on_stage); });
    if (!compiled) NameProgram(a.file, compiled.error());
    return compiled;
  };
  if (a.local || !a.reproducer.empty()) return locally();
  auto client = context.Connect();
  if (!client) return std::unexpected(std::move(client.error()));
  auto compiled = client->Compile(request, on_stage);
  if (!compiled) NameProgram(a.file, compiled.error());
  if (compiled || compiled.error().code != ErrorCode::kUnavailable || !compiled.error().request_id.empty()) return compiled;
  if (fall_back) return locally();
  compiled.error().message += ", or compile without a daemon: --local";
  return compiled;
}

std::string_view Name(Origin origin) {
  switch (origin) {
    case Origin::kMemory: return "memory";
    case Origin::kDisk: return "disk";
    case Origin::kCompiled: return "compiled";
    case Origin::kJoined: return "joined";
    case Origin::kCluster: return "cluster";
    case Origin::kBundle: return "bundle";
    case Origin::kUnknown: break;
  }
  return "unknown";
}

std::string_view Name(CodeKind kind) {
  switch (kind) {
    case CodeKind::kPtx: return "PTX";
    case CodeKind::kHsaco: return "HSACO";
    case CodeKind::kCubin: return "cubin";
    case CodeKind::kEmulator: return "emulator code";
    case CodeKind::kNone: break;
  }
  return "none";
}

}  // namespace kiln::cli
