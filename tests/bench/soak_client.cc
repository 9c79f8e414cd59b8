// SPDX-License-Identifier: Apache-2.0
#include "tests/bench/soak_client.h"

#include <arpa/inet.h>
#include <netinet/in.h>
#include <sys/socket.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <cmath>
#include <utility>

#include "cache/digest.h"
#include "clients/common/unique_fd.h"

namespace kiln::bench {
namespace {

constexpr unsigned kKnown = 400;                     // programs that are asked for again and again
constexpr auto kPatience = std::chrono::minutes(2);  // what is not answered by then is wrong

std::string HttpGet(unsigned short port, const std::string& path) {
  const UniqueFd connection(::socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0));
  sockaddr_in address{.sin_family = AF_INET, .sin_port = htons(port)};
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  if (::connect(connection.get(), reinterpret_cast<const sockaddr*>(&address), sizeof address) != 0) return "no connection";
  const std::string request = "GET " + path + " HTTP/1.1\r\nHost: kilnd\r\nConnection: close\r\n\r\n";
  ::send(connection.get(), request.data(), request.size(), MSG_NOSIGNAL);
  std::string answer;
  std::array<char, 4096> chunk;
  for (ssize_t got = 0; (got = ::recv(connection.get(), chunk.data(), chunk.size(), 0)) > 0;) {
    answer.append(chunk.data(), static_cast<std::size_t>(got));
  }
  return answer;
}

}  // namespace

Wrong KnownPrograms::Compare(unsigned number, const v1::CompileReply& reply) {
  const std::string digest(cache::Sha256(reply.artifact().SerializeAsString()).view());
  std::lock_guard lock(mutex_);
  const auto& [key, artifact] = seen_.try_emplace(number, reply.key(), digest).first->second;
  if (key != reply.key()) return "the program has another key than before";
  return artifact != digest ? "the program has another artifact than before" : "";
}

