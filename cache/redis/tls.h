// SPDX-License-Identifier: Apache-2.0
//
// TLS between memory and memory (OpenSSL): who owns the socket carries the bytes, with deadlines.
#pragma once

#include <expected>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "cache/error.h"

namespace kiln::cache::redis {

// Whom to trust. May be used from several threads.
class Tls {
 public:
  // The certificates in that PEM file; empty: the system's. The error says what is wrong.
  static std::expected<std::shared_ptr<const Tls>, std::string> Load(const std::filesystem::path& ca);

  void* context() const { return context_.get(); }

 private:
  explicit Tls(std::shared_ptr<void> context) : context_(std::move(context)) {}

  std::shared_ptr<void> context_;  // SSL_CTX
};

// One connection's, of the client. Of one thread at a time.
class TlsSession {
 public:
  // `host` must be in the server's certificate: a name, or an address.
  TlsSession(const Tls& tls, const std::string& host);
  ~TlsSession();
  TlsSession(const TlsSession&) = delete;
  TlsSession& operator=(const TlsSession&) = delete;

  // Whether the handshake is done; call again after more bytes came.
  std::expected<bool, Error> Shake();

  std::expected<void, Error> Encrypt(std::string_view plain);
  // Appends what has come so far.
  std::expected<void, Error> Decrypt(std::string& plain);

  void Came(std::string_view bytes);  // from the socket
  std::string TakeToSend();           // to the socket

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace kiln::cache::redis
