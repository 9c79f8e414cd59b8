// SPDX-License-Identifier: Apache-2.0
//
// CompileFlow among hosts that share a store: each program is compiled by one of them.
//
// A job whose turn has come takes the lease on its key. It is not taken earlier: a host that held leases on what only waits in its queue would
// keep the others from it. Where another host has the lease, or has the result, the worker goes on to the next job, and the flight waits for
// the store's word without a thread. Then it looks in the store, and if nothing is there, it queues again.
#include <utility>

#include "server/flow/compile_flow.h"
#include "server/flow/compile_under_way.h"
#include "server/queue/refusals.h"

namespace kiln::server {

// On the worker's thread.
bool CompileFlow::IsOurs(Compile& compile, bool refresh) {
  if (compile.others_have_until && parts_.clock.SteadyNow() >= *compile.others_have_until) return true;
  compile.elsewhere = parts_.leases->Take(compile.kept_under, refresh || compile.in_vain, compile.waited);
  switch (compile.elsewhere.end) {
    case cache::Leases::End::kMine: compile.lease.emplace(*parts_.leases, compile.kept_under, compile.elsewhere.token); return true;
    case cache::Leases::End::kNone: return true;
    case cache::Leases::End::kThere:
    case cache::Leases::End::kOthers: return refresh;
  }
  std::unreachable();
}

void CompileFlow::AwaitOthers(const std::shared_ptr<Compile>& compile) {
  if (compile->elsewhere.end == cache::Leases::End::kThere) return LookAgain(compile);
  compile->wait = parts_.leases->NewWait();
  const std::uint64_t wait = compile->wait;
  // When the last caller has left, what is left of the flight ends on the executor, not inside its own stop.
  const auto leave = [this, wait, which = std::weak_ptr(compile)] {
    const auto left = which.lock();
    if (left && parts_.leases->Leave(wait)) parts_.executor.PostFirst([left] { left->on_stop.reset(); });
  };
  compile->on_stop.emplace(compile->flight.stop_token(), leave);
  const std::stop_token stopped = compile->flight.stop_token();  // once it is woken, the compile is another thread's
  const auto look = [this, compile] { parts_.executor.PostFirst([this, compile] { LookAgain(compile); }); };
  if (!compile->others_have_until) compile->others_have_until = parts_.clock.SteadyNow() + options_.compile_limit;
  compile->waited.time = {};  // what it waits for now is a compile
  parts_.leases->Await(wait, compile->kept_under, compile->elsewhere.left, *compile->others_have_until, look);
  if (stopped.stop_requested()) leave();
}

void CompileFlow::LookAgain(const std::shared_ptr<Compile>& compile) {
  compile->on_stop.reset();
  if (closed_) return compile->flight.Finish(std::unexpected(Draining()));
  if (compile->flight.stop_token().stop_requested()) return;  // nobody waits: the flight ends with its last holder
  compile->notes->Mark("cluster");
  const std::string& tenant = compile->caller.tenant;
  for (const cache::Digest& key : {compile->kept_under, FailureKey(compile->kept_under, compile->request.module())}) {
    if (auto known = FromCache(key, tenant, compile->waited)) return compile->flight.Finish(std::move(*known));
  }
  compile->in_vain = compile->elsewhere.end == cache::Leases::End::kThere;
  compile->again = true;
  Launch(compile);
}

}  // namespace kiln::server
