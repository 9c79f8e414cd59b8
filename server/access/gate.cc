// SPDX-License-Identifier: Apache-2.0
#include "server/access/gate.h"

#include <string>

#include <fmt/format.h>

#include "server/access/method_scopes.h"

namespace kiln::server {

std::expected<Caller, Failure> Gate::Enter(const grpc::ServerContextBase& context, std::string_view method) const {
  auto caller = authenticator_.Identify(context);
  if (!caller) {
    const std::string peer = context.peer();
    // Without the port, of which a stranger has many.
    if (const auto left_out = lines_.Take(std::string_view(peer).substr(0, peer.rfind(':')), clock_.SteadyNow())) {
      audit_.Log(Level::kWarning, "audit",
                 {{"audit", "refused"},
                  {"method", method},
                  {"peer", std::string_view(peer)},
                  {"why", std::string_view(caller.error().message)},
                  {"left-out", static_cast<std::int64_t>(*left_out)}});
    }
    return caller;
  }
  const auto scope = ScopeOf(method);
  if (!scope) {
    return std::unexpected(Failure{.kind = Failure::Kind::kForbidden, .message = fmt::format("nobody may call {}: no scope allows it", method)});
  }
  if (auto allowed = Require(*caller, *scope, method); !allowed) return std::unexpected(std::move(allowed.error()));
  if (*scope == Scope::kAdmin) {
    audit_.Log(Level::kInfo, "audit",
               {{"audit", "admin"}, {"method", method}, {"caller", std::string_view(caller->name)}, {"tenant", std::string_view(caller->tenant)}});
  }
  return caller;
}

std::expected<void, Failure> Gate::Confirm(const Caller& caller, std::string_view method) const {
  const auto now = authenticator_.Again(caller);
  if (now && now->tenant == caller.tenant) return Require(*now, ScopeOf(method).value(), method);
  Failure failure = now ? Failure{.kind = Failure::Kind::kUnauthenticated,
                                  .message = fmt::format("{} became the tenant {} while the call lasted; call again", caller.name, now->tenant)}
                        : now.error();
  audit_.Log(Level::kWarning, "audit",
             {{"audit", "ended"},
              {"method", method},
              {"caller", std::string_view(caller.name)},
              {"tenant", std::string_view(caller.tenant)},
              {"why", std::string_view(failure.message)}});
  return std::unexpected(std::move(failure));
}

void Gate::NotePut(const Caller& caller, std::string_view key, bool sealed) const {
  audit_.Log(Level::kInfo, "audit",
             {{"audit", "put"},
              {"caller", std::string_view(caller.name)},
              {"tenant", std::string_view(caller.tenant)},
              {"key", key},
              {"sealed", sealed ? "yes" : "no"}});
}

void Gate::NoteQuota(std::string_view tenant, std::string_view why) const {
  if (const auto left_out = lines_.Take(tenant, clock_.SteadyNow())) {
    audit_.Log(Level::kWarning, "audit", {{"audit", "quota"}, {"tenant", tenant}, {"why", why}, {"left-out", static_cast<std::int64_t>(*left_out)}});
  }
}

std::expected<void, Failure> Gate::Require(const Caller& caller, Scope scope, std::string_view method) const {
  if (caller.May(scope)) return {};
  if (const auto left_out = lines_.Take(caller.name, clock_.SteadyNow())) {
    audit_.Log(Level::kWarning, "audit",
               {{"audit", "refused"},
                {"method", method},
                {"caller", std::string_view(caller.name)},
                {"tenant", std::string_view(caller.tenant)},
                {"why", "scope"},
                {"scope", NameOf(scope)},
                {"left-out", static_cast<std::int64_t>(*left_out)}});
  }
  return std::unexpected(
      Failure{.kind = Failure::Kind::kForbidden,
              .message = fmt::format("{} needs the scope {}, which {} does not have; ask who runs this kilnd", method, NameOf(scope), caller.name)});
}

}  // namespace kiln::server
