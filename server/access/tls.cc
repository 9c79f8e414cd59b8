// SPDX-License-Identifier: Apache-2.0
#include "server/access/tls.h"

#include <cstdio>

#include <fmt/format.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>
#include <openssl/bio.h>
#include <openssl/pem.h>
#include <openssl/x509.h>

#include "server/system/guarded_file.h"

namespace kiln::server {
namespace {

constexpr unsigned kLookEverySeconds = 1;

template <class T, auto Free>
struct Freed {
  void operator()(T* object) const { Free(object); }
};
using Bio = std::unique_ptr<BIO, Freed<BIO, BIO_free_all>>;
using Certificate = std::unique_ptr<X509, Freed<X509, X509_free>>;
using Key = std::unique_ptr<EVP_PKEY, Freed<EVP_PKEY, EVP_PKEY_free>>;

Bio InMemory(const std::string& text) { return Bio(BIO_new_mem_buf(text.data(), static_cast<int>(text.size()))); }

std::expected<Certificate, std::string> FirstCertificate(const std::string& path) {
  const auto text = ReadOrdinary(path);
  if (!text) return std::unexpected(text.error());
  Certificate certificate(PEM_read_bio_X509(InMemory(*text).get(), nullptr, nullptr, nullptr));
  if (!certificate) return std::unexpected(fmt::format("{} holds no PEM certificate", path));
  return certificate;
}

std::expected<void, std::string> Check(const TlsFiles& files) {
  const auto certificate = FirstCertificate(files.certificate);
  if (!certificate) return std::unexpected(certificate.error());
  const auto text = ReadOrdinary(files.key);
  if (!text) return std::unexpected(text.error());
  const Key key(PEM_read_bio_PrivateKey(InMemory(*text).get(), nullptr, nullptr, const_cast<char*>("")));
  if (!key) return std::unexpected(fmt::format("{} holds no PEM private key, or one with a password", files.key));
  if (X509_check_private_key(certificate->get(), key.get()) != 1) {
    return std::unexpected(fmt::format("{} is not the key of {}", files.key, files.certificate));
  }
  if (files.client_ca.empty()) return {};
  const auto root = FirstCertificate(files.client_ca);
  if (!root) return std::unexpected(root.error());
  return {};
}

}  // namespace

std::expected<std::shared_ptr<grpc::ServerCredentials>, std::string> TlsCredentials(const TlsFiles& files) {
  if (auto checked = Check(files); !checked) return std::unexpected(std::move(checked.error()));
  namespace tls = grpc::experimental;
  tls::TlsServerCredentialsOptions options(
      std::make_shared<tls::FileWatcherCertificateProvider>(files.key, files.certificate, files.client_ca, kLookEverySeconds));
  options.watch_identity_key_cert_pairs();
  options.set_cert_request_type(GRPC_SSL_DONT_REQUEST_CLIENT_CERTIFICATE);
  if (!files.client_ca.empty()) {
    options.watch_root_certs();
    options.set_cert_request_type(GRPC_SSL_REQUEST_AND_REQUIRE_CLIENT_CERTIFICATE_AND_VERIFY);
  }
  return tls::TlsServerCredentials(options);
}

}  // namespace kiln::server
