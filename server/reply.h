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
#include "server/failure.h"

namespace kiln::server {

struct Reply {
  std::shared_ptr<const void> owner;  // of `kept`
  std::string_view kept;
  v1::Origin origin = v1::ORIGIN_UNSPECIFIED;
  std::vector<v1::Timing> timings;

  // The serialized rest.
  std::string Tail() const;
};

using Outcome = std::expected<Reply, Failure>;

// The entry under which a reply is kept in the cache.
std::expected<cache::Entry, cache::Error> SealReply(const cache::Digest& key, const v1::CompileReply& reply,
                                                    std::string_view name);

// Nothing when the entry is not one of SealReply.
std::optional<Reply> ReplyFrom(const cache::Entry& entry, v1::Origin origin);

}  // namespace kiln::server
