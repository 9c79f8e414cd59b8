// SPDX-License-Identifier: Apache-2.0
//
// Who makes a call: a bearer token where one is sent (`authorization: Bearer kiln_…`), else the client's certificate, else the
// peer of the Unix socket. Whoever is none of these is nobody and gets nothing.
//
// Without a row in the access file, kilnd's own user and root are tenant "default" with every scope. Another user that the socket's
// mode lets in, and a certificate, is a tenant of its own ("uid-1001", "cert:NAME"): without admin where there is no access file,
// and without any scope where there is one, for then who is not in it is a stranger (a row for "*" lets strangers in).
//
// Threads. That of file_watch.h, which reads the files again when they change; any other may ask.
#pragma once

#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include <grpcpp/server_context.h>

#include "cache/clock.h"
#include "cache/mutex.h"
#include "server/access/access_file.h"
#include "server/access/caller.h"
#include "server/access/tokens.h"
#include "server/reply/failure.h"
#include "server/system/file_watch.h"

namespace kiln::server {

class Authenticator {
 public:
  struct Options {
    std::filesystem::path tokens;                           // may not exist
    std::filesystem::path access;                           // empty: none
    std::function<void(std::string_view error)> on_reload;  // of changed files; an empty error: they are in force
  };

  // The error says which file is wrong, and where.
  static std::expected<std::unique_ptr<Authenticator>, std::string> Open(Options options, const cache::Clock& clock);

  std::expected<Caller, Failure> Identify(const grpc::ServerContextBase& context) const;

  // The caller's rights now: tokens expire or are revoked, and rows change while a call lasts.
  std::expected<Caller, Failure> Again(const Caller& caller) const;

  TenantLimits LimitsOf(std::string_view tenant) const { return rules()->access.LimitsOf(tenant); }

  // Reads the files again now, whether they look changed or not.
  void Reload() { files_->Reload(); }

 private:
  struct Rules {
    std::vector<Token> tokens;
    AccessFile access;
  };

  Authenticator(Options options, const cache::Clock& clock);
  std::expected<void, std::string> ReadTokenFile();
  std::expected<void, std::string> ReadAccessFile();
  void Use(const std::function<void(Rules&)>& change);
  std::shared_ptr<const Rules> rules() const;
  std::expected<Caller, Failure> Resolve(const Rules& rules, const Credential& credential) const;

  const Options options_;
  const cache::Clock& clock_;  // tokens expire by it
  mutable cache::Mutex mutex_;
  std::shared_ptr<const Rules> rules_ KILN_GUARDED_BY(mutex_);
  std::unique_ptr<FileWatch> files_;  // last: its thread uses the others
};

}  // namespace kiln::server
