// SPDX-License-Identifier: Apache-2.0
#include "server/access/authenticator.h"

#include <unistd.h>

#include <algorithm>
#include <utility>

#include <fmt/format.h>
#include <grpc/grpc_security_constants.h>

#include "server/access/local_peer.h"
#include "server/system/guarded_file.h"

namespace kiln::server {
namespace {

constexpr std::uint8_t kNoScope = 0;
constexpr std::uint8_t kAllButAdmin = kEveryScope & ~static_cast<std::uint8_t>(Scope::kAdmin);

Failure Unknown(std::string message) { return {.kind = Failure::Kind::kUnauthenticated, .message = std::move(message)}; }

std::string_view View(grpc::string_ref text) { return {text.data(), text.size()}; }

Caller ByUser(const AccessFile& access, bool listed, unsigned uid) {
  const std::string name = fmt::format("uid {}", uid);
  for (const UserRule& rule : access.users) {
    if (rule.uid == uid) return {rule.grant.tenant, name, rule.grant.scopes};
  }
  if (uid == ::geteuid() || uid == 0) return {"default", name, kEveryScope};
  for (const UserRule& rule : access.users) {
    if (!rule.uid) return {rule.grant.tenant, name, rule.grant.scopes};
  }
  return {fmt::format("uid-{}", uid), name, listed ? kNoScope : kAllButAdmin};
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

Caller ByCertificate(const AccessFile& access, bool listed, const std::string& name) {
  for (const CertificateRule& rule : access.certificates) {
    if (rule.name == name) return {rule.grant.tenant, "certificate " + name, rule.grant.scopes};
  }
  for (const CertificateRule& rule : access.certificates) {
    if (!rule.name) return {rule.grant.tenant, "certificate " + name, rule.grant.scopes};
  }
  return {"cert:" + name, "certificate " + name, listed ? kNoScope : kAllButAdmin};
}

char Lower(char c) { return 'A' <= c && c <= 'Z' ? static_cast<char>(c - 'A' + 'a') : c; }

// Null: there is none with that secret. The case of a scheme's name does not count (RFC 9110, 11.1).
const Token* TokenOf(const std::vector<Token>& tokens, std::string_view header) {
  constexpr std::string_view kScheme = "bearer ";
  return std::ranges::equal(header.substr(0, kScheme.size()), kScheme, {}, Lower) ? FindToken(tokens, header.substr(kScheme.size())) : nullptr;
}

Failure NoSuchToken() { return Unknown("this kilnd does not know the bearer token; it may have been revoked. `kilnd token new` makes one"); }

std::expected<Caller, Failure> ByToken(const std::vector<Token>& tokens, const cache::Digest& hash, cache::WallTime now) {
  const auto token = std::ranges::find(tokens, hash, &Token::hash);
  if (token == tokens.end()) return std::unexpected(NoSuchToken());
  if (token->IsOver(now)) {
    return std::unexpected(Unknown(fmt::format("the token {} has expired; `kilnd token new` makes another", token->name)));
  }
  return Caller{token->tenant, "token " + token->name, token->scopes};
}

}  // namespace

Authenticator::Authenticator(Options options, const cache::Clock& clock)
    : options_(std::move(options)), clock_(clock), rules_(std::make_shared<const Rules>()) {}

std::expected<std::unique_ptr<Authenticator>, std::string> Authenticator::Open(Options options, const cache::Clock& clock) {
  std::unique_ptr<Authenticator> opened(new Authenticator(std::move(options), clock));
  Authenticator& self = *opened;
  auto files = FileWatch::Start({{self.options_.tokens, [&self] { return self.ReadTokenFile(); }, self.options_.on_reload},
                                 {self.options_.access, [&self] { return self.ReadAccessFile(); }, self.options_.on_reload}});
  if (!files) return std::unexpected(std::move(files.error()));
  self.files_ = std::move(*files);
  return opened;
}

std::expected<void, std::string> Authenticator::ReadTokenFile() {
  auto tokens = ReadTokens(options_.tokens);
  if (!tokens) return std::unexpected(std::move(tokens.error()));
  Use([&](Rules& rules) { rules.tokens = std::move(*tokens); });
  return {};
}

std::expected<void, std::string> Authenticator::ReadAccessFile() {
  if (options_.access.empty()) return {};
  const auto text = ReadGuarded(options_.access);
  if (!text) return std::unexpected(text.error() + " (--access)");
  if (!*text) return std::unexpected(fmt::format("cannot read {} (--access): there is no such file", options_.access.string()));
  auto access = ParseAccessFile(**text);
  if (!access) return std::unexpected(fmt::format("{}, {}", options_.access.string(), access.error()));
  Use([&](Rules& rules) { rules.access = std::move(*access); });
  return {};
}

void Authenticator::Use(const std::function<void(Rules&)>& change) {
  auto changed = std::make_shared<Rules>(*rules());
  change(*changed);
  cache::MutexLock lock(mutex_);
  rules_ = std::move(changed);
}

std::shared_ptr<const Authenticator::Rules> Authenticator::rules() const {
  cache::MutexLock lock(mutex_);
  return rules_;
}

std::expected<Caller, Failure> Authenticator::Identify(const grpc::ServerContextBase& context) const {
  const auto rules = this->rules();
  const auto& metadata = context.client_metadata();
  if (const auto header = metadata.find("authorization"); header != metadata.end()) {
    const Token* token = TokenOf(rules->tokens, View(header->second));
    return token != nullptr ? Resolve(*rules, token->hash) : std::unexpected(NoSuchToken());
  }
  if (const auto peer = LocalPeer(context.peer())) return Resolve(*rules, peer->uid);
  if (const auto secured = context.auth_context()) {
    if (std::string name = CertificateName(*secured); !name.empty()) return Resolve(*rules, CertificateOf{std::move(name)});
  }
  return std::unexpected(
      Unknown("this kilnd serves only clients with a client certificate or a bearer token; set KILN_TOKEN, or "
              "KILN_TLS_CERT and KILN_TLS_KEY"));
}

std::expected<Caller, Failure> Authenticator::Again(const Caller& caller) const { return Resolve(*rules(), caller.credential); }

std::expected<Caller, Failure> Authenticator::Resolve(const Rules& rules, const Credential& credential) const {
  const bool listed = !options_.access.empty();
  std::expected<Caller, Failure> caller;
  if (const auto* hash = std::get_if<cache::Digest>(&credential)) {
    caller = ByToken(rules.tokens, *hash, clock_.WallNow());
  } else if (const auto* certificate = std::get_if<CertificateOf>(&credential)) {
    caller = ByCertificate(rules.access, listed, certificate->name);
  } else {
    caller = ByUser(rules.access, listed, std::get<unsigned>(credential));
  }
  if (caller) caller->credential = credential;
  return caller;
}

}  // namespace kiln::server
