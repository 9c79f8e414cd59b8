// SPDX-License-Identifier: Apache-2.0
#include "cache/signature.h"

#include <fcntl.h>
#include <openssl/evp.h>
#include <openssl/pem.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdio>
#include <cstdlib>
#include <cstring>

#include <fmt/format.h>

#include "cache/digest.h"

namespace kiln::cache {
namespace {

constexpr std::string_view kPrefix = "ed25519:";
constexpr std::size_t kSignatureSize = 64;

struct Free {
  void operator()(EVP_PKEY* key) const { EVP_PKEY_free(key); }
  void operator()(EVP_MD_CTX* context) const { EVP_MD_CTX_free(context); }
  void operator()(FILE* file) const { std::fclose(file); }
};
using Key = std::unique_ptr<EVP_PKEY, Free>;
using Context = std::unique_ptr<EVP_MD_CTX, Free>;
using File = std::unique_ptr<FILE, Free>;

const unsigned char* Bytes(std::string_view text) { return reinterpret_cast<const unsigned char*>(text.data()); }

PublicKey PublicHalf(EVP_PKEY* key) {
  PublicKey half;
  std::size_t size = half.bytes.size();
  EVP_PKEY_get_raw_public_key(key, half.bytes.data(), &size);
  return half;
}

std::unexpected<Error> Unusable(const std::filesystem::path& path, std::string_view why, ErrorCode code = ErrorCode::kRefused) {
  return Fail(code, fmt::format("the signing key {} {}", path.string(), why));
}

std::unexpected<Error> CannotWrite(const std::filesystem::path& path, int error) {
  return Unusable(path, fmt::format("cannot be written: {}", std::strerror(error)), ErrorCode::kUnreachable);
}

std::expected<Key, Error> Read(const std::filesystem::path& path, int fd) {
  const File file(::fdopen(fd, "r"));
  struct stat status{};
  if (::fstat(fd, &status) != 0 || !S_ISREG(status.st_mode)) return Unusable(path, "is no ordinary file; remove it to have one made");
  if (status.st_uid != ::geteuid() && status.st_uid != 0) {
    return Unusable(
        path, fmt::format("belongs to user {}, who could sign with it; chown it to user {}, who runs this process", status.st_uid, ::geteuid()));
  }
  if ((status.st_mode & (S_IRWXG | S_IRWXO)) != 0) {
    return Unusable(path, "can be read by others; chmod 600 it, or remove it to have another made");
  }
  Key key(PEM_read_PrivateKey(file.get(), nullptr, nullptr, const_cast<char*>("")));
  if (!key || EVP_PKEY_get_id(key.get()) != EVP_PKEY_ED25519) {
    return Unusable(path, "holds no Ed25519 private key; remove it to have another made");
  }
  return key;
}

// Written to a file beside it and linked into place: if two processes make a key at once, both use the same.
std::expected<void, Error> Write(const std::filesystem::path& path, EVP_PKEY* key) {
  std::string part = path.string() + ".XXXXXX";  // not by a process's number: in a container it is always the same
  const int fd = ::mkostemp(part.data(), O_CLOEXEC);
  if (fd < 0) return CannotWrite(path, errno);
  File file(::fdopen(fd, "w"));
  const bool written =
      PEM_write_PrivateKey(file.get(), key, nullptr, nullptr, 0, nullptr, nullptr) == 1 && std::fflush(file.get()) == 0 && ::fsync(fd) == 0;
  const bool linked = written && (::link(part.c_str(), path.c_str()) == 0 || errno == EEXIST);
  const int error = errno;
  ::unlink(part.c_str());
  if (!linked) return CannotWrite(path, error);
  return {};
}

}  // namespace

std::optional<PublicKey> PublicKey::FromBytes(std::string_view bytes) {
  if (bytes.size() != kSize) return std::nullopt;
  PublicKey key;
  std::ranges::copy(bytes, key.bytes.begin());
  return key;
}

std::optional<PublicKey> PublicKey::FromText(std::string_view text) {
  if (!text.starts_with(kPrefix)) return std::nullopt;
  const auto digits = Digest::FromHex(text.substr(kPrefix.size()));
  return digits ? FromBytes(digits->view()) : std::nullopt;
}

std::string PublicKey::ToText() const { return std::string(kPrefix) + Digest::FromBytes(view())->ToHex(); }

bool IsSigned(const PublicKey& key, std::string_view message, std::string_view signature) {
  if (signature.size() != kSignatureSize) return false;
  const Key half(EVP_PKEY_new_raw_public_key(EVP_PKEY_ED25519, nullptr, key.bytes.data(), key.bytes.size()));
  const Context context(EVP_MD_CTX_new());
  return half && EVP_DigestVerifyInit(context.get(), nullptr, nullptr, nullptr, half.get()) == 1 &&
         EVP_DigestVerify(context.get(), Bytes(signature), signature.size(), Bytes(message), message.size()) == 1;
}

SigningKey SigningKey::Make() {
  EVP_PKEY* key = EVP_PKEY_Q_keygen(nullptr, nullptr, "ED25519");
  return {std::shared_ptr<void>(key, [](void* p) { EVP_PKEY_free(static_cast<EVP_PKEY*>(p)); }), PublicHalf(key)};
}

std::expected<SigningKey, Error> SigningKey::LoadOrMake(const std::filesystem::path& path) {
  for (int attempt = 0;; ++attempt) {
    const int fd = ::open(path.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    if (fd >= 0) {
      auto key = Read(path, fd);
      if (!key) return std::unexpected(std::move(key.error()));
      const PublicKey half = PublicHalf(key->get());
      return SigningKey({key->release(), [](void* p) { EVP_PKEY_free(static_cast<EVP_PKEY*>(p)); }}, half);
    }
    if (errno != ENOENT || attempt > 0) return Unusable(path, fmt::format("cannot be read: {}", std::strerror(errno)), ErrorCode::kUnreachable);
    const SigningKey made = Make();
    if (auto written = Write(path, static_cast<EVP_PKEY*>(made.key_.get())); !written) {
      return std::unexpected(std::move(written.error()));
    }
  }
}

std::expected<void, Error> SigningKey::Keep(const std::filesystem::path& path) const {
  if (auto written = Write(path, static_cast<EVP_PKEY*>(key_.get())); !written) return written;
  const auto there = LoadOrMake(path);
  if (!there) return std::unexpected(there.error());
  if (there->public_key() == public_key_) return {};
  return Unusable(path, "is another than the one this process signs with since that could not be read: start it again");
}

std::string SigningKey::Sign(std::string_view message) const {
  std::string signature(kSignatureSize, '\0');
  std::size_t size = signature.size();
  const Context context(EVP_MD_CTX_new());
  EVP_DigestSignInit(context.get(), nullptr, nullptr, nullptr, static_cast<EVP_PKEY*>(key_.get()));
  EVP_DigestSign(context.get(), reinterpret_cast<unsigned char*>(signature.data()), &size, Bytes(message), message.size());
  return signature;
}

}  // namespace kiln::cache
