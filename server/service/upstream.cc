// SPDX-License-Identifier: Apache-2.0
#include "server/service/upstream.h"

#include <fstream>
#include <iterator>
#include <system_error>
#include <utility>

#include <fmt/format.h>

#include "server/system/guarded_file.h"
#include "server/upstream/upstream_tier.h"

namespace kiln::server {
namespace {

namespace fs = std::filesystem;

// So that hosts that start one job at one time begin with it. The rest of the start takes longer.
constexpr std::chrono::milliseconds kPatience{250};
constexpr std::chrono::milliseconds kPatienceToForward{2'000};  // of a host that can compile nothing before

constexpr std::size_t kMostLogged = 500;                          // bytes of what it says
constexpr std::size_t kBesideAnArtifact = std::size_t{20} << 20;  // of a reply: warnings, heads

std::expected<void, std::string> CheckReadable(const char* setting, const fs::path& file) {
  if (file.empty()) return {};
  if (const auto text = ReadOrdinary(file); !text) return std::unexpected(fmt::format("{}: {}", setting, text.error()));
  return {};
}

}  // namespace

std::expected<void, std::string> CheckUpstream(const UpstreamConfig& config) {
  if (!config.endpoint) return {};
  for (const auto& [setting, file] :
       {std::pair{"--upstream-ca", &config.ca}, std::pair{"--upstream-cert", &config.certificate}, std::pair{"--upstream-key", &config.key}}) {
    if (auto readable = CheckReadable(setting, *file); !readable) return readable;
  }
  if (config.tokens.empty()) return {};
  if (const auto tokens = ReadTenantTokens(config.tokens); !tokens) return std::unexpected(tokens.error());
  return {};
}

std::expected<std::unique_ptr<Upstream>, std::string> Upstream::Open(const UpstreamConfig& config, Host host, const Telemetry& telemetry,
                                                                     const cache::Clock& clock) {
  if (auto checked = CheckUpstream(config); !checked) return std::unexpected(std::move(checked.error()));
  std::unique_ptr<Upstream> upstream(new Upstream(std::move(host), telemetry));
  if (upstream->host_.forwards) {
    std::ifstream file(upstream->host_.remembered, std::ios::binary);
    cache::MutexLock lock(upstream->mutex_);
    upstream->ptxas_.assign(std::istreambuf_iterator<char>(file), {});
  }
  const std::size_t max_reply = upstream->host_.max_artifact_bytes + kBesideAnArtifact;
  Peer::Options options{.address = config.endpoint->address, .timeout = config.timeout, .max_reply = max_reply};
  options.on_event = [&telemetry, address = config.endpoint->address](bool good, std::string_view what) {
    telemetry.Log(good ? Level::kInfo : Level::kWarning, "upstream",
                  {{"state", good ? "ok" : "left-alone"}, {"address", std::string_view(address)}, {"message", what.substr(0, kMostLogged)}});
  };
  options.on_described = [self = upstream.get()](const v1::CapabilitiesReply& said) { self->NoteDescription(said); };
  const PeerFiles files{config.endpoint->address, !config.endpoint->socket, config.ca, config.certificate, config.key, max_reply};
  upstream->peer_ = std::make_shared<Peer>(std::move(options), ChannelTo(files), clock);
  if (config.tokens.empty()) return upstream;
  const auto read = [peer = upstream->peer_, path = config.tokens]() -> std::expected<void, std::string> {
    auto tokens = ReadTenantTokens(path);
    if (!tokens) return std::unexpected(std::move(tokens.error()));
    peer->UseTokens(std::move(*tokens));
    return {};
  };
  const auto told = [&telemetry](std::string_view error) {
    telemetry.Log(error.empty() ? Level::kInfo : Level::kError, "upstream-tokens-reloaded", {{"error", error}});
  };
  auto watch = FileWatch::Start({{config.tokens, read, told}});
  if (!watch) return std::unexpected(std::move(watch.error()));
  upstream->tokens_ = std::move(*watch);
  return upstream;
}

void Upstream::Begin(const Sealer& sealer) {
  sealer_ = &sealer;
  peer_->Begin();
  peer_->AwaitDescribed(host_.forwards ? kPatienceToForward : kPatience);
}

void Upstream::Reload() {
  if (tokens_) tokens_->Reload();
}

std::shared_ptr<cache::Tier> Upstream::tier() const { return std::make_shared<UpstreamTier>(peer_); }

std::string Upstream::PtxasVersion() const {
  cache::MutexLock lock(mutex_);
  return ptxas_;
}

void Upstream::NoteDescription(const v1::CapabilitiesReply& said) {
  const auto key = cache::PublicKey::FromBytes(said.signing_key());
  const bool trusted = key && sealer_->Trusts(*key);
  const bool same_build = said.compiler() == host_.build_id;
  std::string why;
  if (!trusted) why = "nobody here trusts its key (--trusted-keys): nothing that it seals is taken in";
  if (!same_build)
    why +=
        fmt::format("{}its compiler is another build: lookups miss{}", why.empty() ? "" : "; ", host_.forwards ? ", and nothing is forwarded" : "");
  telemetry_.Log(why.empty() ? Level::kInfo : Level::kWarning, "upstream",
                 {{"state", "ok"},
                  {"address", std::string_view(peer_->address())},
                  {"version", std::string_view(said.version()).substr(0, kMostLogged)},
                  {"compiler", std::string_view(said.compiler()).substr(0, kMostLogged)},
                  {"signing-key", key ? key->ToText() : "none"},
                  {"why", std::string_view(why)}});
  if (!host_.forwards) return;
  {
    cache::MutexLock lock(mutex_);
    if (ptxas_ == said.ptxas()) return;
    ptxas_ = said.ptxas();
  }
  Remember(said.ptxas());
}

// Where that fails, keys are other ones after a restart until the upstream kilnd has answered.
void Upstream::Remember(const std::string& ptxas) {
  const fs::path next = host_.remembered.string() + ".new";
  {
    std::ofstream file(next, std::ios::binary | std::ios::trunc);
    file << ptxas;
    if (!file.flush()) return;
  }
  std::error_code ignored;
  fs::rename(next, host_.remembered, ignored);
}

}  // namespace kiln::server
