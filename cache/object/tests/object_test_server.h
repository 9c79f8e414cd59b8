// SPDX-License-Identifier: Apache-2.0
//
// For tests only: an object store of our own over HTTP, which verifies signatures by itself, and answers what a test wants where that lies.
#pragma once

#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <openssl/ssl.h>
#include <sys/socket.h>

#include <algorithm>
#include <atomic>
#include <cctype>
#include <csignal>
#include <cstdlib>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <thread>
#include <utility>
#include <vector>

#include "cache/digest.h"
#include "cache/mutex.h"
#include "cache/outside/host_port.h"
#include "cache/testing/loopback_server.h"

namespace kiln::cache::object::testing {

struct Asked {
  std::string method, path, body;
  std::map<std::string, std::string> headers;  // by their names in small letters

  std::string header(const std::string& name) const {
    const auto found = headers.find(name);
    return found == headers.end() ? std::string() : found->second;
  }
};

inline std::string Hmac(std::string_view key, std::string_view text) {
  unsigned char out[EVP_MAX_MD_SIZE];
  unsigned size = 0;
  if (HMAC(EVP_sha256(), key.data(), static_cast<int>(key.size()), reinterpret_cast<const unsigned char*>(text.data()), text.size(), out, &size) ==
      nullptr)
    std::abort();
  return {reinterpret_cast<const char*>(out), size};
}

// What stands behind NAME= in a list with commas.
inline std::string FieldOf(std::string_view list, std::string_view name) {
  const std::size_t at = list.find(std::string(name) + "=");
  if (at == std::string_view::npos) return {};
  const std::string_view rest = list.substr(at + name.size() + 1);
  return std::string(rest.substr(0, rest.find_first_of(", ")));
}

// AWS, "Create a signed AWS API request": an empty text where the signature is right, else S3's word for what is wrong.
inline std::string WrongWith(const Asked& asked, const std::string& id, const std::string& secret, const std::string& region) {
  const std::string given = asked.header("authorization"), date = asked.header("x-amz-date"), digest = asked.header("x-amz-content-sha256");
  if (!given.starts_with("AWS4-HMAC-SHA256 ") || date.size() != 16) return "AccessDenied";
  if (digest != Sha256(asked.body).ToHex()) return "XAmzContentSHA256Mismatch";
  const std::string scope = date.substr(0, 8) + "/" + region + "/s3/aws4_request";
  if (FieldOf(given, "Credential") != id + "/" + scope) return "InvalidAccessKeyId";
  const std::string signed_names = FieldOf(given, "SignedHeaders");
  std::string canonical = asked.method + "\n" + asked.path + "\n\n";
  std::string before;
  for (std::string_view rest = signed_names; !rest.empty();) {
    const std::string name(rest.substr(0, rest.find(';')));
    rest.remove_prefix(std::min(rest.size(), name.size() + 1));
    if (name <= before) return "SignatureDoesNotMatch";  // in order
    if (!asked.headers.contains(name)) return "SignatureDoesNotMatch";
    canonical += name + ":" + asked.header(name) + "\n";
    before = name;
  }
  for (const auto& [name, value] : asked.headers) {
    const bool matters = name == "host" || name.starts_with("x-amz-") || name == "if-none-match";
    if (matters && !(";" + signed_names + ";").contains(";" + name + ";")) return "SignatureDoesNotMatch";
  }
  canonical += "\n" + signed_names + "\n" + digest;
  std::string key = Hmac("AWS4" + secret, date.substr(0, 8));
  for (const std::string& part : {region, std::string("s3"), std::string("aws4_request")}) key = Hmac(key, part);
  const std::string text = "AWS4-HMAC-SHA256\n" + date + "\n" + scope + "\n" + Sha256(canonical).ToHex();
  const std::string right = Digest::FromBytes(Hmac(key, text))->ToHex();
  return FieldOf(given, "Signature") == right ? "" : "SignatureDoesNotMatch";
}

inline std::string Reply(const std::string& status, const std::string& body = "", const std::string& more_headers = "") {
  return "HTTP/1.1 " + status + "\r\nContent-Length: " + std::to_string(body.size()) + "\r\n" + more_headers + "\r\n" + body;
}

inline std::string S3Error(const std::string& status, const std::string& code) {
  return Reply(status, "<?xml version=\"1.0\"?><Error><Code>" + code + "</Code><AWSAccessKeyId>id</AWSAccessKeyId></Error>");
}

class TestServer {
 public:
  enum class Conditional { kTaken, kIgnored, kUnknown, kBad };
  // Sends bytes; no bytes: ends the connection. False where nobody listens any more.
  using Send = std::function<bool(std::string_view)>;
  // Whether it has answered; otherwise the store answers what is no lie. Called from several threads.
  using Lie = std::function<bool(const Asked&, const Send&)>;
  struct Options {
    std::string id, secret, region = "us-east-1";  // without an id nobody signs
    std::string authorization;                     // exactly this is wanted, if it is not empty
    Conditional conditional = Conditional::kTaken;
    Lie lie;
    std::string certificate, key;  // files: it speaks TLS
    std::uint16_t port = 0;        // any
  };

