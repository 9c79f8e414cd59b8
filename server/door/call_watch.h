// SPDX-License-Identifier: Apache-2.0
//
// Sees every call of kiln.v1.Kiln from its arrival to its end, whatever handles it: no handler can forget to be counted.
//
// gRPC makes the context of each call through an allocator of ours, so the record of the call lives in the context and a handler
// adds to it through RecordOf. An interceptor notes the method's name and the status that is sent. When gRPC gives the context back,
// the call is over and its record goes to the journal.
#pragma once

#include <atomic>
#include <cstddef>
#include <expected>
#include <memory>
#include <string>

#include <grpcpp/generic/async_generic_service.h>
#include <grpcpp/server_builder.h>

#include "cache/clock.h"
#include "server/access/caller.h"
#include "server/reply/reply.h"
#include "server/telemetry/call_record.h"
#include "server/telemetry/journal.h"

namespace kiln::server {

// The calls that began before Close, until each is done: its last byte written, its handler gone. Thread-safe.
class AcceptedCalls {
 public:
  // False: too late to be counted.
  bool Enter() {
    if (closed_) return false;
    ++open_;
    return true;
  }
  void Leave() { --open_; }
  void Close() { closed_ = true; }
  std::size_t open() const { return open_; }

 private:
  std::atomic<bool> closed_ = false;
  std::atomic<std::size_t> open_ = 0;
};

// Every call that the builder's server takes is counted, and given to the journal; those, the clock and what is returned outlive the
// server. Needed by KilnService. Calls of methods that nobody serves are "other" there, and nothing of them is read. What gRPC ends before
// it has a context is seen by nobody: a message beyond what it takes at all (SetMaxReceiveMessageSize).
[[nodiscard]] std::unique_ptr<grpc::CallbackGenericService> WatchCalls(grpc::ServerBuilder& builder, Journal& journal, AcceptedCalls& accepted,
                                                                       const cache::Clock& clock);

// The record of a callback method's call. Valid until the call's OnDone.
CallRecord& RecordOf(grpc::CallbackServerContext& context);

// For steps that may go on after the call has ended.
std::shared_ptr<CallNotes> NotesOf(grpc::CallbackServerContext& context);

// Notes who calls, or that nobody knows.
void NoteCaller(grpc::CallbackServerContext& context, const std::expected<Caller, Failure>& caller);

std::string RequestIdOf(grpc::CallbackServerContext& context);

// Whether the call began before AcceptedCalls::Close. A drain waits for such a call, and refuses nothing that it needs.
bool WasAccepted(grpc::CallbackServerContext& context);

// Notes what a known result was for: its key, its target, where it came from.
void NoteReply(grpc::CallbackServerContext& context, const Reply& reply);
// That, or why there is none.
void NoteOutcome(grpc::CallbackServerContext& context, const Outcome& outcome);

}  // namespace kiln::server
