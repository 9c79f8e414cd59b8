// SPDX-License-Identifier: Apache-2.0
//
// The upstream kilnd: a connection to it, what it says of itself, and whether it is left alone.
//
// Lookups (Fetch) wait no longer than what is left of a request's timeout, and not at all while it is left alone: after one failure. Compiles (Start)
// are tried in any case: a kilnd that is slow to answer a lookup may well compile.
//
// Who asks. Each call is made for a tenant, with its token (tenant_tokens.h). What comes back is believed by nobody here: the callers check
// its digests and its seal.
//
// Threads. Any thread asks. Answers to Start come on gRPC's threads. One thread of our own, the keeper, probes and asks for the description;
// it alone waits longer than a request may.
#pragma once

#include <chrono>
#include <cstddef>
#include <expected>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>
#include <string_view>
#include <thread>

#include <grpcpp/channel.h>
#include <grpcpp/client_context.h>
#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "cache/clock.h"
#include "cache/error.h"
#include "cache/mutex.h"
#include "cache/outside/breaker.h"
#include "cache/tier.h"
#include "kiln/v1/service.grpc.pb.h"
#include "server/upstream/tenant_tokens.h"
#include "server/upstream/via.h"

namespace kiln::server {

class Peer {
 public:
  struct Options {
    std::string address;
    std::chrono::milliseconds timeout{50};  // of a lookup
    std::size_t max_reply = std::size_t{256} << 20;
    // Told, by the keeper and by those who ask, that it is left alone and why, and that it answers again.
    std::function<void(bool good, std::string_view what)> on_event = [](bool, std::string_view) {};
    // Told, by the keeper, what it says of itself, where that is not what it said before.
    std::function<void(const v1::CapabilitiesReply&)> on_described = [](const v1::CapabilitiesReply&) {};
  };

  // The answer to a Start. To be destroyed on another thread than the one that brings it.
  struct Answer;
  using Done = std::move_only_function<void(std::shared_ptr<Answer>)>;

  Peer(Options options, std::shared_ptr<grpc::Channel> channel, const cache::Clock& clock);
  ~Peer();

  // Begins to probe. What `options` calls must be there from then on.
  void Begin();
  // Waits until it is in use and has described itself, no longer than that.
  void AwaitDescribed(std::chrono::milliseconds patience);

  void UseTokens(TenantTokens tokens);

  const std::string& address() const { return options_.address; }
  const std::string& name() const { return name_; }  // of this process (via.h)
  bool available() const { return breaker_.usable(); }

  // What it said of itself last; nothing before it has. Without its devices, for which it may have to wait.
  std::optional<v1::CapabilitiesReply> description() const;
  // What it says may have changed: the keeper asks again, soon and not for everybody who calls this.
  void LookAgain();
  // Why it is left alone; empty: it is not.
  std::string trouble() const;

  // The bytes of the entry that is kept there for the tenant `waited.asker`; nothing where there is none, where that tenant has no token, and
  // where no time is left. kUnreachable, kRefused (it does not know the token) and kOverloaded otherwise.
  std::expected<std::optional<std::string>, cache::Error> Fetch(const cache::Digest& entry, cache::Waited& waited);

  // Asks for `method` ("Compile"). `done` is called once; `stop` ends the call. It has `limit` at most.
  struct Question {
    const char* method;
    std::string tenant;
    std::string via;  // as it was sent here
    std::string bytes;
    std::chrono::milliseconds limit;
  };
  void Start(Question question, std::stop_token stop, Done done);

  // Ends what is under way, and whatever is asked from now on.
  void Close();
  // Waits until every `done` has returned. After Close.
  void AwaitIdle();

 private:
  static constexpr std::chrono::seconds kShutOut{10};  // a tenant whose token is refused

  std::optional<std::string> TokenOf(std::string_view tenant) const;
  // A deadline as gRPC takes it.
  std::chrono::system_clock::time_point In(std::chrono::nanoseconds time) const { return clock_.WallNow() + time; }
  void Prepare(grpc::ClientContext& context, const std::string& token) const;
  cache::Error Judge(const grpc::Status& status, const std::string& tenant, cache::SteadyTime began, bool in_a_hurry);
  bool IsShutOut(const std::string& tenant) const;
  void ShutOut(const std::string& tenant, const std::string& why);
  void Trouble(const std::string& why);

  // The keeper's (peer_keeper.cc).
  void Keep();
  std::expected<void, std::string> Probe();
  void Describe();
  std::chrono::microseconds UntilDue() const;

  const Options options_;
  const std::string name_ = NewViaName();
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Kiln::Stub> stub_;
  const cache::Clock& clock_;
  cache::Breaker breaker_{false};
  std::stop_source closing_;

  mutable cache::Mutex mutex_;
  cache::CondVar wake_, described_, ended_;
  TenantTokens tokens_ KILN_GUARDED_BY(mutex_) = TokensWithoutFile();
  std::map<std::string, cache::SteadyTime, std::less<>> shut_out_ KILN_GUARDED_BY(mutex_);  // tenants whose tokens it refuses, until then
  std::optional<v1::CapabilitiesReply> description_ KILN_GUARDED_BY(mutex_);
  cache::SteadyTime describe_ KILN_GUARDED_BY(mutex_){};  // next
  std::string trouble_ KILN_GUARDED_BY(mutex_);
  std::size_t under_way_ KILN_GUARDED_BY(mutex_) = 0;
  bool woken_ KILN_GUARDED_BY(mutex_) = false;
  bool stopping_ KILN_GUARDED_BY(mutex_) = false;
  std::thread keeper_;  // last: it uses the others
};

struct Peer::Answer {
  grpc::Status status;
  grpc::ByteBuffer reply;

 private:
  friend class Peer;
  grpc::ClientContext context;
  grpc::ByteBuffer request;
  Done done;
  std::shared_ptr<Answer> self;                                                // until it is brought
  std::optional<std::stop_callback<std::function<void()>>> on_stop, on_close;  // last: they use the context
};

// Connects when it is asked first. `max_reply`: bytes of a message. PEM files that are named are read again when they change.
struct PeerFiles {
  std::string address;
  bool tls = true;
  std::string ca, certificate, key;
  std::size_t max_reply = std::size_t{256} << 20;
};
std::shared_ptr<grpc::Channel> ChannelTo(const PeerFiles& files);

}  // namespace kiln::server
