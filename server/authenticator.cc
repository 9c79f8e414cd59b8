// SPDX-License-Identifier: Apache-2.0
#include "server/authenticator.h"

#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <optional>
#include <utility>

#include <fmt/format.h>
#include <grpc/grpc_security_constants.h>

#include "server/guarded_file.h"
#include "server/local_listener.h"

namespace kiln::server {
namespace {

constexpr std::chrono::seconds kLookEvery{1};
constexpr std::uint8_t kNoScope = 0;
constexpr std::uint8_t kEveryScope = 31;
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

// Null: there is none with that secret.
const Token* TokenOf(const std::vector<Token>& tokens, std::string_view header) {
  constexpr std::string_view kScheme = "Bearer ";
  return header.starts_with(kScheme) ? FindToken(tokens, header.substr(kScheme.size())) : nullptr;
}

Failure NoSuchToken() {
  return Unknown("the bearer token is not one of this kilnd's; it may have been revoked. `kilnd token new` makes one");
}

std::expected<Caller, Failure> ByToken(const std::vector<Token>& tokens, const cache::Digest& hash) {
  const auto token = std::ranges::find(tokens, hash, &Token::hash);
  if (token == tokens.end()) return std::unexpected(NoSuchToken());
  if (token->IsOver(std::chrono::system_clock::now())) {
    return std::unexpected(Unknown(fmt::format("the token {} has expired; `kilnd token new` makes another", token->name)));
  }
  return Caller{token->tenant, "token " + token->name, token->scopes};
}

}  // namespace

// What a file looks like from outside.
struct Authenticator::Stamp {
  explicit Stamp(const std::filesystem::path& path) {
    struct stat status{};
    if (!path.empty() && ::stat(path.c_str(), &status) == 0) {
      facts = {static_cast<std::int64_t>(status.st_ino), status.st_size, status.st_mtim.tv_sec, status.st_mtim.tv_nsec,
               status.st_ctim.tv_sec, status.st_ctim.tv_nsec};
    }
  }
  bool operator==(const Stamp&) const = default;
  std::array<std::int64_t, 6> facts{};
};

struct Authenticator::Watched {
  std::optional<Stamp> read;  // as it was when it was last read without an error
  std::string problem;        // that has been reported
};

Authenticator::Authenticator(Options options) : options_(std::move(options)), rules_(std::make_shared<const Rules>()) {}

std::expected<std::unique_ptr<Authenticator>, std::string> Authenticator::Open(Options options) {
  std::unique_ptr<Authenticator> opened(new Authenticator(std::move(options)));
  Watched tokens{Stamp(opened->options_.tokens), {}};
  Watched access{Stamp(opened->options_.access), {}};
  if (auto read = opened->ReadTokenFile(); !read) return std::unexpected(std::move(read.error()));
  if (auto read = opened->ReadAccessFile(); !read) return std::unexpected(std::move(read.error()));
  opened->thread_ = std::thread([self = opened.get(), tokens, access] { self->Watch(tokens, access); });
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
  if (!*text) return std::unexpected(fmt::format("cannot read {} (--access): there is none", options_.access.string()));
  auto access = ParseAccessFile(**text);
  if (!access) return std::unexpected(fmt::format("{}, {}", options_.access.string(), access.error()));
  Use([&](Rules& rules) { rules.access = std::move(*access); });
  return {};
}

void Authenticator::Use(const std::function<void(Rules&)>& change) {
  auto changed = std::make_shared<Rules>(*rules());
  change(*changed);
  std::lock_guard lock(mutex_);
  rules_ = std::move(changed);
}

// One that cannot be read is tried again every time: a revocation must not be lost to a moment without descriptors.
void Authenticator::Look(Watched& file, const std::filesystem::path& path, bool asked, ReadFile read) {
  const Stamp now(path);
  if (!asked && file.read == now) return;
  const auto done = (this->*read)();
  file.read = done ? std::optional(now) : std::nullopt;
  const std::string problem = done ? "" : done.error();
  const bool known = !asked && !done && problem == file.problem;
  file.problem = problem;
  if (!known && options_.on_reload) options_.on_reload(problem);
}

void Authenticator::Watch(Watched tokens, Watched access) {
  std::unique_lock lock(mutex_);
  for (;;) {
    wake_.wait_for(lock, kLookEvery, [&] { return stopping_ || reload_; });
    if (stopping_) return;
    const bool asked = std::exchange(reload_, false);
    lock.unlock();
    Look(tokens, options_.tokens, asked, &Authenticator::ReadTokenFile);
    Look(access, options_.access, asked, &Authenticator::ReadAccessFile);
    lock.lock();
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
    const Token* token = TokenOf(rules->tokens, View(header->second));
    return token != nullptr ? Resolve(*rules, token->hash) : std::unexpected(NoSuchToken());
  }
  if (const auto peer = LocalPeer(context.peer())) return Resolve(*rules, peer->uid);
  if (const auto secured = context.auth_context()) {
    if (std::string name = CertificateName(*secured); !name.empty()) return Resolve(*rules, CertificateOf{std::move(name)});
  }
  return std::unexpected(Unknown("this kilnd serves who shows a client certificate or a bearer token; set KILN_TOKEN, or "
                                 "KILN_TLS_CERT and KILN_TLS_KEY"));
}

std::expected<Caller, Failure> Authenticator::Again(const Caller& caller) const { return Resolve(*rules(), caller.credential); }

std::expected<Caller, Failure> Authenticator::Resolve(const Rules& rules, const Credential& credential) const {
  const bool listed = !options_.access.empty();
  std::expected<Caller, Failure> caller;
  if (const auto* hash = std::get_if<cache::Digest>(&credential)) {
    caller = ByToken(rules.tokens, *hash);
  } else if (const auto* certificate = std::get_if<CertificateOf>(&credential)) {
    caller = ByCertificate(rules.access, listed, certificate->name);
  } else {
    caller = ByUser(rules.access, listed, std::get<unsigned>(credential));
  }
  if (caller) caller->credential = credential;
  return caller;
}

}  // namespace kiln::server
