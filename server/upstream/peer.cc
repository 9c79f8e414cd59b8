// SPDX-License-Identifier: Apache-2.0
#include "server/upstream/peer.h"

#include <algorithm>
#include <utility>
#include <vector>

#include <fmt/format.h>
#include <grpcpp/create_channel.h>
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/security/credentials.h>
#include <grpcpp/security/tls_certificate_provider.h>
#include <grpcpp/security/tls_credentials_options.h>

namespace kiln::server {
namespace {

using cache::ErrorCode;

constexpr unsigned kLookEverySeconds = 1;        // at the certificates
constexpr int kMaxHeaderBytes = 1 << 20;         // diagnostics travel in a header
constexpr const char* kDetailsBytes = "524288";  // of them
constexpr std::chrono::milliseconds kFirstBackoff{100}, kConnect{1'000}, kLongestBackoff{3'000};
constexpr std::chrono::milliseconds kKeepalive{40'000}, kKeepaliveAnswer{10'000};  // kilnd takes no pings more often than every 30 s

std::shared_ptr<grpc::ChannelCredentials> CredentialsOf(const PeerFiles& files) {
  if (!files.tls) return grpc::InsecureChannelCredentials();
  namespace tls = grpc::experimental;
  tls::TlsChannelCredentialsOptions options;
  if (!files.ca.empty() || !files.key.empty()) {
    options.set_certificate_provider(
        std::make_shared<tls::FileWatcherCertificateProvider>(files.key, files.certificate, files.ca, kLookEverySeconds));
  }
  if (!files.ca.empty()) options.watch_root_certs();
  if (!files.key.empty()) options.watch_identity_key_cert_pairs();
  return tls::TlsCredentials(options);
}

}  // namespace

std::shared_ptr<grpc::Channel> ChannelTo(const PeerFiles& files) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(static_cast<int>(std::min<std::size_t>(files.max_reply, INT32_MAX)));
  arguments.SetInt(GRPC_ARG_MAX_METADATA_SIZE, kMaxHeaderBytes);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  arguments.SetInt(GRPC_ARG_ENABLE_RETRIES, 0);
  arguments.SetInt(GRPC_ARG_INITIAL_RECONNECT_BACKOFF_MS, static_cast<int>(kFirstBackoff.count()));
  arguments.SetInt(GRPC_ARG_MIN_RECONNECT_BACKOFF_MS, static_cast<int>(kConnect.count()));
  arguments.SetInt(GRPC_ARG_MAX_RECONNECT_BACKOFF_MS, static_cast<int>(kLongestBackoff.count()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, static_cast<int>(kKeepalive.count()));
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, static_cast<int>(kKeepaliveAnswer.count()));
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  return grpc::CreateCustomChannel(files.address, CredentialsOf(files), arguments);
}

Peer::Peer(Options options, std::shared_ptr<grpc::Channel> channel, const cache::Clock& clock)
    : options_(std::move(options)), channel_(std::move(channel)), stub_(v1::Kiln::NewStub(channel_)), clock_(clock) {}

Peer::~Peer() {
  Close();
  AwaitIdle();
}

void Peer::UseTokens(TenantTokens tokens) {
  {
    cache::MutexLock lock(mutex_);
    tokens_ = std::move(tokens);
    shut_out_.clear();
    if (!description_) describe_ = clock_.SteadyNow();  // another may be the one that it takes
    woken_ = true;
  }
  wake_.NotifyOne();
}

std::optional<std::string> Peer::TokenOf(std::string_view tenant) const {
  cache::MutexLock lock(mutex_);
  const auto found = tokens_.find(tenant);
  return found == tokens_.end() ? std::nullopt : std::optional(found->second);
}

void Peer::Prepare(grpc::ClientContext& context, const std::string& token) const {
  if (!token.empty()) context.AddMetadata("authorization", "Bearer " + token);
}

bool Peer::IsShutOut(const std::string& tenant) const {
  cache::MutexLock lock(mutex_);
  const auto found = shut_out_.find(tenant);
  return found != shut_out_.end() && clock_.SteadyNow() < found->second;
}

void Peer::ShutOut(const std::string& tenant, const std::string& why) {
  {
    cache::MutexLock lock(mutex_);
    const cache::SteadyTime now = clock_.SteadyNow();
    cache::SteadyTime& until = shut_out_[tenant];
    if (now < until) return;  // another has told of it
    until = now + kShutOut;
  }
  options_.on_event(false, fmt::format("it does not serve the tenant {}: {}", tenant, why));
}

