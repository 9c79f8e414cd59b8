// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <ranges>

#include <fmt/format.h>

#include "clients/cli/sources.h"
#include "clients/cli/stats_text.h"

namespace kiln::cli {
namespace {

std::string Line(const EnsureProgress& p) {
  std::string line = fmt::format("{} of {} kernels: {} known, {} compiled", p.known + p.compiled + p.failed, p.total, p.known, p.compiled);
  if (p.failed > 0) line += fmt::format(", {} failed", p.failed);
  if (p.remaining_seconds) line += fmt::format("; {} left", Duration(*p.remaining_seconds));
  return line;
}

struct PrecompileCommand {
  std::vector<std::string> files;
  std::vector<std::string> targets;
  std::string bundle;
  Options options;

  void Run(Context& context) const {
    context.LeaveStdoutTo(bundle);
    Manifest manifest{.requests = {}, .targets = targets};
    for (const std::string& file : files) {
      auto module = ReadFile(file);
      if (!module) return context.Fail(module.error());
      manifest.requests.push_back({.module = std::move(*module), .target = {}, .options = options, .explain = {}, .priority = Priority::kBatch});
    }
    auto client = context.Connect();
    if (!client) return context.Fail(client.error());
    EnsureProgress last;
    Progress progress(context.terminal.err && !context.json());
    const auto ensured = client->Ensure(manifest, [&](const EnsureProgress& p) {
      last = p;
      progress.Show(Line(p));
    });
    progress.Clear();
    if (!ensured) return context.Fail(ensured.error());
    if (last.failed > 0) context.status = 1;
    const auto kept = Keep(*client, *ensured);
    if (!kept) return context.Fail(kept.error());
    Show(context, last, *ensured, *kept);
  }

  // The bundle that was written, if any was.
  std::expected<std::string, Error> Keep(Client& client, const std::vector<Ensured>& ensured) const {
    std::vector<std::string> keys;
    for (const Ensured& kernel : ensured) {
      if (!kernel.error) keys.push_back(kernel.key);
    }
    if (bundle.empty() || keys.empty()) return std::string();
    const auto written = client.CacheExport(bundle, keys);
    if (!written) return std::unexpected(written.error());
    return bundle;
  }

  Json ToJson(const Ensured& kernel) const {
    return Json::Object({{"file", files.at(kernel.request)},
                         {"target", kernel.target},
                         {"key", Hex(kernel.key)},
                         {"origin", kernel.error ? "failed" : Name(kernel.origin)},
                         {"bytes", kernel.bytes},
                         {"durable", kernel.durable},
                         {"message", kernel.error ? kernel.error->message : ""}});
  }

  void Show(const Context& context, const EnsureProgress& last, const std::vector<Ensured>& ensured, const std::string& written) const {
    if (context.json()) {
      return context.Print(Json::Object({{"total", last.total},
                                         {"known", last.known},
                                         {"compiled", last.compiled},
                                         {"failed", last.failed},
                                         {"seconds", last.elapsed_seconds},
                                         {"bundle", written},
                                         {"kernels", Json::Map(ensured, [&](const Ensured& k) { return ToJson(k); })}}));
    }
    for (const Ensured& kernel : ensured) {
      if (!kernel.error) continue;
      fmt::print(stderr, "{} {} for {}: {}\n", Paint("✗", Style::kBad, context.terminal.err), files.at(kernel.request), kernel.target,
                 kernel.error->message);
    }
    fmt::print(context.report, "{} {} in {:.1f} s{}\n",
               Paint(last.failed == 0 ? "✓" : "✗", last.failed == 0 ? Style::kGood : Style::kBad, context.colours()), Line(last),
               last.elapsed_seconds, written.empty() ? "" : " → " + written);
    const auto lost = std::ranges::count_if(ensured, [](const Ensured& k) { return !k.error && !k.durable; });
    if (lost > 0) {
      fmt::print(stderr, "{} the daemon's store could not take {} of them, which {} in its memory alone (`kiln stats` shows the store)\n",
                 Paint("warning:", Style::kWarn, context.terminal.err), lost, lost == 1 ? "is" : "are");
    }
  }
};

}  // namespace

void AddPrecompile(CLI::App& app, Context& context) {
  const auto command = std::make_shared<PrecompileCommand>();
  CLI::App& sub = *app.add_subcommand("precompile", "Have programs compiled for several targets; what is known is not compiled again");
  sub.add_option("files", command->files, "programs: the IR's text form (.kiln) or serialized kiln.v1.Modules")->required();
  sub.add_option("-t,--target", command->targets, "cuda:sm_90a, hip:gfx942, …; may be given more than once")->required();
  sub.add_option("-o,--bundle", command->bundle, "write all results to a bundle for `kiln cache import` afterwards");
  AddOptions(sub, command->options);
  sub.callback([command, &context] { command->Run(context); });
}

}  // namespace kiln::cli