// Each heavy kind is so rare that all of them together leave two processors time for the rest.
std::span<const SoakClient::Kind> SoakClient::Kinds() {
  static constexpr std::array kKinds = {
      Kind{"hit", 9291, &SoakClient::Hit},
      Kind{"miss", 220, &SoakClient::Miss},
      Kind{"refused", 120, &SoakClient::Nonsense},
      Kind{"stream", 80, &SoakClient::LosePatience},
      Kind{"reconnect", 40, &SoakClient::ComeAndGo},
      Kind{"lookup", 20, &SoakClient::LookUp},
      Kind{"lookup known", 60, &SoakClient::LookUpKnown},
      Kind{"lookup unknown", 30, &SoakClient::LookUpUnknown},
      Kind{"put", 20, &SoakClient::Put},
      Kind{"ensure", 10, &SoakClient::Ensure},
      Kind{"ensure cancelled", 5, &SoakClient::EnsureAndCancel},
      Kind{"run", 20, &SoakClient::Run},
      Kind{"run by key", 10, &SoakClient::RunByKey},
      Kind{"run cancelled", 5, &SoakClient::RunAndCancel},
      Kind{"run too long", 2, &SoakClient::RunTooLong},
      Kind{"list", 15, &SoakClient::List},
      Kind{"export, import", 10, &SoakClient::ExportAndImport},
      Kind{"verify", 1, &SoakClient::Verify},
      Kind{"gc", 1, &SoakClient::Gc},
      Kind{"stats", 15, &SoakClient::Stats},
      Kind{"capabilities", 15, &SoakClient::Capabilities},
      Kind{"metrics", 10, &SoakClient::Metrics},
  };
  static_assert([] {
    unsigned sum = 0;
    for (const Kind& kind : kKinds) sum += kind.share;
    return sum;
  }() == 10'000);
  return kKinds;
}

SoakClient::SoakClient(SoakWorld& world, unsigned number, const Role& role, std::string secret)
    : world_(world), random_(number), role_(role), secret_(std::move(secret)), stub_(world.daemon.Connect()) {}

std::size_t SoakClient::Draw() {
  unsigned dice = Below(10'000);
  std::size_t kind = 0;
  for (; dice >= Kinds()[kind].share; ++kind) dice -= Kinds()[kind].share;
  return kind;
}

// The lower the number the more popular.
unsigned SoakClient::Popular() {
  const double u = static_cast<double>(random_()) / static_cast<double>(std::mt19937::max());
  return static_cast<unsigned>(std::pow(kKnown, u));
}

std::string SoakClient::RandomKey() {
  std::string key(32, '\0');
  std::ranges::generate(key, [this] { return static_cast<char>(Below(256)); });
  return key;
}

v1::CompileRequest SoakClient::RequestOf(std::string module) const {
  v1::CompileRequest request;
  request.set_module(std::move(module));
  request.set_target("cuda:sm_80");
  return request;
}

void SoakClient::Prepare(grpc::ClientContext& context) const {
  if (!secret_.empty()) context.AddMetadata("authorization", "Bearer " + secret_);
  context.set_deadline(std::chrono::system_clock::now() + kPatience);
}

grpc::Status SoakClient::Compile(const std::string& module, v1::CompileReply& reply) {
  grpc::ClientContext context;
  Prepare(context);
  return stub_->Compile(&context, RequestOf(module), &reply);
}

// Who may not compile gets it while it is kept.
Wrong SoakClient::JudgeKnown(unsigned number, const grpc::Status& status, const v1::CompileReply& reply) const {
  if (status.ok() && !role_.IsStranger()) return world_.known.Compare(number, reply);
  return role_.May(Scope::kCompile) ? Judge(status, Scope::kRead, {Code::OK}) : Judge(status, Scope::kRead, {Code::PERMISSION_DENIED});
}

Wrong SoakClient::Hit() {
  const unsigned number = Popular();
  v1::CompileReply reply;
  const grpc::Status status = Compile(world_.variant(number), reply);
  return JudgeKnown(number, status, reply);
}

Wrong SoakClient::Miss() {
  v1::CompileReply reply;
  const grpc::Status status = Compile(world_.variant(world_.fresh++), reply);
  return Judge(status, Scope::kCompile, {Code::OK});
}

Wrong SoakClient::Nonsense() {
  v1::CompileReply reply;
  return Judge(Compile("kiln 1\nnonsense " + std::to_string(Below(100)), reply), Scope::kRead, {Code::INVALID_ARGUMENT});
}

Wrong SoakClient::LosePatience() {
  grpc::ClientContext context;
  Prepare(context);
  const auto reader = stub_->CompileStream(&context, RequestOf(world_.variant(world_.fresh++)));
  v1::CompileProgress progress;
  const bool let_in = reader->Read(&progress);
  if (let_in) context.TryCancel();  // else its end says why: a call that is cancelled has no other
  const grpc::Status status = reader->Finish();
  if (!let_in) return Judge(status, Scope::kCompile, {});
  if (!role_.May(Scope::kCompile)) return "a stream that hears something, whoever it is for";
  return Judge(status, Scope::kCompile, {Code::OK, Code::CANCELLED});
}

Wrong SoakClient::ComeAndGo() {
  stub_ = world_.daemon.Connect();
  return Stats();
}

Wrong SoakClient::Stats() {
  grpc::ClientContext context;
  Prepare(context);
  v1::StatsReply reply;
  const grpc::Status status = stub_->Stats(&context, {}, &reply);
  if (!status.ok() || !role_.May(Scope::kAdmin)) return Judge(status, Scope::kAdmin, {Code::OK});
  const bool goes_on = reply.uptime_seconds() >= uptime_;
  uptime_ = reply.uptime_seconds();
  const bool whole = std::ranges::all_of(reply.tiers(), [](const v1::TierStats& tier) { return tier.state() == "ok" && tier.corrupt() == 0; });
  return goes_on && whole && reply.state() == "serving" ? "" : "statistics of a kilnd that is not well: " + reply.ShortDebugString();
}

Wrong SoakClient::Capabilities() {
  grpc::ClientContext context;
  Prepare(context);
  v1::CapabilitiesRequest request;
  request.set_at_once(Below(2) == 0);
  v1::CapabilitiesReply reply;
  const grpc::Status status = stub_->Capabilities(&context, request, &reply);
  if (!status.ok() || !role_.May(Scope::kRead)) return Judge(status, Scope::kRead, {Code::OK});
  const bool compiles = std::ranges::find(reply.targets(), "cuda:sm_80") != reply.targets().end();
  return compiles && reply.compiler() == world_.build_id ? "" : "capabilities of another kilnd";
}

Wrong SoakClient::Metrics() {
  const std::string page = HttpGet(world_.metrics_port, "/metrics");
  const bool right = page.starts_with("HTTP/1.1 200 OK") && page.find("\nkiln_ready 1\n") != page.npos;
  return right ? "" : "metrics: " + page.substr(0, 200);
}

}  // namespace kiln::bench
