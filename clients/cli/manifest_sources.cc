// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/manifest_sources.h"

#include <algorithm>
#include <filesystem>
#include <utility>

#include <fmt/format.h>

#include "clients/cpp/convert.h"
#include "clients/cpp/manifest_file.h"

namespace kiln::cli {
namespace {

constexpr const char* kNameTargets = "say what to compile for: --target cuda:sm_90a; `kiln devices` lists the targets";

// Those that differ in the target alone become one, which was refused if all of them were.
v1::Manifest WithoutTargets(std::vector<v1::ManifestEntry> entries) {
  for (v1::ManifestEntry& entry : entries) {
    entry.mutable_request()->clear_target();
    entry.set_refused(!entry.refused());  // a manifest keeps the mark that any has
  }
  v1::Manifest manifest = MakeManifest(entries);
  for (v1::ManifestEntry& entry : *manifest.mutable_entries()) entry.set_refused(!entry.refused());
  return manifest;
}

struct Reader {
  const std::vector<std::string>& targets;
  const Options& options;
  Wanted wanted;

  std::expected<void, Error> Add(const std::string& file) {
    std::error_code error;
    if (std::filesystem::is_directory(file, error)) {
      auto entries = ReadManifestFile(file);
      if (!entries) return std::unexpected(std::move(entries.error()));
      return AddEntries(file, std::move(*entries));
    }
    auto bytes = ReadFile(file);
    if (!bytes) return std::unexpected(std::move(bytes.error()));
    if (FormOfManifest(*bytes) == ManifestForm::kNone) return AddProgram(file, std::move(*bytes));
    auto manifest = ReadManifest(*bytes);
    if (!manifest) return std::unexpected(InvalidInput(file + ": " + manifest.error()));
    return AddEntries(file, {manifest->entries().begin(), manifest->entries().end()});
  }

  std::expected<void, Error> AddProgram(const std::string& file, std::string module) {
    if (targets.empty()) return std::unexpected(InvalidInput(kNameTargets));
    wanted.sources.push_back({.file = file, .program = ProgramName(module)});
    wanted.manifest.requests.push_back({.module = std::move(module), .target = {}, .options = options, .explain = {}, .priority = Priority::kBatch});
    return {};
  }

  std::expected<void, Error> AddEntries(const std::string& file, std::vector<v1::ManifestEntry> entries) {
    if (ToProto(CompileRequest{.module = {}, .target = {}, .options = options}).options().ByteSizeLong() > 0) {
      return std::unexpected(
          InvalidInput(file + " is a manifest, whose requests have the options with which they were recorded; leave out those of programs"));
    }
    const v1::Manifest manifest = targets.empty() ? MakeManifest(entries) : WithoutTargets(std::move(entries));
    for (const v1::ManifestEntry& entry : manifest.entries()) {
      if (targets.empty() && entry.request().target().empty()) {
        return std::unexpected(InvalidInput(fmt::format("{} holds a run of {} on a GPU of another daemon's host, and not which that was; {}", file,
                                                        ProgramName(entry.request().module()), kNameTargets)));
      }
      wanted.sources.push_back({.file = file, .program = ProgramName(entry.request().module()), .refused = entry.refused()});
      wanted.manifest.requests.push_back(FromProto(entry.request()));
      wanted.manifest.requests.back().priority = Priority::kBatch;
    }
    return {};
  }
};

}  // namespace

std::expected<Wanted, Error> ReadWanted(const std::vector<std::string>& files, const std::vector<std::string>& targets, const Options& options) {
  Reader reader{targets, options, {}};
  reader.wanted.manifest.targets = targets;
  for (const std::string& file : files) {
    if (auto added = reader.Add(file); !added) return std::unexpected(std::move(added.error()));
  }
  return std::move(reader.wanted);
}

std::expected<std::size_t, Error> AddHot(Client& client, std::uint32_t count, const std::vector<std::string>& targets, const Options& options,
                                         Wanted& wanted) {
  const auto programs = client.CacheHot(count);
  if (!programs) return std::unexpected(programs.error());
  std::vector<v1::ManifestEntry> entries(programs->size());
  for (std::size_t i = 0; i < programs->size(); ++i) *entries[i].mutable_request() = ToProto((*programs)[i]);
  Reader reader{targets, options, std::move(wanted)};
  if (auto added = reader.AddEntries("the store", std::move(entries)); !added) return std::unexpected(std::move(added.error()));
  wanted = std::move(reader.wanted);
  return programs->size();
}

}  // namespace kiln::cli
