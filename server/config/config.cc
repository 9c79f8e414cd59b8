// SPDX-License-Identifier: Apache-2.0
#include "server/config/config.h"

#include <pwd.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <charconv>
#include <cmath>
#include <cstdlib>
#include <optional>
#include <string_view>
#include <system_error>
#include <thread>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <toml++/toml.h>
#include <CLI/CLI.hpp>

#include "clients/common/config_environment.h"
#include "compiler/target/closest.h"
#include "server/config/config_report.h"
#include "server/config/tls_config.h"
#include "server/system/guarded_file.h"
#include "server/system/script.h"

namespace kiln::server {
namespace {

namespace fs = std::filesystem;

fs::path OwnDirectory() {
  std::error_code error;
  return fs::read_symlink("/proc/self/exe", error).parent_path();
}

fs::path DefaultConfigFile() {
  std::error_code error;
  const std::string home = Environment("XDG_CONFIG_HOME").empty() ? Environment("HOME") + "/.config" : Environment("XDG_CONFIG_HOME");
  for (const fs::path& path : {fs::path(home) / "kiln/kilnd.toml", fs::path("/etc/kiln/kilnd.toml")}) {
    if (fs::exists(path, error)) return path;
  }
  return {};
}

// The first program of that name on PATH; scripts are passed over.
fs::path FindPtxas() {
  std::error_code error;
  std::string path = Environment("PATH") + ":/usr/local/cuda/bin";
  for (std::string_view rest = path; !rest.empty();) {
    const std::size_t end = std::min(rest.find(':'), rest.size());
    const fs::path candidate = fs::path(rest.substr(0, end)) / "ptxas";
    if (candidate.is_absolute() && ::access(candidate.c_str(), X_OK) == 0 && !IsScript(candidate)) return fs::canonical(candidate, error);
    rest.remove_prefix(std::min(end + 1, rest.size()));
  }
  return {};
}

// The options as text, before they are checked together.
struct Raw {
  std::string config_file;
  std::string listen = DefaultListen(std::getenv("XDG_RUNTIME_DIR"), ::getuid());
  std::string socket_mode = "0600";
  std::string state_dir = DefaultStateDirectory().string();
  std::string worker_executable = (OwnDirectory() / "kiln-worker").string();
  std::string ptxas = "auto";
  std::string log_level = "info";
  std::string log_format = "text";
  std::string accept_put = "auto";
  std::string worker_user = "auto";
  std::string tokens;
  std::string signing_key;
  std::string trusted_keys;
  std::string access;
  std::string metrics_listen = "none";
  bool check_config = false;
  std::vector<std::string> bundles;
  std::string cluster_store, object_store, object_endpoint, object_region;
  double cluster_expiry = std::chrono::duration<double>(ClusterConfig().expiry).count();
  double tier_timeout = 50;
  std::string upstream;
  double compile_limit = 120;
  double run_limit = 60;
  double run_transfer = 60;
  double tune_limit = 300;
  double grace = 20;
  double keepalive = 60;
};

// CLI::Range takes nan for a number of any range.
CLI::Validator Seconds(double least, double most) {
  const auto is_number = [](const std::string& text) {
    return std::isnan(std::strtod(text.c_str(), nullptr)) ? text + " is no number" : std::string();
  };
  return CLI::Range(least, most) & CLI::Validator(is_number, "");
}

void AddClusterOptions(CLI::App& app, ClusterConfig& config, Raw& raw) {
  app.add_option("--cluster-store", raw.cluster_store,
                 "redis://HOST:PORT,HOST:PORT (rediss:// for TLS): a Redis server or cluster through which hosts share "
                 "results");
  app.add_option("--cluster-ca", config.ca, "PEM roots of the cluster store's certificates (the system's)");
  app.add_option("--cluster-credentials", config.credentials,
                 "file with the password for the cluster store, or with the user on its first line and the password on "
                 "its second");
  app.add_option("--cluster-max-entry", config.max_entry_bytes, "bytes of a result; larger ones stay out of the cluster store")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{256} << 20))
      ->default_str("8MiB");
  app.add_option("--cluster-expiry", raw.cluster_expiry, "seconds after its last use that a result stays in the cluster store")
      ->check(Seconds(1.0, 1e9))
      ->capture_default_str();
  app.add_option("--tier-timeout", raw.tier_timeout, "milliseconds that a request waits for results of other hosts at most")
      ->check(Seconds(1.0, 10'000.0))
      ->capture_default_str();
}

void AddObjectOptions(CLI::App& app, ObjectConfig& config, Raw& raw) {
  app.add_option(
      "--object-store", raw.object_store,
      "s3://BUCKET/PREFIX, or https://HOST/PATH of a server that takes GET, HEAD and PUT: a large store through which hosts share results");
  app.add_option("--object-endpoint", raw.object_endpoint, "https://HOST:PORT that has the bucket (http:// without TLS), if it is not AWS");
  app.add_option("--object-region", raw.object_region, "region of the bucket (us-east-1)");
  app.add_option("--object-ca", config.ca, "PEM roots of the object store's certificate (the system's)");
  app.add_option("--object-credentials", config.credentials,
                 "file for the object store: of S3 the key's id, its secret, and a session's token if there is one, each on its line; "
                 "of https a token, or a user and a password");
  app.add_option("--object-max-entry", config.max_entry_bytes, "bytes of a result; larger ones stay out of the object store")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{1}, std::uint64_t{256} << 20))
      ->default_str("32MiB");
}