  TestServer() : TestServer(Options()) {}
  explicit TestServer(Options options) : options_(std::move(options)), server_(options_.port) {
    if (!options_.certificate.empty()) {
      ::signal(SIGPIPE, SIG_IGN);  // OpenSSL writes to whoever has left
      tls_.reset(SSL_CTX_new(TLS_server_method()));
      if (SSL_CTX_use_certificate_chain_file(tls_.get(), options_.certificate.c_str()) != 1 ||
          SSL_CTX_use_PrivateKey_file(tls_.get(), options_.key.c_str(), SSL_FILETYPE_PEM) != 1)
        std::abort();
    }
    server_.Begin([this](int fd) { Speak(fd); });
  }
  ~TestServer() { server_.End(); }

  HostPort at() const { return server_.at(); }
  bool stopping() const { return server_.stopping(); }
  int connections() const { return server_.connections(); }

  // How many requests there were with that method, and in all.
  int asked(const std::string& method) const {
    MutexLock lock(mutex_);
    return static_cast<int>(std::ranges::count(log_, method));
  }
  std::optional<std::string> object(const std::string& path) const {
    MutexLock lock(mutex_);
    const auto found = objects_.find(path);
    return found == objects_.end() ? std::nullopt : std::optional(found->second);
  }
  void Set(const std::string& path, std::string bytes) {
    MutexLock lock(mutex_);
    objects_[path] = std::move(bytes);
  }
  std::size_t objects() const {
    MutexLock lock(mutex_);
    return objects_.size();
  }
  // What each request is delayed by.
  void Delay(std::chrono::milliseconds by) { delay_ = by.count(); }

 private:
  struct FreeTls {
    void operator()(SSL_CTX* context) const { SSL_CTX_free(context); }
    void operator()(SSL* session) const { SSL_free(session); }
  };
  struct Stream {
    int fd;
    std::unique_ptr<SSL, FreeTls> ssl;

    int Read(char* to, std::size_t size) const {
      return ssl ? SSL_read(ssl.get(), to, static_cast<int>(size)) : static_cast<int>(::recv(fd, to, size, 0));
    }
    bool Write(std::string_view bytes) const {
      while (!bytes.empty()) {
        const int sent = ssl ? SSL_write(ssl.get(), bytes.data(), static_cast<int>(bytes.size()))
                             : static_cast<int>(::send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL));
        if (sent <= 0) return false;
        bytes.remove_prefix(static_cast<std::size_t>(sent));
      }
      return true;
    }
  };

