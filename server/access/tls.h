// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <expected>
#include <memory>
#include <string>

#include <grpcpp/security/server_credentials.h>

namespace kiln::server {

struct TlsFiles {
  std::string certificate;  // PEM chain
  std::string key;          // PEM
  std::string client_ca;    // PEM roots; not empty: clients must present a certificate of them
};

// TLS from files that are checked once a second; new certificates apply to the next connection. The error names the file that cannot be
// used; only this call, at the start, reports it.
std::expected<std::shared_ptr<grpc::ServerCredentials>, std::string> TlsCredentials(const TlsFiles& files);

}  // namespace kiln::server