void AddOptions(CLI::App& app, Config& config, Raw& raw) {
  app.option_defaults()->multi_option_policy(CLI::MultiOptionPolicy::TakeLast);
  app.add_option("--config", raw.config_file, "TOML file whose keys are these options' names without the dashes");
  app.add_option("--listen", raw.listen, "unix:PATH or HOST:PORT")->capture_default_str();
  app.add_option("--socket-mode", raw.socket_mode, "permissions of the Unix socket, octal")->capture_default_str();
  app.add_option("--tls-cert", config.tls_certificate, "PEM certificate chain; TCP then speaks TLS");
  app.add_option("--tls-key", config.tls_key, "PEM private key of --tls-cert");
  app.add_option("--tls-client-ca", config.tls_client_ca, "PEM roots; clients must then present a certificate");
  app.add_option("--tokens", raw.tokens, "file of bearer tokens, as `kilnd token` writes it (STATE_DIR/tokens)");
  app.add_option("--access", raw.access, "TOML file: which user or certificate is which tenant, with which scopes");
  app.add_option("--audit-log", config.audit_log, "file for refused calls, admins' actions and puts, instead of the log");
  app.add_option("--accept-put", raw.accept_put,
                 "take results compiled elsewhere: signed (by --trusted-keys), yes (from anybody "
                 "who may compile, without a seal), no; auto: signed, on Unix sockets also from admins without a seal")
      ->check(CLI::IsMember({"yes", "signed", "no", "auto"}))
      ->capture_default_str();
  app.add_option("--signing-key", raw.signing_key, "Ed25519 key that results are sealed with (STATE_DIR/signing-key.pem)");
  app.add_option("--trusted-keys", raw.trusted_keys, "file of the public keys of other hosts whose results are taken");
  app.add_option("--state-dir", raw.state_dir, "the store and the reproducers")->capture_default_str();
  app.add_option("--memory-cache", config.memory_cache_bytes, "bytes of results kept in memory (256MiB)")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("256MiB");
  app.add_option("--disk-cache", config.disk_cache_bytes, "bytes of results kept on disk")->transform(CLI::AsSizeValue(false))->default_str("8GiB");
  app.add_option("--bundle", raw.bundles, "file of `kiln cache export` whose results are served as they lie there; may be given several times")
      ->multi_option_policy(CLI::MultiOptionPolicy::TakeAll)
      ->allow_extra_args(false);
  AddClusterOptions(app, config.cluster, raw);
  AddObjectOptions(app, config.object, raw);
  AddUpstreamOptions(app, config.upstream, raw.upstream);
  app.add_option("--worker-executable", raw.worker_executable, "kiln-worker")->capture_default_str();
  app.add_option("--workers", config.workers, "compiles at one time; 0: the kilnd of --upstream compiles")
      ->check(CLI::Range(0u, 1024u))
      ->capture_default_str();
  app.add_option("--worker-memory", config.worker_memory_bytes, "memory limit of a worker; 0: none")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("4GiB");
  app.add_option("--worker-user", raw.worker_user,
                 "user that workers become if kilnd runs as root: a name or number; auto: "
                 "kiln-worker, else nobody; none")
      ->capture_default_str();
  app.add_option("--jobs-per-worker", config.jobs_per_worker, "compiles before a worker is replaced")
      ->check(CLI::PositiveNumber)
      ->capture_default_str();
  app.add_option("--queue", config.queue, "compiles that may wait")->check(CLI::Range(1u, 100'000u))->capture_default_str();
  const auto bytes = [&](const char* name, auto& value, std::uint64_t most, const char* about) {
    app.add_option(name, value, about)->transform(CLI::AsSizeValue(false))->check(CLI::Range(std::uint64_t{1}, most))->capture_default_str();
  };
  const auto count = [&](const char* name, std::size_t& value, const char* about) {
    app.add_option(name, value, about)->check(CLI::Range(std::size_t{1}, value))->capture_default_str();  // the decoder's own at most
  };
  RequestLimits& limits = config.limits;
  bytes("--max-message", config.max_message_bytes, std::uint64_t{1} << 30, "bytes of a message of any call");
  app.add_option("--connection-memory", config.connection_memory_bytes, "bytes that all connections may hold of messages under way")
      ->transform(CLI::AsSizeValue(false))
      ->check(CLI::Range(std::uint64_t{32} << 20, std::uint64_t{1} << 40))
      ->default_str("192MiB");
  bytes("--manifest-memory", config.manifest_memory_bytes, std::uint64_t{1} << 40,
        "bytes that all manifests under way may hold; a caller without one may always have one; a tenant's, four fifths");
  bytes("--request-memory", config.request_memory_bytes, std::uint64_t{1} << 40,
        "bytes that all requests under way may hold, and again those that are being decoded; a tenant's, four fifths");
  app.add_option("--request-queue", config.request_queue,
                 "requests that may wait to be decoded or looked up, and as many large ones; a tenant's, four fifths")
      ->check(CLI::Range(64u, 100'000u))
      ->capture_default_str();
  app.add_option("--max-manifest", limits.manifest_items, "requests × targets of a manifest")
      ->check(CLI::Range(1u, 1'000'000u))
      ->capture_default_str();
  bytes("--max-request", limits.request_bytes, std::uint64_t{64} << 20, "bytes of a compile request");
  bytes("--max-module", limits.module_bytes, limits.module_bytes, "bytes of a program");
  bytes("--max-artifact", limits.artifact_bytes, std::uint64_t{255} << 20, "bytes of a compiled artifact");
  count("--max-kernels", limits.kernels, "kernels of a program");
  count("--max-statements", limits.statements, "statements of a program");
  count("--max-nesting", limits.nesting, "depth to which statements are nested");
  count("--max-expressions", limits.expressions, "expressions of a program");
  count("--max-buffers", limits.buffers, "buffers of a program");
  app.add_option("--compile-limit", raw.compile_limit, "seconds a compile may take")->check(Seconds(0.01, 86'400.0))->capture_default_str();
  app.add_option("--keepalive", raw.keepalive, "seconds of silence after which a client is asked whether it is still there")
      ->check(Seconds(0.1, 86'400.0))
      ->capture_default_str();
  app.add_option("--emulators", config.emulators, "emulated runs at one time; 0: this kilnd emulates nothing")
      ->check(CLI::Range(0u, 256u))
      ->capture_default_str();
  app.add_option("--run-data", config.run_data_bytes, "bytes that the tensors of one run may have")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("256MiB");
  app.add_option("--run-data-total", config.run_data_total_bytes, "bytes that the tensors of all runs under way may have")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("1GiB");
  app.add_option("--run-calls", config.run_calls, "runs under way at one time, from their first message to their last")
      ->check(CLI::Range(1u, 65'536u))
      ->capture_default_str();
  app.add_option("--max-run-arguments", config.run_arguments, "arguments of a run")->check(CLI::Range(1u, 256u))->capture_default_str();
  app.add_option("--max-run-repeats", config.run_repeats, "times that a run is repeated to be timed")
      ->check(CLI::Range(1u, 10'000u))
      ->capture_default_str();
  app.add_option("--run-transfer", raw.run_transfer, "seconds a client may take to send a run's tensors, and again to read its outputs")
      ->check(Seconds(0.01, 86'400.0))
      ->capture_default_str();
  app.add_option("--run-limit", raw.run_limit, "seconds a run may take in its worker")->check(Seconds(0.01, 86'400.0))->capture_default_str();
  app.add_option("--tunings", config.tunings, "tunings under way at one time")->check(CLI::Range(1u, 256u))->capture_default_str();
  app.add_option("--max-tune-candidates", config.tune_candidates, "candidates of a tuning")->check(CLI::Range(1u, 100'000u))->capture_default_str();
  app.add_option("--tune-limit", raw.tune_limit, "seconds a tuning may take")->check(Seconds(0.01, 86'400.0))->capture_default_str();
  app.add_option("--tune-workers", config.tune_workers, "percent of the workers that may compile candidates at one time; one may in any case")
      ->check(CLI::Range(1u, 100u))
      ->capture_default_str();
  app.add_option("--tune-device", config.tune_device, "percent of the time that tuning may keep a device busy")
      ->check(CLI::Range(1u, 100u))
      ->capture_default_str();
  app.add_option("--grace", raw.grace, "seconds that running compiles get on SIGTERM")->check(Seconds(0.0, 3'600.0))->capture_default_str();
  app.add_option("--ptxas", raw.ptxas, "a ptxas to make cubins with, no script around it; auto: from PATH; none")->capture_default_str();
  app.add_option("--metrics-listen", raw.metrics_listen, "HOST:PORT of /metrics, /healthz and /readyz over HTTP; none")->capture_default_str();
  app.add_option("--trace-file", config.trace_file, "file for the spans of requests, as lines of OTLP JSON");
  app.add_option("--trace-file-bytes", config.trace_file_bytes, "size at which that file is renamed; one renamed file is kept")
      ->transform(CLI::AsSizeValue(false))
      ->default_str("64MiB");
  app.add_option("--log-level", raw.log_level, "debug, info, warning, error")
      ->check(CLI::IsMember({"debug", "info", "warning", "error"}))
      ->capture_default_str();
  app.add_option("--log-format", raw.log_format, "text (key=value) or json")->check(CLI::IsMember({"text", "json"}))->capture_default_str();
  app.add_option("--log-file", config.log.file, "instead of stderr");
  app.add_flag("--check-config", raw.check_config, "print every setting with its origin, check the files, start nothing");
  app.set_version_flag("--version", "kilnd " KILN_VERSION);
}

using Words = std::vector<std::string>;

// A setting's value as an argument has it; nothing where it is an array, a table or a time.
std::optional<std::string> TextOf(const toml::node& value) {
  return value.visit([](const auto& node) -> std::optional<std::string> {
    if constexpr (toml::is_string<decltype(node)>) return node.get();
    else if constexpr (toml::is_number<decltype(node)>) return fmt::format("{}", node.get());
    else if constexpr (toml::is_boolean<decltype(node)>) return node.get() ? "true" : "false";
    else return std::nullopt;
  });
}

// Those of an array, too, for a setting that may be given several times.
std::optional<Words> TextsOf(const toml::node& value, const CLI::Option& option) {
  const toml::array* array = MayRepeat(option) ? value.as_array() : nullptr;
  Words texts;
  if (array == nullptr) {
    auto text = TextOf(value);
    if (!text) return std::nullopt;
    return Words{std::move(*text)};
  }
  for (const toml::node& element : *array) {
    auto text = TextOf(element);
    if (!text) return std::nullopt;
    texts.push_back(std::move(*text));
  }
  return texts;
}

// The file's keys as arguments, so that one parser checks all.
std::expected<Words, std::string> FromFile(const CLI::App& app, const fs::path& path) {
  Words words;
  const auto text = ReadOrdinary(path);
  if (!text) return std::unexpected(fmt::format("--config: {}", text.error()));
  const toml::parse_result file = [&]() -> toml::parse_result {
    try {
      return toml::parse(*text, path.string());
    } catch (const toml::parse_error& error) {
      words.push_back(fmt::format("{}, line {}: {}", path.string(), error.source().begin.line, error.description()));
      return {};
    }
  }();
  if (!words.empty()) return std::unexpected(words.front());
  for (const auto& [key, value] : file) {
    const std::string name = fmt::format("--{}", key.str());
    const CLI::Option* option = app.get_option_no_throw(name);
    if (option == nullptr || name == "--config") {
      return std::unexpected(fmt::format("{}: there is no setting {}; `kilnd --help` lists them without the dashes", path.string(), key.str()));
    }
    const auto texts = TextsOf(value, *option);
    if (!texts) {
      return std::unexpected(fmt::format("{}, line {}: {} takes a string, number or boolean{}", path.string(), value.source().begin.line, key.str(),
                                         MayRepeat(*option) ? ", or an array of these" : ""));
    }
    for (const std::string& text : *texts) {
      if (!text.empty()) words.push_back(fmt::format("{}={}", name, text));  // CLI11 would take the next word for the value
    }
  }
  return words;
}

// The values of a variable: several have a colon between them, as in PATH.
Words ValuesIn(std::string_view variable, const CLI::Option& option) {
  Words values;
  while (!variable.empty()) {
    const std::size_t end = MayRepeat(option) ? std::min(variable.find(':'), variable.size()) : variable.size();
    if (end > 0) values.emplace_back(variable.substr(0, end));
    variable.remove_prefix(std::min(end + 1, variable.size()));
  }
  return values;
}

// KILN_STATE_DIR is --state-dir, and so on.
Words FromEnvironment(const CLI::App& app) {
  Words words;
  for (const CLI::Option* option : app.get_options()) {
    const std::string name = option->get_single_name();
    if (name == "help" || name == "version" || name == "config" || name == "check-config") continue;
    for (const std::string& value : ValuesIn(Environment(VariableOf(name).c_str()), *option)) words.push_back(fmt::format("--{}={}", name, value));
  }
  return words;
}

// Of a setting that may be given several times, the first place that has it gives all its values, as of any other.
void DropRepeated(const CLI::App& app, const Words& nearer, Words& words) {
  for (const CLI::Option* option : app.get_options([](const CLI::Option* option) { return MayRepeat(*option); })) {
    const std::string name = option->get_single_name();
    if (Names(nearer, name)) std::erase_if(words, [&](const std::string& word) { return word.starts_with("--" + name + "="); });
  }
}

// A suggestion for a command line with an unknown option.
std::string DidYouMean(const CLI::App& app) {
  Words names;
  for (const CLI::Option* option : app.get_options()) names.push_back("--" + option->get_single_name());
  const std::vector<std::string_view> candidates(names.begin(), names.end());
  for (const std::string& word : app.remaining()) {
    const std::string name = word.substr(0, word.find('='));
    if (const auto meant = target::Closest(name, candidates, target::Slips(name))) return fmt::format(" (did you mean {}?)", *meant);
  }
  return {};
}

fs::path ConfigFileIn(const Words& arguments) {
  for (std::size_t i = 0; i < arguments.size(); ++i) {
    if (arguments[i].starts_with("--config=")) return arguments[i].substr(9);
    if (arguments[i] == "--config" && i + 1 < arguments.size()) return arguments[i + 1];
  }
  const std::string variable = Environment("KILN_CONFIG");
  return variable.empty() ? DefaultConfigFile() : fs::path(variable);
}

Level LevelOf(std::string_view name) {
  if (name == "debug") return Level::kDebug;
  if (name == "warning") return Level::kWarning;
  return name == "error" ? Level::kError : Level::kInfo;
}

std::expected<std::string, std::string> MetricsAddress(const std::string& text) {
  if (text == "none" || text.empty()) return std::string();
  const auto endpoint = ParseEndpoint(text);
  if (!endpoint || endpoint->socket) return std::unexpected(fmt::format("--metrics-listen: {} is no HOST:PORT; or say none", text));
  return endpoint->address;
}

std::expected<std::optional<unsigned>, std::string> ParseUser(const std::string& text) {
  if (text == "none") return std::nullopt;
  for (const std::string& name : text == "auto" ? Words{"kiln-worker", "nobody"} : Words{text}) {
    if (const passwd* user = ::getpwnam(name.c_str())) return user->pw_uid;
  }
  unsigned number = 0;
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), number);
  if (error == std::errc() && end == text.data() + text.size()) return number;
  if (text == "auto") return 65534;  // a container without /etc/passwd
  return std::unexpected(fmt::format("--worker-user: there is no user {}", text));
}

std::expected<void, std::string> FinishCluster(const Raw& raw, ClusterConfig& config) {
  config.expiry = std::chrono::milliseconds(static_cast<std::int64_t>(raw.cluster_expiry * 1000));
  config.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(raw.tier_timeout));
  if (raw.cluster_store.empty()) {
    if (config.ca.empty() && config.credentials.empty()) return {};
    return std::unexpected("--cluster-ca and --cluster-credentials belong to --cluster-store, which is not given");
  }
  auto store = cache::redis::ParseStoreAddress(raw.cluster_store);
  if (!store) return std::unexpected("--cluster-store: " + store.error());
  if (!config.ca.empty() && !store->tls) return std::unexpected("--cluster-ca: the store is asked without TLS; write rediss:// in --cluster-store");
  config.store = std::move(*store);
  return {};
}

std::expected<void, std::string> FinishObject(const Raw& raw, ObjectConfig& config) {
  config.timeout = std::chrono::milliseconds(static_cast<std::int64_t>(raw.tier_timeout));
  if (raw.object_store.empty()) {
    if (config.ca.empty() && config.credentials.empty() && raw.object_endpoint.empty() && raw.object_region.empty()) return {};
    return std::unexpected("--object-endpoint, --object-region, --object-ca and --object-credentials belong to --object-store, which is not given");
  }
  auto store = cache::object::ParseAddress(raw.object_store, raw.object_endpoint, raw.object_region);
  if (!store) return std::unexpected(std::move(store.error()));
  if (!config.ca.empty() && !store->tls) return std::unexpected("--object-ca: the store is asked without TLS; write https://");
  if (!config.credentials.empty() && !store->tls && !store->region) {
    return std::unexpected("--object-credentials: anybody on the way could read them over http://; write https://");
  }
  config.store = std::move(*store);
  return {};
}

// What the options mean together.
std::expected<void, std::string> Finish(const Raw& raw, Config& config) {
  auto endpoint = ParseEndpoint(raw.listen);
  if (!endpoint) return std::unexpected("--listen: " + endpoint.error());
  config.endpoint = std::move(*endpoint);
  const bool tls = !config.tls_certificate.empty();
  if (tls != !config.tls_key.empty()) return std::unexpected("--tls-cert and --tls-key belong together");
  if (!config.endpoint.socket && !tls) {
    return std::unexpected(
        fmt::format("{} is TCP, where without TLS anybody could read and write kernels; give --tls-cert and "
                    "--tls-key, or --listen unix:PATH",
                    config.endpoint.address));
  }
  char* end = nullptr;
  config.socket_mode = static_cast<unsigned>(std::strtoul(raw.socket_mode.c_str(), &end, 8));
  if (*end != '\0' || config.socket_mode > 0777) return std::unexpected("--socket-mode: use an octal mode such as 0660");
  const bool local = raw.accept_put == "auto" && config.endpoint.socket;
  config.accept_put = raw.accept_put != "no";
  config.accept_unsigned = raw.accept_put == "yes" ? AcceptUnsigned::kOfAnybody : local ? AcceptUnsigned::kOfAdmins : AcceptUnsigned::kOfNobody;
  std::error_code error;
  config.state_directory = fs::absolute(raw.state_dir, error);
  if (error) return std::unexpected(fmt::format("--state-dir '{}': {}", raw.state_dir, error.message()));
  config.tokens = raw.tokens.empty() ? config.state_directory / "tokens" : fs::path(raw.tokens);
  config.access = raw.access;
  config.signing_key = raw.signing_key.empty() ? config.state_directory / "signing-key.pem" : fs::path(raw.signing_key);
  config.trusted_keys = raw.trusted_keys;
  config.bundles.assign(raw.bundles.begin(), raw.bundles.end());
  if (auto cluster = FinishCluster(raw, config.cluster); !cluster) return cluster;
  if (auto object = FinishObject(raw, config.object); !object) return object;
  if (auto upstream = FinishUpstream(raw.upstream, config.cluster.timeout, config.upstream); !upstream) return upstream;
  if (config.workers == 0 && !config.upstream.endpoint) {
    return std::unexpected("--workers=0: nobody would compile; name the kilnd that does with --upstream, or have at least one worker");
  }
  config.worker_executable = raw.worker_executable;
  const auto worker_user = ParseUser(raw.worker_user);
  if (!worker_user) return std::unexpected(worker_user.error());
  config.worker_user = *worker_user;
  config.library_path = Environment("LD_LIBRARY_PATH");
  config.ptxas = raw.ptxas == "auto" ? FindPtxas() : raw.ptxas == "none" ? fs::path() : fs::path(raw.ptxas);
  config.compile_limit = std::chrono::milliseconds(static_cast<std::int64_t>(raw.compile_limit * 1000));
  config.keepalive = std::chrono::milliseconds(static_cast<std::int64_t>(raw.keepalive * 1000));
  config.run_limit = std::chrono::milliseconds(static_cast<std::int64_t>(raw.run_limit * 1000));
  config.run_transfer = std::chrono::milliseconds(static_cast<std::int64_t>(raw.run_transfer * 1000));
  constexpr std::uint64_t kMostRunData = std::uint64_t{1} << 40;
  if (config.run_data_bytes == 0 || config.run_data_bytes > kMostRunData) {
    return std::unexpected("--run-data: from 1 byte to 1TiB; --run-limit and --emulators bound what runs do besides");
  }
  if (config.run_data_total_bytes < config.run_data_bytes) {
    return std::unexpected(
        fmt::format("--run-data-total ({} bytes) is less than one run may have, --run-data ({} bytes); raise it or "
                    "lower the other",
                    config.run_data_total_bytes, config.run_data_bytes));
  }
  config.tune_limit = std::chrono::milliseconds(static_cast<std::int64_t>(raw.tune_limit * 1000));
  config.grace = std::chrono::milliseconds(static_cast<std::int64_t>(raw.grace * 1000));
  auto metrics = MetricsAddress(raw.metrics_listen);
  if (!metrics) return std::unexpected(std::move(metrics.error()));
  config.metrics_address = std::move(*metrics);
  config.log.level = LevelOf(raw.log_level);
  config.log.json = raw.log_format == "json";
  return {};
}

}  // namespace

fs::path DefaultStateDirectory() {
  if (const std::string cache = Environment("XDG_CACHE_HOME"); cache.starts_with('/')) return fs::path(cache) / "kiln";
  if (const std::string home = Environment("HOME"); home.starts_with('/')) return fs::path(home) / ".cache/kiln";
  return "/var/cache/kiln";
}

fs::path OwnStateDirectory(const fs::path& state_directory, std::string_view address) {
  std::string name;  // two addresses never have the same
  for (const char c : address) name += c == '/' ? "%2F" : c == '%' ? "%25" : std::string(1, c);
  return state_directory / "at" / name;
}

std::expected<Config, ConfigEnd> ReadConfig(int argc, char** argv) {
  Config config;
  config.workers = DefaultWorkers(std::thread::hardware_concurrency());
  Raw raw;
  CLI::App app("kilnd compiles tile programs for GPUs and keeps the results.", "kilnd");
  AddOptions(app, config, raw);

  const Words flags(argv + 1, argv + argc);
  Words from_file_words;
  const fs::path file = ConfigFileIn(flags);
  if (!file.empty() && file != "/dev/null") {
    auto from_file = FromFile(app, file);
    if (!from_file) return std::unexpected(ConfigEnd{2, from_file.error()});
    from_file_words = std::move(*from_file);
  }
  const Words from_environment = FromEnvironment(app);
  Words words;
  for (const Words* place : {&std::as_const(from_file_words), &from_environment, &flags}) {
    DropRepeated(app, *place, words);
    words.insert(words.end(), place->begin(), place->end());
  }
  std::ranges::reverse(words);  // as CLI11 takes a vector
  try {
    app.parse(words);
  } catch (const CLI::CallForHelp&) {
    return std::unexpected(ConfigEnd{0, app.help()});
  } catch (const CLI::CallForVersion&) {
    return std::unexpected(ConfigEnd{0, app.version() + "\n"});
  } catch (const CLI::ParseError& error) {
    return std::unexpected(ConfigEnd{2, fmt::format("{}{}; `kilnd --help` lists the options", error.what(), DidYouMean(app))});
  }
  if (const auto finished = Finish(raw, config); !finished) return std::unexpected(ConfigEnd{2, finished.error()});
  if (const auto heard = RefuseTlsOfSocket(config, {from_file_words, flags}); !heard) return std::unexpected(ConfigEnd{2, heard.error()});
  if (app.count("--state-dir") == 0) config.own_state_directory = OwnStateDirectory(config.state_directory, config.endpoint.address);
  if (raw.check_config) config.effective = Effective(app, {from_file_words, file.string(), from_environment, flags});
  config.service_manager = ServiceManagerFromEnvironment();
  return config;
}

}  // namespace kiln::server
