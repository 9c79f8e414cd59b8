// SPDX-License-Identifier: Apache-2.0
#include "server/service/bundles.h"

#include <utility>

#include "server/reply/sealer.h"

namespace kiln::server {
namespace {

void Warn(const Telemetry& telemetry, const cache::Error& error) {
  telemetry.Log(Level::kWarning, "cache", {{"tier", "bundle"}, {"error", cache::ToString(error.code)}, {"message", std::string_view(error.message)}});
}

}  // namespace

std::expected<std::shared_ptr<cache::BundleTier>, std::string> OpenBundles(const std::vector<std::filesystem::path>& files,
                                                                           const Telemetry& telemetry, TakeIn take_in) {
  cache::BundleOptions options{.files = files, .take_in = std::move(take_in)};
  options.on_damage = [&telemetry](const cache::Error& error) { Warn(telemetry, error); };
  options.on_refused = [&telemetry](const std::filesystem::path& file, const cache::Digest& key, std::string_view why) {
    telemetry.Log(
        Level::kWarning, "refused-entry",
        {{"tier", "bundle"}, {"file", std::string_view(file.native())}, {"key", key.ToHex().substr(0, 16)}, {"why", why}, {"more", "not logged"}});
  };
  auto opened = cache::BundleTier::Open(std::move(options));
  if (!opened) return std::unexpected("--bundle: " + opened.error().message);
  return std::move(*opened);
}

void DescribeBundles(cache::BundleTier& bundles, const Telemetry& telemetry, std::string_view build) {
  const auto files = bundles.Files();
  for (std::size_t i = 0; i < files.size(); ++i) {
    const auto sample = bundles.Sample(i);
    if (!sample) Warn(telemetry, sample.error());
    const std::string compiler = sample && *sample ? CompilerOf(**sample) : std::string();
    const bool other = !compiler.empty() && compiler != build;
    telemetry.Log(other ? Level::kWarning : Level::kInfo, "bundle",
                  {{"file", std::string_view(files[i].path.native())},
                   {"entries", static_cast<std::int64_t>(files[i].entries)},
                   {"bytes", static_cast<std::int64_t>(files[i].bytes)},
                   {"damaged", static_cast<std::int64_t>(files[i].damaged)},
                   {"made-by", std::string_view(compiler)},
                   {"why", other ? "another build of the compiler made its results, which answer no request of this one" : ""}});
  }
}

std::vector<std::string> ProblemsOfBundles(const std::vector<std::filesystem::path>& files) {
  std::vector<std::string> problems;
  for (const auto& path : files) {
    const auto file = cache::BundleFile::Open(path);
    if (!file) {
      problems.push_back(file.error().message);
      continue;
    }
    const auto contents = file->Index();
    if (!contents.trouble.empty()) problems.push_back(path.string() + ": " + contents.trouble);
    if (contents.damaged > 0) problems.push_back(path.string() + ": " + std::to_string(contents.damaged) + " of its entries are damaged");
  }
  return problems;
}

}  // namespace kiln::server
