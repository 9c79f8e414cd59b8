// SPDX-License-Identifier: Apache-2.0
#include "cache/object/store.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <utility>

#include "cache/try.h"

namespace kiln::cache::object {
namespace {

constexpr int kMorePatience = 4;                         // than a request has: TLS takes some messages
constexpr std::chrono::seconds kBetweenLooks{15};        // at the credentials, and for the host's addresses
constexpr std::chrono::milliseconds kFirstLooks{1'000};  // until they are known

constexpr std::chrono::milliseconds kLook{20};  // whether the end has come meanwhile

// Of the thread that resolves a name, and of whoever waits for that.
struct Resolution {
  Mutex mutex;
  CondVar resolved;
  std::optional<std::expected<std::vector<std::string>, Error>> outcome KILN_GUARDED_BY(mutex);
};

bool IsSuccess(long status) { return status >= 200 && status < 300; }
bool IsAbsence(long status) { return status == 404 || status == 410; }

// The word that S3 has for an error: <Code>NoSuchBucket</Code>. Empty where there is none.
std::string_view CodeIn(std::string_view body) {
  constexpr std::string_view kOpen = "<Code>", kClose = "</Code>";
  const std::size_t open = body.find(kOpen);
  if (open == std::string_view::npos) return {};
  const std::string_view rest = body.substr(open + kOpen.size(), 64);
  const std::string_view code = rest.substr(0, std::min(rest.find(kClose), rest.size()));
  return std::ranges::all_of(code, [](unsigned char c) { return std::isalnum(c) != 0; }) ? code : std::string_view();
}

// Not of what was asked, so that other requests may be answered as badly. S3 has a word of its own for 408.
bool IsOfTheStore(const Response& response) {
  const long status = response.status;
  return (status >= 500 && status != 501 && status != 507) || status == 408 || status == 429 || CodeIn(response.body) == "RequestTimeout";
}

// There are two kinds of 404.
bool IsWithoutBucket(const Response& response) { return CodeIn(response.body) == "NoSuchBucket"; }

// To a PUT where there is nothing yet: there is something, or another host is putting it just now.
bool IsThereAlready(const Response& response) {
  return response.status == 412 || (response.status == 409 && CodeIn(response.body) == "ConditionalRequestConflict");
}

// To a GET.
bool IsAnswer(const Response& response) { return response.status == 200 || (IsAbsence(response.status) && !IsWithoutBucket(response)); }

std::string_view AdviceFor(long status) {
  if (status == 401 || status == 403)
    return " (--object-credentials; for S3 they must also allow s3:ListBucket, without which nobody can tell what is absent)";
  if (status >= 300 && status < 400)
    return " (it names another place, where kilnd does not follow: --object-store, --object-endpoint, --object-region)";
  return {};
}

ErrorCode CodeOf(const Response& response) {
  const std::string_view code = CodeIn(response.body);
  if (response.status == 507 || code == "QuotaExceeded" || code == "XMinioStorageFull") return ErrorCode::kFull;
  if (response.status == 401 || response.status == 403 || IsWithoutBucket(response)) return ErrorCode::kRefused;
  return IsOfTheStore(response) || response.status < 400 ? ErrorCode::kUnreachable : ErrorCode::kInvalid;
}

}  // namespace

Store::Store(Options options, const Clock& clock)
    : options_(std::move(options)),
      clock_(clock),
      http_({.address = options_.address, .roots = options_.roots, .most = options_.most}, clock),
      keeper_([this] { Keep(); }) {}

Store::~Store() {
  http_.EndBy(clock_.SteadyNow());
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  wake_.NotifyAll();
  keeper_.join();
}

bool Store::AwaitAvailable(std::chrono::milliseconds patience) {
  MutexLock lock(mutex_);
  return became_available_.WaitFor(mutex_, patience, [this] { return available(); });
}

Store::RoutePtr Store::route() const {
  MutexLock lock(mutex_);
  return route_;
}

Error Store::RefusalIn(const Response& response) const {
  const std::string_view code = CodeIn(response.body);
  return {CodeOf(response), fmt::format("{}: it answers {}{}{}{}", options_.address.Origin(), response.status, code.empty() ? "" : " ", code,
                                        AdviceFor(response.status))};
}

bool Store::IsAboutCondition(const Response& response) const {
  if (response.status != 400) return response.status == 501;
  const std::string_view code = CodeIn(response.body);
  return code == "NotImplemented" || code == "InvalidArgument" || (code.empty() && !options_.address.region);
}

void Store::NoteFailure(bool at_once, SteadyTime began) {
  const SteadyTime now = clock_.SteadyNow();
  if (!(at_once ? breaker_.LeaveAlone(now) : breaker_.Fail(began, now))) return;
  http_.Forget();
  {
    MutexLock lock(mutex_);
    woken_ = true;
  }
  wake_.NotifyOne();
}

std::expected<Response, Error> Store::Ask(const Request& request, SteadyTime deadline, bool blamed) {
  const RoutePtr route = this->route();
  if (!route || !available()) return Fail(ErrorCode::kUnreachable, options_.address.Origin() + " is left alone");
  const SteadyTime began = clock_.SteadyNow();
  auto asked = http_.Ask(request, *route, deadline);
  if (!asked) {
    if (blamed || asked.error().at_once) NoteFailure(asked.error().at_once, began);
    return std::unexpected(std::move(asked.error().error));
  }
  if (IsOfTheStore(*asked) || (request.method == Method::kGet && !IsAnswer(*asked))) {
    NoteFailure(false, began);
  } else {
    breaker_.NoteAnswer(clock_.SteadyNow());
  }
  return std::move(*asked);
}

std::expected<std::optional<Store::Object>, Error> Store::Read(const Digest& key, Waited& waited) {
  const SteadyTime began = clock_.SteadyNow();
  const SteadyTime::duration left = std::max(SteadyTime::duration(0), options_.timeout - waited.time);
  // Whoever has waited before leaves the store less time than it may take: it is not blamed.
  const bool blamed = left >= options_.timeout * 3 / 4;
  auto asked = Ask({Method::kGet, options_.address.PathOf(key)}, began + left, blamed);
  waited.time += clock_.SteadyNow() - began;
  KILN_ASSIGN_OR_RETURN(Response response, std::move(asked));
  if (response.large) return Fail(ErrorCode::kInvalid, fmt::format("an object of more than {} bytes: larger ones are not taken", options_.most));
  if (response.status == 200) return Object{std::move(response.body), response.whole};
  if (IsAnswer(response)) return std::nullopt;
  return std::unexpected(RefusalIn(response));
}

std::expected<bool, Error> Store::IsThere(const Digest& key, SteadyTime deadline) {
  KILN_ASSIGN_OR_RETURN(const Response response, Ask({Method::kHead, options_.address.PathOf(key)}, deadline, true));
  if (IsSuccess(response.status)) return true;
  if (IsAbsence(response.status)) return false;
  return std::unexpected(RefusalIn(response));
}

std::expected<void, Error> Store::Put(const Request& request) {
  KILN_ASSIGN_OR_RETURN(const Response response, Ask(request, clock_.SteadyNow() + options_.write_timeout, true));
  if (IsSuccess(response.status) || (request.only_if_absent && IsThereAlready(response))) return {};
  if (!request.only_if_absent || !IsAboutCondition(response)) return std::unexpected(RefusalIn(response));
  Request without = request;
  without.only_if_absent = false;
  KILN_RETURN_IF_ERROR(Put(without));
  conditional_ = false;  // for this is what it did not understand
  return {};
}

std::expected<void, Error> Store::PutWhereAbsent(const Digest& key, std::string_view bytes) {
  if (!conditional_) {
    const auto there = IsThere(key, clock_.SteadyNow() + options_.write_timeout);
    if (there && *there) return {};
    if (!there && there.error().code != ErrorCode::kInvalid) return std::unexpected(there.error());  // else nobody may ask
  }
  return Put({Method::kPut, options_.address.PathOf(key), bytes, conditional_});
}

std::expected<void, Error> Store::Write(const Digest& key, std::string_view bytes, bool even_if_there) {
  auto put = even_if_there ? Put({Method::kPut, options_.address.PathOf(key), bytes}) : PutWhereAbsent(key, bytes);
  // The keeper tells of a store that cannot be reached.
  if (put || put.error().code != ErrorCode::kUnreachable) Tell(kPuts, put ? std::string() : put.error().message);
  return put;
}

std::expected<bool, Error> Store::Remove(const Digest& key) {
  const SteadyTime deadline = clock_.SteadyNow() + options_.write_timeout;
  KILN_ASSIGN_OR_RETURN(const bool there, IsThere(key, deadline));
  if (!there) return false;
  KILN_ASSIGN_OR_RETURN(const Response response, Ask({Method::kDelete, options_.address.PathOf(key)}, deadline, true));
  if (IsSuccess(response.status)) return true;
  if (IsAbsence(response.status)) return false;
  return std::unexpected(RefusalIn(response));
}

void Store::Tell(Matter matter, const std::string& trouble) {
  {
    MutexLock lock(telling_);
    if (told_[matter] == trouble) return;
    told_[matter] = trouble;
  }
  constexpr std::array<std::string_view, 2> kBad = {"left-alone", "takes-no-puts"}, kGood = {"ok", "takes-puts"};
  if (!options_.on_event) return;
  if (trouble.empty()) options_.on_event(kGood[matter], options_.address.Origin());
  else options_.on_event(kBad[matter], trouble);
}

void Store::Keep() {
  for (;;) {
    const SteadyTime now = clock_.SteadyNow();
    const bool probes = breaker_.probe_due().value_or(SteadyTime::max()) <= now;
    if (probes || now >= NextLook()) {
      const auto looked = LookUp();
      if (probes && !stopping()) Revive(looked);
    }
    const auto patience = std::min(NextLook(), breaker_.probe_due().value_or(SteadyTime::max())) - clock_.SteadyNow();
    MutexLock lock(mutex_);
    if (!stopping_ && patience > SteadyTime::duration(0)) {
      wake_.WaitFor(mutex_, std::chrono::ceil<std::chrono::microseconds>(patience), [&]() KILN_REQUIRES(mutex_) { return stopping_ || woken_; });
    }
    if (stopping_) return;
    woken_ = false;
  }
}

SteadyTime Store::NextLook() const { return looked_up_ + (route() ? std::chrono::milliseconds(kBetweenLooks) : kFirstLooks); }

bool Store::stopping() const {
  MutexLock lock(mutex_);
  return stopping_;
}

std::expected<std::vector<std::string>, Error> Store::Resolve() {
  const auto resolution = std::make_shared<Resolution>();
  std::thread([resolution, resolve = options_.resolve, host = options_.address.at.host] {
    auto outcome = resolve(host);
    MutexLock lock(resolution->mutex);
    resolution->outcome = std::move(outcome);
    resolution->resolved.NotifyAll();
  }).detach();
  while (!stopping()) {
    MutexLock lock(resolution->mutex);
    if (!resolution->outcome) resolution->resolved.WaitFor(resolution->mutex, kLook);
    if (resolution->outcome) return std::move(*resolution->outcome);
  }
  return Fail(ErrorCode::kClosed, "the end has come");
}

// What is known stays where nothing new can be learnt.
std::expected<void, Error> Store::LookUp() {
  looked_up_ = clock_.SteadyNow();
  const auto look = [this]() -> std::expected<Route, Error> {
    Route route;
    if (options_.credentials) {
      auto credentials = options_.credentials();
      if (!credentials) return Fail(ErrorCode::kRefused, std::move(credentials.error()));
      route.credentials = std::move(*credentials);
    }
    KILN_ASSIGN_OR_RETURN(route.addresses, Resolve());
    return route;
  };
  auto route = look();
  if (!route) return std::unexpected(std::move(route.error()));
  MutexLock lock(mutex_);
  route_ = std::make_shared<const Route>(std::move(*route));
  return {};
}

// It is asked for what nobody has, twice: first to connect, and then within the time of a request.
std::expected<void, Error> Store::Probe() {
  const RoutePtr route = this->route();
  for (const int patience : {kMorePatience, 1}) {
    auto asked = http_.Ask({Method::kGet, options_.address.PathOf(Digest())}, *route, clock_.SteadyNow() + options_.timeout * patience);
    if (!asked) return std::unexpected(std::move(asked.error().error));
    if (!IsAnswer(*asked)) return std::unexpected(RefusalIn(*asked));
  }
  return {};
}

void Store::Revive(const std::expected<void, Error>& looked) {
  const auto probed = route() ? Probe() : looked;
  breaker_.NoteProbe(probed.has_value(), clock_.SteadyNow());
  if (probed) {
    MutexLock lock(mutex_);
    became_available_.NotifyAll();
  }
  Tell(kStore, probed ? std::string() : probed.error().message);
}

}  // namespace kiln::cache::object
