// SPDX-License-Identifier: Apache-2.0
#include <algorithm>
#include <memory>
#include <ranges>

#include <fmt/format.h>

#include "clients/cli/manifest_sources.h"
#include "clients/cli/stats_text.h"
#include "compiler/target/target.h"

namespace kiln::cli {
namespace {

constexpr int kCannotTell = 2;  // the status of a check that found no answer

std::string Line(const EnsureProgress& p) {
  std::string line = fmt::format("{} of {} kernels: {} known, {} compiled", p.known + p.compiled + p.failed, p.total, p.known, p.compiled);
  if (p.failed > 0) line += fmt::format(", {} failed", p.failed);
  if (p.remaining_seconds) line += fmt::format("; {} left", Duration(*p.remaining_seconds));
  return line;
}

std::string NameOf(const Wanted::Source& source) { return source.program.empty() ? source.file : source.file + ": @" + source.program; }

// A kernel that the daemon does not have.
struct Missing {
  const Wanted::Source* source;
  std::string target;
  std::string why;  // it cannot be compiled; empty: it was not yet
};

struct PrecompileCommand {
  std::vector<std::string> files;
  std::vector<std::string> targets;
  std::string bundle;
  bool check = false;
  std::uint32_t hot = 0;
  Options options;

  void Run(Context& context) const {
    context.LeaveStdoutTo(bundle);
    auto wanted = ReadWanted(files, targets, options);
    auto client = wanted ? context.Connect() : std::unexpected(wanted.error());
    if (client && hot > 0) {
      const auto added = AddHot(*client, hot, targets, options, *wanted);
      if (!added) client = std::unexpected(added.error());
      if (added && *added == 0) {
        fmt::print(stderr, "{} the store has no program of another build of the compiler\n", Paint("note:", Style::kDim, context.terminal.err));
      }
    }
    const auto done = client ? (check ? Check(context, *client, *wanted) : Compile(context, *client, *wanted)) : std::unexpected(client.error());
    if (done) return;
    context.Fail(done.error());
    if (check) context.status = kCannotTell;
  }