// Each once; an empty one: it answers.
void Peer::Trouble(const std::string& why) {
  {
    cache::MutexLock lock(mutex_);
    if (trouble_ == why) return;
    trouble_ = why;
  }
  options_.on_event(why.empty(), why.empty() ? "it answers again" : why);
}

std::string Peer::trouble() const {
  cache::MutexLock lock(mutex_);
  return trouble_;
}

std::optional<v1::CapabilitiesReply> Peer::description() const {
  cache::MutexLock lock(mutex_);
  return description_;
}

cache::Error Peer::Judge(const grpc::Status& status, const std::string& tenant, cache::SteadyTime began, bool in_a_hurry) {
  cache::Error error{ErrorCode::kUnreachable, status.error_message()};
  switch (status.error_code()) {
    case grpc::StatusCode::UNAUTHENTICATED:
    case grpc::StatusCode::PERMISSION_DENIED:
      error.code = ErrorCode::kRefused;
      ShutOut(tenant, error.message);
      return error;
    case grpc::StatusCode::RESOURCE_EXHAUSTED: error.code = ErrorCode::kOverloaded; return error;
    case grpc::StatusCode::DEADLINE_EXCEEDED:
      if (in_a_hurry) return error;  // whoever has waited before leaves it less time than it may take
      error.message = fmt::format("it did not answer within {} ms", options_.timeout.count());
      break;
    default: break;
  }
  if (breaker_.Fail(began, clock_.SteadyNow())) {
    Trouble(error.message);
    cache::MutexLock lock(mutex_);
    woken_ = true;
    wake_.NotifyOne();
  }
  return error;
}

std::expected<std::optional<std::string>, cache::Error> Peer::Fetch(const cache::Digest& entry, cache::Waited& waited) {
  const auto token = waited.asker.empty() ? std::nullopt : TokenOf(waited.asker);
  if (!token || waited.time >= options_.timeout || !available() || IsShutOut(waited.asker)) return std::nullopt;
  const auto left = options_.timeout - waited.time;
  const cache::SteadyTime began = clock_.SteadyNow();
  grpc::ClientContext context;
  Prepare(context, *token);
  context.set_deadline(In(left));
  v1::FetchRequest request;
  request.set_entry(entry.bytes.data(), entry.bytes.size());
  v1::FetchReply reply;
  const grpc::Status status = stub_->Fetch(&context, request, &reply);
  waited.time += clock_.SteadyNow() - began;
  if (status.ok()) return std::move(*reply.mutable_sealed());
  if (status.error_code() == grpc::StatusCode::NOT_FOUND) return std::nullopt;
  return std::unexpected(Judge(status, waited.asker, began, left < options_.timeout * 3 / 4));
}

void Peer::Start(Question question, std::stop_token stop, Done done) {
  auto answer = std::make_shared<Answer>();
  answer->done = std::move(done);
  answer->self = answer;
  {
    cache::MutexLock lock(mutex_);
    ++under_way_;
  }
  // It leaves nothing of the answer to this thread, which may be inside one of the answer's own callbacks.
  const auto end = [this, ended = answer.get()](grpc::Status status) {
    ended->status = std::move(status);
    auto done = std::move(ended->done);
    done(std::move(ended->self));
    cache::MutexLock lock(mutex_);
    if (--under_way_ == 0) ended_.NotifyAll();
  };
  const auto token = TokenOf(question.tenant);
  if (!token) {
    return end({grpc::StatusCode::PERMISSION_DENIED, fmt::format("this host has no token for the tenant {} (--upstream-tokens)", question.tenant)});
  }
  grpc::ClientContext& context = answer->context;
  Prepare(context, *token);
  context.AddMetadata("kiln-details-bytes", kDetailsBytes);
  context.AddMetadata(kViaHeader, Extended(question.via, name_));
  context.set_deadline(In(question.limit));
  const grpc::Slice bytes(question.bytes);
  answer->request = grpc::ByteBuffer(&bytes, 1);
  const std::function<void()> cancel = [&context] { context.TryCancel(); };
  answer->on_close.emplace(closing_.get_token(), cancel);
  answer->on_stop.emplace(std::move(stop), cancel);
  Answer& asked = *answer;
  answer.reset();
  grpc::GenericStub(channel_).UnaryCall(&context, std::string("/kiln.v1.Kiln/") + question.method, {}, &asked.request, &asked.reply, end);
}

void Peer::Close() {
  closing_.request_stop();
  {
    cache::MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  if (keeper_.joinable()) keeper_.join();
}

void Peer::AwaitIdle() {
  cache::MutexLock lock(mutex_);
  while (under_way_ > 0) ended_.Wait(mutex_);
}

}  // namespace kiln::server
