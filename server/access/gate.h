// SPDX-License-Identifier: Apache-2.0
//
// What every method asks first: who calls, and whether they may. Each refusal, each action of an admin and each result that is put is one
// line of the audit log; of many refusals in a second, a peer's first few are, and the next line says how many are not (`left-out`).
#pragma once

#include <expected>
#include <functional>
#include <string_view>

#include <grpcpp/server_context.h>

#include "cache/clock.h"
#include "server/access/authenticator.h"
#include "server/access/caller.h"
#include "server/reply/failure.h"
#include "server/telemetry/line_budget.h"
#include "server/telemetry/telemetry.h"

namespace kiln::server {

// Asked between the messages of a stream: whether the stream may go on.
using Confirmation = std::function<std::expected<void, Failure>()>;

class Gate {
 public:
  Gate(const Authenticator& authenticator, const Telemetry& audit, const cache::Clock& clock)
      : authenticator_(authenticator), audit_(audit), clock_(clock) {}

  std::expected<Caller, Failure> Enter(const grpc::ServerContextBase& context, std::string_view method) const;

  // The caller of a method that every known caller may use.
  std::expected<Caller, Failure> Identify(const grpc::ServerContextBase& context) const { return authenticator_.Identify(context); }

  // Checks that a caller who was let in when the call began would still be let in, as the same tenant.
  std::expected<void, Failure> Confirm(const Caller& caller, std::string_view method) const;

  // Checks that the caller may use the compile workers; the failure is the answer to a miss for a caller who may not.
  std::expected<void, Failure> Require(const Caller& caller, Scope scope, std::string_view method) const;

  // Records in the audit log that a result made elsewhere is kept from now on.
  void NotePut(const Caller& caller, std::string_view key, bool sealed) const;

  // Records in the audit log that a tenant's quota refused a request.
  void NoteQuota(std::string_view tenant, std::string_view why) const;

 private:
  const Authenticator& authenticator_;
  const Telemetry& audit_;
  const cache::Clock& clock_;
  mutable LineBudget lines_;
};

}  // namespace kiln::server
