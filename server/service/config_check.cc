// SPDX-License-Identifier: Apache-2.0
#include "server/service/config_check.h"

#include <unistd.h>

#include <cerrno>
#include <cstdio>
#include <cstring>
#include <filesystem>
#include <system_error>

#include <fmt/format.h>

#include "cache/sqlite/store_directory.h"
#include "server/access/authenticator.h"
#include "server/access/tls.h"
#include "server/service/bundles.h"
#include "server/service/shared_stores.h"
#include "server/service/upstream.h"
#include "server/system/guarded_file.h"
#include "server/system/script.h"
#include "server/system/system_clock.h"

namespace kiln::server {
namespace {

namespace fs = std::filesystem;

class Checker {
 public:
  void Runs(const char* setting, const fs::path& program) {
    if (!program.empty() && ::access(program.c_str(), X_OK) != 0) Add(setting, program, "cannot be run");
  }

  void IsNoScript(const char* setting, const fs::path& program) {
    if (!program.empty() && IsScript(program)) {
      Says(setting,
           fmt::format("{} is a script, which a worker that Landlock confines cannot start; name the program that it starts", program.string()));
    }
  }

  // Checks that the folder exists and is writable, or can be made.
  void Keeps(const char* setting, const fs::path& folder) {
    std::error_code error;
    const fs::path there = Existing(folder);
    if (!fs::is_directory(there, error)) return problems_.push_back(fmt::format("{}: {} is no folder", setting, there.string()));
    if (::access(there.c_str(), W_OK | X_OK) != 0) Add(setting, there, "cannot be written");
  }

  void KeepsStore(const char* setting, const fs::path& folder) {
    Keeps(setting, folder);
    if (const auto may = cache::MayHoldStore(Existing(folder)); !may) Says(setting, may.error().message);
  }

  void Writes(const char* setting, const fs::path& file, std::string (*why_not)(const fs::path&) = WhyNoLog) {
    if (file.empty()) return;
    std::error_code error;
    if (!fs::exists(file, error)) return Keeps(setting, fs::absolute(file, error).parent_path());
    if (const std::string why = why_not(file); !why.empty()) return Says(setting, fmt::format("cannot write {}: {}", file.string(), why));
    if (::access(file.c_str(), W_OK) != 0) Add(setting, file, "cannot be written");
  }

  void Says(const char* setting, const std::string& problem) { problems_.push_back(fmt::format("{}: {}", setting, problem)); }

  std::vector<std::string> Take() { return std::move(problems_); }

 private:
  // The folder itself, or what of its path is there already.
  static fs::path Existing(fs::path folder) {
    std::error_code error;
    while (!folder.empty() && !fs::exists(folder, error) && folder != folder.root_path()) folder = folder.parent_path();
    return folder;
  }

  void Add(const char* setting, const fs::path& path, const char* what) {
    problems_.push_back(fmt::format("{}: {} {}: {}", setting, path.string(), what, std::strerror(errno)));
  }

  std::vector<std::string> problems_;
};

}  // namespace

std::vector<std::string> ProblemsOf(const Config& config) {
  Checker check;
  check.Runs("worker-executable", config.worker_executable);
  check.Runs("ptxas", config.ptxas);
  check.IsNoScript("ptxas", config.ptxas);
  check.KeepsStore("state-dir", config.state_directory);
  if (config.endpoint.socket) check.Keeps("listen", config.endpoint.socket->parent_path());
  check.Writes("log-file", config.log.file);
  check.Writes("audit-log", config.audit_log);
  check.Writes("trace-file", config.trace_file, WhyNotRenamed);
  if (!config.tls_certificate.empty()) {
    if (const auto tls = TlsCredentials({config.tls_certificate, config.tls_key, config.tls_client_ca}); !tls) {
      check.Says("tls-cert", tls.error());
    }
  }
  const SystemClock clock;
  if (const auto rules = Authenticator::Open({.tokens = config.tokens, .access = config.access, .on_reload = [](std::string_view) {}}, clock);
      !rules) {
    check.Says("access", rules.error());
  }
  for (const std::string& problem : ProblemsOfBundles(config.bundles)) check.Says("bundle", problem);
  if (const auto cluster = CheckClusterStore(config.cluster); !cluster) check.Says("cluster-store", cluster.error());
  if (const auto object = CheckObjectStore(config.object); !object) check.Says("object-store", object.error());
  if (const auto upstream = CheckUpstream(config.upstream); !upstream) check.Says("upstream", upstream.error());
  return check.Take();
}

int CheckConfig(const Config& config) {
  std::fputs(config.effective->c_str(), stdout);
  const std::vector<std::string> problems = ProblemsOf(config);
  for (const std::string& problem : problems) fmt::print(stderr, "kilnd: {}\n", problem);
  return problems.empty() ? 0 : 2;
}

}  // namespace kiln::server