  void Speak(int fd) {
    Stream stream{fd, nullptr};
    if (tls_) {
      stream.ssl.reset(SSL_new(tls_.get()));
      SSL_set_fd(stream.ssl.get(), fd);
      if (SSL_accept(stream.ssl.get()) != 1) return static_cast<void>(::shutdown(fd, SHUT_RDWR));
    }
    std::string bytes;
    while (!stopping()) {
      const auto asked = Next(stream, bytes);
      if (!asked) break;
      {
        MutexLock lock(mutex_);
        log_.push_back(asked->method);
      }
      for (int waited = 0; waited < delay_ && !stopping(); ++waited) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));  // late, as Delay asks
      }
      const Send send = [&](std::string_view what) {
        if (what.empty()) ::shutdown(fd, SHUT_RDWR);
        return !stopping() && !what.empty() && stream.Write(what);
      };
      if (options_.lie && options_.lie(*asked, send)) continue;
      if (!send(AnswerTo(*asked))) break;
    }
    ::shutdown(fd, SHUT_RDWR);
  }
  static std::string Lower(std::string text) {
    std::ranges::transform(text, text.begin(), [](unsigned char c) { return static_cast<char>(std::tolower(c)); });
    return text;
  }
  // The next request of those that have come, or come.
  static std::optional<Asked> Next(const Stream& stream, std::string& bytes) {
    const auto more = [&] {
      std::string part(65536, '\0');
      const int got = stream.Read(part.data(), part.size());
      if (got > 0) bytes.append(part, 0, static_cast<std::size_t>(got));
      return got > 0;
    };
    std::size_t end;
    while ((end = bytes.find("\r\n\r\n")) == std::string::npos) {
      if (!more()) return std::nullopt;
    }
    Asked asked;
    std::size_t at = bytes.find("\r\n");
    const std::string first = bytes.substr(0, at);
    asked.method = first.substr(0, first.find(' '));
    asked.path = first.substr(asked.method.size() + 1, first.rfind(' ') - asked.method.size() - 1);
    for (at += 2; at < end;) {
      const std::size_t stop = bytes.find("\r\n", at), colon = bytes.find(':', at);
      const std::size_t value = std::min(bytes.find_first_not_of(' ', colon + 1), stop);
      asked.headers[Lower(bytes.substr(at, colon - at))] = bytes.substr(value, stop - value);
      at = stop + 2;
    }
    bytes.erase(0, end + 4);
    const std::string length = asked.header("content-length");
    const std::size_t size = length.empty() ? 0 : std::stoul(length);
    if (Lower(asked.header("expect")) == "100-continue" && !stream.Write("HTTP/1.1 100 Continue\r\n\r\n")) return std::nullopt;
    while (bytes.size() < size) {
      if (!more()) return std::nullopt;
    }
    asked.body = bytes.substr(0, size);
    bytes.erase(0, size);
    return asked;
  }
  std::string AnswerTo(const Asked& asked) {
    if (!options_.id.empty()) {
      if (const std::string wrong = WrongWith(asked, options_.id, options_.secret, options_.region); !wrong.empty())
        return S3Error("403 Forbidden", wrong);
    }
    if (!options_.authorization.empty() && asked.header("authorization") != options_.authorization) return Reply("401 Unauthorized");
    MutexLock lock(mutex_);
    const auto found = objects_.find(asked.path);
    const bool there = found != objects_.end();
    if (asked.method == "GET") return there ? Reply("200 OK", found->second) : S3Error("404 Not Found", "NoSuchKey");
    if (asked.method == "HEAD") return there ? Reply("200 OK", "", "") : Reply("404 Not Found");
    if (asked.method == "DELETE") {
      if (there) objects_.erase(found);
      return "HTTP/1.1 204 No Content\r\n\r\n";
    }
    if (asked.method != "PUT") return Reply("405 Method Not Allowed");
    if (!asked.header("if-none-match").empty()) {
      if (options_.conditional == Conditional::kUnknown) return S3Error("501 Not Implemented", "NotImplemented");
      if (options_.conditional == Conditional::kBad) return S3Error("400 Bad Request", "InvalidArgument");
      if (options_.conditional == Conditional::kTaken && there) return S3Error("412 Precondition Failed", "PreconditionFailed");
    }
    objects_[asked.path] = asked.body;
    return Reply("200 OK");
  }

  const Options options_;
  std::unique_ptr<SSL_CTX, FreeTls> tls_;
  std::atomic<std::int64_t> delay_ = 0;
  mutable Mutex mutex_;
  std::vector<std::string> log_ KILN_GUARDED_BY(mutex_);
  std::map<std::string, std::string> objects_ KILN_GUARDED_BY(mutex_);
  cache::testing::LoopbackServer server_;
};

}  // namespace kiln::cache::object::testing
