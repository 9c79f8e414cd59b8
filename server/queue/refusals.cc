// SPDX-License-Identifier: Apache-2.0
#include "server/queue/refusals.h"

#include <cmath>

#include <fmt/format.h>

namespace kiln::server {

using Kind = Failure::Kind;

Failure ToFailure(const QueueFull& full) {
  return {.kind = Kind::kQueueFull,
          .message = fmt::format("{} compiles wait already; try again in {:.1f} s, or let the daemon queue more (--queue)", full.queued,
                                 static_cast<double>(full.retry_after.count()) / 1000),
          .retry_after = full.retry_after};
}

Failure ExecutorFull(std::string_view tenant) {
  return {.kind = Kind::kQueueFull,
          .message = fmt::format("too many requests of the tenant {} wait already (--request-queue); try again in a second", tenant),
          .retry_after = std::chrono::seconds(1)};
}

Failure MaintenanceFull() {
  return {.kind = Kind::kQueueFull,
          .message = "other maintenance of the store is waiting already; try again in a few seconds",
          .retry_after = std::chrono::seconds(5)};
}

Failure MessageTooLarge(std::size_t bytes, std::size_t limit) {
  return {.kind = Kind::kTooMuch, .message = fmt::format("the message has {} bytes; this kilnd takes {} (--max-message)", bytes, limit)};
}

Failure NoMemoryFor(std::string_view tenant, std::size_t capacity) {
  return {.kind = Kind::kQueueFull,
          .message = fmt::format("the requests of the tenant {} that are under way hold its part of the {} bytes there are for all "
                                 "(--request-memory); try again when some of them are done",
                                 tenant, capacity),
          .retry_after = std::chrono::seconds(1)};
}

Failure NoMemoryForMessages(std::string_view tenant, std::size_t capacity) {
  return {.kind = Kind::kQueueFull,
          .message = fmt::format("the messages of the tenant {} that are on their way hold its part of the {} bytes there are for all "
                                 "(--connection-memory); try again when some of them have come",
                                 tenant, capacity),
          .retry_after = std::chrono::seconds(1)};
}

Failure NoMemoryForManifest(std::string_view tenant, std::size_t capacity) {
  return {.kind = Kind::kQueueFull,
          .message = fmt::format("the manifests of the tenant {} that are under way hold its part of the {} bytes there are for all "
                                 "(--manifest-memory); try again when one of them is done, or send smaller ones",
                                 tenant, capacity),
          .retry_after = std::chrono::seconds(1)};
}

Failure ManifestTooLarge(std::size_t bytes, std::size_t capacity) {
  return {.kind = Kind::kTooMuch,
          .message = fmt::format("the manifest would hold {} bytes, and all manifests together may hold {} (--manifest-memory); send it in parts",
                                 bytes, capacity)};
}

Failure Draining() { return {.kind = Kind::kDraining, .message = "kilnd is shutting down and compiles nothing new; try again shortly"}; }

Failure Cancelled() { return {.kind = Kind::kCancelled, .message = "the request was cancelled"}; }

Failure NotStored(std::string_view why) {
  return {.kind = Kind::kStore,
          .message = fmt::format("the artifact is not stored: {}; put it again later", why),
          .retry_after = std::chrono::seconds(2)};
}

Failure NotCompiled() {
  return {.kind = Kind::kNotFound, .message = "this program has not been compiled for this target with these options; Compile does so"};
}

Failure FailedBefore(const Reproducers::KnownCrash& known) {
  return {
      .kind = Kind::kDefect,
      .message = fmt::format("the compiler failed on this program before ({}) and this build does not try it again{}; with the "
                             "scope admin, --refresh tries it here",
                             known.cause, known.reproducer.empty() ? "" : fmt::format("; `kiln compile --repro {}` runs it alone", known.reproducer)),
      .reproducer = known.reproducer};
}

Failure KilledBefore(const Reproducers::Doubt& doubt) {
  return {.kind = Kind::kDefect,
          .message = fmt::format("{} workers that compiled this program were killed, the last one {}; it is tried again in {:.0f} min. Where the "
                                 "host's memory is short, lower --worker-memory or --workers; with the scope admin, --refresh tries it now",
                                 doubt.kills, doubt.cause, std::ceil(std::chrono::duration<double, std::ratio<60>>(doubt.left).count()))};
}

Failure WorkerLost(std::string_view cause) {
  return {.kind = Kind::kNoWorker,
          .message = fmt::format("the compile worker ended through no fault of this program ({}); try again, and see to the host's memory "
                                 "where that lasts",
                                 cause)};
}

Failure HostFailed(std::string_view what) {
  return {.kind = Kind::kNoWorker,
          .message = fmt::format("the compiler failed because of its host, not because of this program: {}; correct this, and try again", what)};
}

std::string FirstMessage(const std::vector<v1::Diagnostic>& diagnostics) {
  std::string text = diagnostics.front().message();
  if (diagnostics.front().line() > 0) text = fmt::format("line {}: {}", diagnostics.front().line(), text);
  if (diagnostics.size() > 1) text += fmt::format(" (and {} more)", diagnostics.size() - 1);
  return text;
}

}  // namespace kiln::server
