// SPDX-License-Identifier: Apache-2.0
#include <iterator>
#include <memory>

#include <fmt/format.h>

#include "clients/cli/sources.h"
#include "clients/cpp/manifest_file.h"

namespace kiln::cli {
namespace {

Json ToJson(const v1::ManifestEntry& entry) {
  const v1::CompileRequest& request = entry.request();
  return Json::Object({{"program", ProgramName(request.module())},
                       {"target", request.target()},
                       {"options", request.options().ShortDebugString()},
                       {"bytes", std::uint64_t{request.module().size()}},
                       {"refused", entry.refused()}});
}

struct ManifestCommand {
  std::vector<std::string> files;
  std::string output;

  void Run(Context& context) const {
    context.LeaveStdoutTo(output);
    std::vector<v1::ManifestEntry> entries;
    for (const std::string& file : files) {
      auto read = ReadManifestFile(file);
      if (!read) return context.Fail(read.error());
      entries.insert(entries.end(), std::make_move_iterator(read->begin()), std::make_move_iterator(read->end()));
    }
    const v1::Manifest manifest = MakeManifest(entries);
    if (output.empty()) {
      if (context.json()) return context.Print(Json::Object({{"requests", Json::Map(manifest.entries(), ToJson)}}));
      return fmt::print("{}", WriteManifest(manifest, ManifestForm::kText));
    }
    const auto written = WriteManifestFile(output, manifest, context.text_wanted ? ManifestForm::kText : ManifestForm::kBinary);
    if (!written) return context.Fail(written.error());
    if (context.json()) return context.Print(Json::Object({{"file", output}, {"requests", std::int64_t{manifest.entries_size()}}}));
    fmt::print(context.report, "{} requests → {}\n", manifest.entries_size(), output);
  }
};

}  // namespace

void AddManifest(CLI::App& app, Context& context) {
  const auto command = std::make_shared<ManifestCommand>();
  CLI::App& sub = *app.add_subcommand("manifest", "Show manifests as a text, or make one of several");
  sub.add_option("files", command->files, "manifests in either form, and folders that KILN_RECORD named")->required();
  sub.add_option("-o,--output", command->output, "write all their requests here, as a manifest; with --text in the text form, which reads back");
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
