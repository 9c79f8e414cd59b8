// SPDX-License-Identifier: Apache-2.0
//
// Requests to one HTTP server, by libcurl, which signs them for S3 (Signature Version 4).
//
// Everything that a server sends is bounded while it comes: its time, its headers, its body. Redirections are not followed. Nothing is taken from
// the environment: no proxy, no .netrc. No request waits for a name to be resolved: whoever asks says which addresses the host has.
#pragma once

#include <atomic>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/clock.h"
#include "cache/error.h"
#include "cache/mutex.h"
#include "cache/object/address.h"

namespace kiln::cache::object {

// For S3 the key's id, its secret, and the token of a session if there is one. Else a user and a password, or a token alone.
struct Credentials {
  std::string user, secret, token;
  auto operator<=>(const Credentials&) const = default;
};

// Whose certificates are believed: read once, for all connections.
class Roots {
 public:
  // PEM roots, or the system's where the path is empty. The error says why they cannot be used.
  static std::expected<std::shared_ptr<const Roots>, std::string> Load(const std::filesystem::path& ca);

  void* handle() const { return store_.get(); }  // an X509_STORE

 private:
  explicit Roots(std::shared_ptr<void> store) : store_(std::move(store)) {}
  std::shared_ptr<void> store_;
};

// What is known of the server at the time.
struct Route {
  std::vector<std::string> addresses;  // of its host, as text
  std::optional<Credentials> credentials;
};

enum class Method : std::uint8_t { kGet, kHead, kPut, kDelete };

struct Request {
  Method method = Method::kGet;
  std::string path;
  std::string_view body;        // of a PUT
  bool only_if_absent = false;  // of a PUT
};

struct Response {
  long status = 0;
  std::string body;    // of an error the beginning, else all unless it was too large
  bool large = false;  // the body has more bytes than are taken; the rest was not read
  bool whole = false;  // the server said where its body ends, and it came to there
};

// kUnreachable. `at_once`: the server cannot be reached at all, so that there is no use in asking again.
struct Failure {
  Error error;
  bool at_once = false;
};

// All members may be called from any thread.
class Http {
 public:
  struct Options {
    Address address;
    std::shared_ptr<const Roots> roots;  // for https
    std::uint64_t most = 0;              // bytes of a body that is taken
  };

  Http(Options options, const Clock& clock);
  ~Http();

  std::expected<Response, Failure> Ask(const Request& request, const Route& route, SteadyTime deadline);

  // Closes the connections that nobody uses.
  void Forget();

  // No request, of those under way neither, takes longer than until then.
  void EndBy(SteadyTime latest) { latest_ = latest.time_since_epoch().count(); }

 private:
  class Line;

  std::unique_ptr<Line> Take();
  void GiveBack(std::unique_ptr<Line> line);
  SteadyTime::duration LeftUntil(SteadyTime deadline) const;

  const Options options_;
  const Clock& clock_;
  std::atomic<SteadyTime::rep> latest_ = SteadyTime::max().time_since_epoch().count();
  Mutex mutex_;
  std::vector<std::unique_ptr<Line>> idle_ KILN_GUARDED_BY(mutex_);
};

// The addresses of a host as text, at most eight. Asks the system's resolver, which has its own patience.
std::expected<std::vector<std::string>, Error> AddressesOf(const std::string& host);

}  // namespace kiln::cache::object
