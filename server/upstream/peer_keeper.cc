// SPDX-License-Identifier: Apache-2.0
//
// Peer's own thread: it probes a kilnd that is left alone, and asks one that is in use what it is.
#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>

#include "server/upstream/peer.h"

namespace kiln::server {
namespace {

constexpr std::size_t kMostSaid = std::size_t{1} << 20;  // of itself
constexpr std::chrono::seconds kBetweenDescriptions{30};
constexpr std::chrono::milliseconds kAfterNone{100}, kAfterDoubt{1'000};
constexpr std::chrono::seconds kToDescribe{5};
constexpr std::chrono::milliseconds kToConnect{2'000};  // TLS takes some messages, and names must be resolved
constexpr std::chrono::milliseconds kLook{50};          // whether the process ends meanwhile

}  // namespace

void Peer::Begin() {
  keeper_ = std::thread([this] { Keep(); });
}

void Peer::AwaitDescribed(std::chrono::milliseconds patience) {
  cache::MutexLock lock(mutex_);
  described_.WaitFor(mutex_, patience, [this]() KILN_REQUIRES(mutex_) { return description_.has_value(); });
}

void Peer::LookAgain() {
  {
    cache::MutexLock lock(mutex_);
    describe_ = std::min(describe_, clock_.SteadyNow() + kAfterDoubt);
    woken_ = true;
  }
  wake_.NotifyOne();
}

void Peer::Keep() {
  for (;;) {
    if (const auto due = breaker_.probe_due(); due && *due <= clock_.SteadyNow()) {
      const auto probed = Probe();
      breaker_.NoteProbe(probed.has_value(), clock_.SteadyNow());
      Trouble(probed ? std::string() : probed.error());
    }
    bool describe = false;
    {
      cache::MutexLock lock(mutex_);
      describe = describe_ <= clock_.SteadyNow();
    }
    if (describe && breaker_.usable()) Describe();
    const auto patience = UntilDue();
    cache::MutexLock lock(mutex_);
    if (!stopping_ && patience.count() > 0) {
      wake_.WaitFor(mutex_, patience, [&]() KILN_REQUIRES(mutex_) { return stopping_ || woken_; });
    }
    if (stopping_) return;
    woken_ = false;
  }
}

std::chrono::microseconds Peer::UntilDue() const {
  const auto probe = breaker_.probe_due();
  cache::MutexLock lock(mutex_);
  return std::chrono::ceil<std::chrono::microseconds>(probe.value_or(describe_) - clock_.SteadyNow());
}

// Whether it connects, and then answers a lookup in time. One that refuses a tenant's token answers.
std::expected<void, std::string> Peer::Probe() {
  grpc::experimental::ChannelResetConnectionBackoff(channel_.get());
  const cache::SteadyTime until = clock_.SteadyNow() + kToConnect;
  while (!channel_->WaitForConnected(In(kLook))) {
    if (clock_.SteadyNow() >= until || closing_.stop_requested()) return std::unexpected(fmt::format("no kilnd answers at {}", options_.address));
  }
  grpc::ClientContext context;
  const std::stop_callback on_close(closing_.get_token(), [&context] { context.TryCancel(); });
  {
    cache::MutexLock lock(mutex_);
    Prepare(context, tokens_.begin()->second);
  }
  context.set_deadline(In(options_.timeout));
  v1::FetchRequest request;
  request.set_entry(std::string(cache::Digest::kSize, '\0'));
  v1::FetchReply reply;
  const grpc::Status status = stub_->Fetch(&context, request, &reply);
  switch (status.error_code()) {
    case grpc::StatusCode::OK:
    case grpc::StatusCode::NOT_FOUND:
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
    case grpc::StatusCode::RESOURCE_EXHAUSTED: return {};
    case grpc::StatusCode::DEADLINE_EXCEEDED: return std::unexpected(fmt::format("it did not answer within {} ms", options_.timeout.count()));
    default: return std::unexpected(status.error_message());
  }
}

// By the first tenant whose token it takes; those that it refused lately are not tried again yet. One that has just been started does not know
// its passes yet, nor perhaps its ptxas.
void Peer::Describe() {
  TenantTokens tokens;
  {
    cache::MutexLock lock(mutex_);
    tokens = tokens_;
  }
  v1::CapabilitiesRequest request;
  request.set_at_once(true);  // it looks whether something has changed, and says so to whoever asks next
  std::optional<v1::CapabilitiesReply> said;
  bool refused = true;  // all of them
  for (const auto& [tenant, token] : tokens) {
    if (IsShutOut(tenant)) continue;
    grpc::ClientContext context;
    const std::stop_callback on_close(closing_.get_token(), [&context] { context.TryCancel(); });
    Prepare(context, token);
    context.set_deadline(In(kToDescribe));
    v1::CapabilitiesReply reply;
    const grpc::Status status = stub_->Capabilities(&context, request, &reply);
    if (status.ok() && reply.passes_size() > 0 && reply.ByteSizeLong() <= kMostSaid) said = std::move(reply);
    refused = status.error_code() == grpc::StatusCode::UNAUTHENTICATED || status.error_code() == grpc::StatusCode::PERMISSION_DENIED;
    if (!refused) break;
    ShutOut(tenant, status.error_message());
  }
  bool changed = false;
  {
    cache::MutexLock lock(mutex_);
    changed = said && (!description_ || description_->compiler() != said->compiler() || description_->ptxas() != said->ptxas() ||
                       description_->signing_key() != said->signing_key() || description_->version() != said->version());
    if (said) description_ = *said;
    const bool all_tried = tokens == tokens_;  // there are no others since
    const std::chrono::milliseconds pause = said ? kBetweenDescriptions : refused && all_tried ? kShutOut : kAfterNone;
    describe_ = clock_.SteadyNow() + pause;
  }
  if (changed) options_.on_described(*said);
  described_.NotifyAll();
}

}  // namespace kiln::server
