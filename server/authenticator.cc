// SPDX-License-Identifier: Apache-2.0
#include "server/authenticator.h"

#include <sys/stat.h>
#include <unistd.h>

#include <array>
#include <chrono>
#include <fstream>
#include <sstream>
#include <utility>

#include <fmt/format.h>
#include <grpc/grpc_security_constants.h>

#include "server/local_listener.h"

namespace kiln::server {
namespace {

constexpr std::chrono::seconds kLookEvery{1};
constexpr std::uint8_t kEveryScope = 31;
constexpr std::uint8_t kAllButAdmin = kEveryScope & ~static_cast<std::uint8_t>(Scope::kAdmin);

Failure Unknown(std::string message) { return {.kind = Failure::Kind::kUnauthenticated, .message = std::move(message)}; }

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

Caller ByUser(const AccessFile& access, unsigned uid) {
  const std::string name = fmt::format("uid {}", uid);
  for (const UserRule& rule : access.users) {
    if (rule.uid == uid) return {rule.grant.tenant, name, rule.grant.scopes};
  }
  if (uid == ::geteuid() || uid == 0) return {"default", name, kEveryScope};
  for (const UserRule& rule : access.users) {
    if (!rule.uid) return {rule.grant.tenant, name, rule.grant.scopes};
  }
  return {fmt::format("uid-{}", uid), name, kAllButAdmin};
}

// Empty: the client showed no certificate that was verified.
std::string CertificateName(const grpc::AuthContext& context) {
  if (!context.IsPeerAuthenticated()) return {};
  for (const char* property : {GRPC_X509_CN_PROPERTY_NAME, GRPC_X509_SAN_PROPERTY_NAME}) {
    const auto values = context.FindPropertyValues(property);
    if (!values.empty() && !values.front().empty()) return std::string(View(values.front()));
  }
  return {};
}

Caller ByCertificate(const AccessFile& access, const std::string& name) {
  for (const CertificateRule& rule : access.certificates) {
    if (rule.name == name) return {rule.grant.tenant, "certificate " + name, rule.grant.scopes};
  }
  for (const CertificateRule& rule : access.certificates) {
    if (!rule.name) return {rule.grant.tenant, "certificate " + name, rule.grant.scopes};
  }
  return {"cert:" + name, "certificate " + name, kAllButAdmin};
}

}  // namespace

// What a file looked like when it was read.
struct Authenticator::Stamp {
  explicit Stamp(const std::filesystem::path& path) {
    struct stat status{};
    if (!path.empty() && ::stat(path.c_str(), &status) == 0) {
      facts = {static_cast<std::int64_t>(status.st_ino), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
               static_cast<std::int64_t>(status.st_mode)};
    }
  }
  bool operator==(const Stamp&) const = default;
  std::array<std::int64_t, 5> facts{};
};

Authenticator::Authenticator(Options options) : options_(std::move(options)) {}

std::expected<std::unique_ptr<Authenticator>, std::string> Authenticator::Open(Options options) {
  std::unique_ptr<Authenticator> opened(new Authenticator(std::move(options)));
  auto rules = opened->Read();
  if (!rules) return std::unexpected(std::move(rules.error()));
  opened->rules_ = std::move(*rules);
  opened->thread_ = std::thread([self = opened.get()] { self->Watch(); });
  return opened;
}

Authenticator::~Authenticator() {
  {
    std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  wake_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void Authenticator::Reload() {
  {
    std::lock_guard lock(mutex_);
    reload_ = true;
  }
  wake_.notify_all();
}

std::expected<std::shared_ptr<const Authenticator::Rules>, std::string> Authenticator::Read() const {
  auto rules = std::make_shared<Rules>();
  auto tokens = ReadTokens(options_.tokens);
  if (!tokens) return std::unexpected(std::move(tokens.error()));
  rules->tokens = std::move(*tokens);
  if (options_.access.empty()) return rules;
  std::ostringstream text;
  std::ifstream file(options_.access, std::ios::binary);
  text << file.rdbuf();
  if (!file) return std::unexpected(fmt::format("cannot read {} (--access)", options_.access.string()));
  auto access = ParseAccessFile(text.view());
  if (!access) return std::unexpected(fmt::format("{}, {}", options_.access.string(), access.error()));
  rules->access = std::move(*access);
  return rules;
}

void Authenticator::Watch() {
  std::pair<Stamp, Stamp> seen{Stamp(options_.tokens), Stamp(options_.access)};
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, kLookEvery, [&] { return stopping_ || reload_; });
    if (stopping_) return;
    const bool asked = std::exchange(reload_, false);
    lock.unlock();
    const std::pair<Stamp, Stamp> now{Stamp(options_.tokens), Stamp(options_.access)};
    std::expected<std::shared_ptr<const Rules>, std::string> fresh;
    const bool read = asked || now != seen;
    if (read) fresh = Read();
    if (read && options_.on_reload) options_.on_reload(fresh ? "" : std::string_view(fresh.error()));
    seen = now;
    lock.lock();
    if (read && fresh) rules_ = std::move(*fresh);
  }
}

std::shared_ptr<const Authenticator::Rules> Authenticator::rules() const {
  std::lock_guard lock(mutex_);
  return rules_;
}

std::expected<Caller, Failure> Authenticator::Identify(const grpc::ServerContextBase& context) const {
  const auto rules = this->rules();
  const auto& metadata = context.client_metadata();
  if (const auto header = metadata.find("authorization"); header != metadata.end()) {
    return ByToken(*rules, View(header->second));
  }
  if (const auto peer = LocalPeer(context.peer())) return ByUser(rules->access, peer->uid);
  if (const auto secured = context.auth_context()) {
    if (const std::string name = CertificateName(*secured); !name.empty()) return ByCertificate(rules->access, name);
  }
  return std::unexpected(Unknown("this kilnd serves who shows a client certificate or a bearer token; set KILN_TOKEN, or "
                                 "KILN_TLS_CERT and KILN_TLS_KEY"));
}

std::expected<Caller, Failure> Authenticator::ByToken(const Rules& rules, std::string_view header) const {
  constexpr std::string_view kScheme = "Bearer ";
  const Token* token = header.starts_with(kScheme) ? FindToken(rules.tokens, header.substr(kScheme.size())) : nullptr;
  if (token == nullptr) {
    return std::unexpected(Unknown("the bearer token is not one of this kilnd's; it may have been revoked. "
                                   "`kilnd token new` makes one"));
  }
  if (token->IsOver(std::chrono::system_clock::now())) {
    return std::unexpected(Unknown(fmt::format("the token {} has expired; `kilnd token new` makes another", token->name)));
  }
  return Caller{token->tenant, "token " + token->name, token->scopes};
}

}  // namespace kiln::server
