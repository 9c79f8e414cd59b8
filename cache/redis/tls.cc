// SPDX-License-Identifier: Apache-2.0
#include "cache/redis/tls.h"

#include <arpa/inet.h>
#include <fmt/format.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <openssl/x509v3.h>

#include <algorithm>
#include <array>
#include <new>
#include <utility>

namespace kiln::cache::redis {
namespace {

std::string Reason() {
  std::array<char, 256> text{};
  const unsigned long code = ERR_get_error();
  ERR_clear_error();
  if (code == 0) return "no reason given";
  ERR_error_string_n(code, text.data(), text.size());
  return text.data();
}

bool IsAddress(const std::string& host) {
  in6_addr ignored;
  return inet_pton(AF_INET, host.c_str(), &ignored) == 1 || inet_pton(AF_INET6, host.c_str(), &ignored) == 1;
}

}  // namespace

std::expected<std::shared_ptr<const Tls>, std::string> Tls::Load(const std::filesystem::path& ca) {
  std::shared_ptr<void> context(SSL_CTX_new(TLS_client_method()), [](void* ctx) { SSL_CTX_free(static_cast<SSL_CTX*>(ctx)); });
  auto* const ctx = static_cast<SSL_CTX*>(context.get());
  if (ctx == nullptr) return std::unexpected("OpenSSL cannot be used: " + Reason());
  SSL_CTX_set_min_proto_version(ctx, TLS1_2_VERSION);
  SSL_CTX_set_verify(ctx, SSL_VERIFY_PEER, nullptr);
  const bool loaded = ca.empty() ? SSL_CTX_set_default_verify_paths(ctx) == 1 : SSL_CTX_load_verify_locations(ctx, ca.c_str(), nullptr) == 1;
  if (!loaded) return std::unexpected(fmt::format("no certificates can be read from {}: {}", ca.empty() ? "the system" : ca.string(), Reason()));
  return std::shared_ptr<const Tls>(new Tls(std::move(context)));
}

struct TlsSession::State {
  SSL* ssl = nullptr;
  BIO* came = nullptr;  // of ssl
  BIO* goes = nullptr;  // of ssl

  // What an operation on `ssl` came to: whether it was done, or waits for more bytes.
  std::expected<bool, Error> Done(int outcome) const {
    if (outcome > 0) return true;
    const int why = SSL_get_error(ssl, outcome);
    if (why == SSL_ERROR_WANT_READ || why == SSL_ERROR_WANT_WRITE) return false;
    if (why == SSL_ERROR_ZERO_RETURN) return Fail(ErrorCode::kUnreachable, "the server closed the connection");
    const long verified = SSL_get_verify_result(ssl);
    const std::string reason = Reason();
    if (verified == X509_V_OK) return Fail(ErrorCode::kUnreachable, "TLS: " + reason);
    return Fail(ErrorCode::kUnreachable, fmt::format("TLS: the server's certificate is not accepted: {} (--cluster-ca names whom to trust)",
                                                     X509_verify_cert_error_string(verified)));
  }
};

TlsSession::TlsSession(const Tls& tls, const std::string& host) : state_(std::make_unique<State>()) {
  state_->ssl = SSL_new(static_cast<SSL_CTX*>(tls.context()));
  state_->came = BIO_new(BIO_s_mem());
  state_->goes = BIO_new(BIO_s_mem());
  if (state_->ssl == nullptr || state_->came == nullptr || state_->goes == nullptr) throw std::bad_alloc();
  SSL_set_bio(state_->ssl, state_->came, state_->goes);
  SSL_set_connect_state(state_->ssl);
  const bool is_address = IsAddress(host);
  const int named = is_address ? X509_VERIFY_PARAM_set1_ip_asc(SSL_get0_param(state_->ssl), host.c_str()) : SSL_set1_host(state_->ssl, host.c_str());
  if (named != 1) throw std::bad_alloc();  // for lack of memory alone; without a name any certificate would do
  if (!is_address) SSL_set_tlsext_host_name(state_->ssl, host.c_str());
}

TlsSession::~TlsSession() { SSL_free(state_->ssl); }

std::expected<bool, Error> TlsSession::Shake() {
  ERR_clear_error();
  return state_->Done(SSL_do_handshake(state_->ssl));
}

std::expected<void, Error> TlsSession::Encrypt(std::string_view plain) {
  constexpr std::size_t kAtOnce = std::size_t{1} << 24;
  while (!plain.empty()) {
    ERR_clear_error();
    const std::string_view part = plain.substr(0, kAtOnce);
    const auto done = state_->Done(SSL_write(state_->ssl, part.data(), static_cast<int>(part.size())));
    if (!done) return std::unexpected(done.error());
    if (!*done) return Fail(ErrorCode::kUnreachable, "TLS: the server asks for a handshake of its own");
    plain.remove_prefix(part.size());
  }
  return {};
}

std::expected<void, Error> TlsSession::Decrypt(std::string& plain) {
  std::array<char, 16384> part;
  for (;;) {
    ERR_clear_error();
    const int got = SSL_read(state_->ssl, part.data(), static_cast<int>(part.size()));
    const auto done = state_->Done(got);
    if (!done) return std::unexpected(done.error());
    if (!*done) return {};
    plain.append(part.data(), static_cast<std::size_t>(got));
  }
}

void TlsSession::Came(std::string_view bytes) { BIO_write(state_->came, bytes.data(), static_cast<int>(bytes.size())); }

std::string TlsSession::TakeToSend() {
  std::string bytes(BIO_ctrl_pending(state_->goes), '\0');
  if (!bytes.empty()) BIO_read(state_->goes, bytes.data(), static_cast<int>(bytes.size()));
  return bytes;
}

}  // namespace kiln::cache::redis
