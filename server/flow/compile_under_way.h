// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <stop_token>
#include <string>

#include "server/flow/compile_flow.h"

namespace kiln::server {

// What is kept under the portable key: only ptxas is left to run (two_layers.cc).
struct CompileFlow::Ptx {
  v1::CompileReply reply;  // while the job exists, its artifact is in the job
  std::string maker;       // the public key that vouched for it, if it was another host's
};

// What the starter of a flight carries through queue and worker.
struct CompileFlow::Compile {
  cache::Digest key;         // of the result, as clients know it
  cache::Digest kept_under;  // in the cache
  cache::Digest asked;       // the request that started it, in the index
  std::uint64_t generation;  // of the index then
  std::string name;
  std::optional<std::string> ptxas;       // that the key names
  std::optional<cache::Digest> portable;  // the key without it; none where the key names no ptxas
  std::string request_id;
  Caller caller;
  std::shared_ptr<CallNotes> notes;  // of the request that started it
  v1::CompileRequest request;        // while the job exists, in the job
  TenantBudget::Charge charge;       // of the request
  Flights::Flight flight;
  std::string via = {};  // the kilnds that forwarded it

  // Of the hosts that share a store (compile_elsewhere.cc).
  cache::Waited waited = {};                                          // of the request that started it, for the store
  std::optional<cache::SteadyTime> others_have_until = std::nullopt;  // then this host makes it, whoever has the lease
  std::optional<cache::Lease> lease = std::nullopt;                   // this host makes it
  cache::Leases::Taken elsewhere = {};                                // how another host does
  bool in_vain = false;                                               // what the store has is of no use to this host
  bool again = false;                                                 // it had its turn before
  std::uint64_t wait = 0;
  bool distrusted = false;  // the upstream kilnd's answer was not taken in (compile_forwarded.cc)
  std::optional<Ptx> ptx = std::nullopt;
  bool from_source = false;  // ptxas did not take the PTX that was kept

  std::optional<std::stop_callback<std::function<void()>>> on_stop = std::nullopt;  // last: it uses the others
};

}  // namespace kiln::server
