// SPDX-License-Identifier: Apache-2.0
//
// A finished compile, as it is kept and as it is sent.
//
// What is kept is the serialized CompileReply of everything that is the same for everybody: key, artifact, warnings. What
// differs (origin, timings) is serialized apart and sent behind it: two serialized messages in a row are their merge. So a hit
// copies nothing and serializes a few bytes.
#pragma once

#include <expected>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "cache/digest.h"
#include "cache/entry.h"
#include "kiln/v1/compile.pb.h"
#include "server/reply/failure.h"

namespace kiln::server {

inline constexpr std::string_view kQueueStage = "queue";  // of timings: not the worker's

struct Reply {
  cache::Digest key;
  std::shared_ptr<const void> owner;  // of `kept`
  std::string_view kept;
  v1::Origin origin = v1::ORIGIN_UNSPECIFIED;
  std::vector<v1::Timing> timings;
  bool durable = false;   // the store has it
  std::string more = {};  // serialized fields of a CompileReply that are this call's alone

  // The serialized rest.
  std::string Tail() const;
};

// "memory", "disk", "compiled", "joined", "cluster", "bundle"; empty where nothing is known.
std::string_view OriginText(v1::Origin origin);

using Outcome = std::expected<Reply, Failure>;

// As much of a program's name as is kept.
std::string LabelName(std::string_view name);

// What lists of the store say of a result.
struct Label {
  std::string_view target, name, compiler = {};
  std::string_view portable_key = {};  // as in v1::CacheEntry
};

// The entry under which a serialized reply, with its seal (sealer.h), is kept in the cache; `module`: with the program beside it, so that a later
// compiler can compile it anew.
std::expected<cache::Entry, cache::Error> SealReply(const cache::Digest& kept_under, std::string_view tenant, std::string_view sealed_reply,
                                                    const Label& label, std::string_view module = {});

// The entry under which the compiler's refusal of a program is kept: its diagnostics come back without another try.
std::expected<cache::Entry, cache::Error> SealFailure(const cache::Digest& kept_under, std::string_view tenant, const v1::KeptFailure& failure,
                                                      const Label& label);

// The failure as it is kept, not sealed yet (sealer.h).
v1::KeptFailure ToKeep(const Failure& failure);

// Under which key a refusal is kept. It quotes lines and names, which a program's key leaves out: so it is of these bytes alone.
cache::Digest FailureKey(const cache::Digest& key, std::string_view module);

// What the entry keeps for that tenant; nothing when it is another's, or neither of SealReply nor of SealFailure.
std::optional<Outcome> OutcomeFrom(const cache::Entry& entry, std::string_view tenant, v1::Origin origin, bool durable);

}  // namespace kiln::server