  std::expected<void, Error> Compile(Context& context, Client& client, const Wanted& wanted) const {
    EnsureProgress last;
    Progress progress(context.terminal.err && !context.json());
    const auto ensured = client.Ensure(wanted.manifest, [&](const EnsureProgress& p) {
      last = p;
      progress.Show(Line(p));
    });
    progress.Clear();
    if (!ensured) return std::unexpected(ensured.error());
    const auto surprises = [&](const Ensured& k) { return k.error && !wanted.sources.at(k.request).refused; };
    if (std::ranges::any_of(*ensured, surprises)) context.status = 1;
    const auto kept = Keep(client, *ensured);
    if (!kept) return std::unexpected(kept.error());
    Show(context, last, wanted, *ensured, *kept);
    return {};
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

  static Json ToJson(const Wanted::Source& source, const Ensured& kernel) {
    return Json::Object({{"file", source.file},
                         {"target", kernel.target},
                         {"key", Hex(kernel.key)},
                         {"origin", kernel.error ? "failed" : Name(kernel.origin)},
                         {"bytes", kernel.bytes},
                         {"durable", kernel.durable},
                         {"message", kernel.error ? kernel.error->message : ""},
                         {"program", source.program},
                         {"refused_when_recorded", source.refused}});
  }

  static void Show(const Context& context, const EnsureProgress& last, const Wanted& wanted, const std::vector<Ensured>& ensured,
                   const std::string& written) {
    if (context.json()) {
      return context.Print(
          Json::Object({{"total", last.total},
                        {"known", last.known},
                        {"compiled", last.compiled},
                        {"failed", last.failed},
                        {"seconds", last.elapsed_seconds},
                        {"bundle", written},
                        {"kernels", Json::Map(ensured, [&](const Ensured& k) { return ToJson(wanted.sources.at(k.request), k); })}}));
    }
    for (const Ensured& kernel : ensured) {
      if (!kernel.error) continue;
      const Wanted::Source& source = wanted.sources.at(kernel.request);
      fmt::print(stderr, "{} {} for {}: {}{}\n", Paint("✗", source.refused ? Style::kDim : Style::kBad, context.terminal.err), NameOf(source),
                 kernel.target, kernel.error->message, source.refused ? " (it was refused when it was recorded, too)" : "");
    }
    fmt::print(context.report, "{} {} in {:.1f} s{}\n",
               Paint(context.status == 0 ? "✓" : "✗", context.status == 0 ? Style::kGood : Style::kBad, context.colours()), Line(last),
               last.elapsed_seconds, written.empty() ? "" : " → " + written);
    const auto lost = std::ranges::count_if(ensured, [](const Ensured& k) { return !k.error && !k.durable; });
    if (lost > 0) {
      fmt::print(stderr, "{} the daemon's store could not take {} of them, which {} in its memory alone (`kiln stats` shows the store)\n",
                 Paint("warning:", Style::kWarn, context.terminal.err), lost, lost == 1 ? "is" : "are");
    }
  }

  // Asks for each kernel and compiles none.
  std::expected<void, Error> Check(Context& context, Client& client, const Wanted& wanted) const {
    std::vector<Missing> missing;
    std::size_t total = 0;
    for (std::size_t i = 0; i < wanted.sources.size(); ++i) {
      CompileRequest request = wanted.manifest.requests[i];
      for (const std::string& target : targets.empty() ? std::vector{request.target} : targets) {
        if (const auto known = target::Find(target); !known) return std::unexpected(InvalidInput(known.error()));
        request.target = target;
        ++total;
        const auto found = client.Lookup(request);
        if (found) continue;
        const Error& error = found.error();
        const bool refused = !error.diagnostics.empty();  // and the daemon remembers it
        if (!refused && error.code != ErrorCode::kNotFound) return std::unexpected(error);
        if (!wanted.sources[i].refused) missing.push_back({&wanted.sources[i], target, refused ? error.message : ""});
      }
    }
    if (!missing.empty()) context.status = 1;
    ShowMissing(context, total, missing);
    return {};
  }

  static void ShowMissing(const Context& context, std::size_t total, const std::vector<Missing>& missing) {
    if (context.json()) {
      return context.Print(Json::Object(
          {{"total", total}, {"missing", Json::Map(missing, [](const Missing& m) {
                                return Json::Object(
                                    {{"file", m.source->file}, {"program", m.source->program}, {"target", m.target}, {"message", m.why}});
                              })}}));
    }
    for (const Missing& m : missing) {
      fmt::print("{} {} for {}{}\n", Paint("missing:", Style::kBad, context.colours()), NameOf(*m.source), m.target,
                 m.why.empty() ? "" : ": " + m.why);
    }
    fmt::print("{} {} of {} kernels are missing{}\n",
               Paint(missing.empty() ? "✓" : "✗", missing.empty() ? Style::kGood : Style::kBad, context.colours()), missing.size(), total,
               missing.empty() ? "" : "; the same command without --check compiles them");
  }
};

}  // namespace

void AddPrecompile(CLI::App& app, Context& context) {
  const auto command = std::make_shared<PrecompileCommand>();
  CLI::App& sub = *app.add_subcommand("precompile", "Have programs compiled for several targets; what is known is not compiled again");
  sub.add_option("files", command->files, "manifests (`kiln record`), and programs: the IR's text form (.kiln) or serialized kiln.v1.Modules")
      ->expected(0, -1);
  sub.add_option("--hot", command->hot,
                 "also the N programs that were used most, of those that another build of the compiler compiled: after an upgrade of kilnd")
      ->option_text("N")
      ->check(CLI::Range(1u, 10'000u));
  sub.add_option("-t,--target", command->targets,
                 "cuda:sm_90a, hip:gfx942, …; may be given more than once. Without it, a manifest's requests are for the targets that were recorded");
  sub.add_option("-o,--bundle", command->bundle, "write all results to a bundle for `kiln cache import` afterwards");
  sub.add_flag("--check", command->check,
               "compile nothing and list what the daemon does not have; status 0: it has everything, 1: something is missing, another: an error")
      ->excludes(sub.get_option("--bundle"));
  AddOptions(sub, command->options);
  sub.callback([command, &context] {
    if (command->files.empty() && command->hot == 0) throw CLI::RequiredError("files, or --hot");
    command->Run(context);
  });
}

}  // namespace kiln::cli
