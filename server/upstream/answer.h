// SPDX-License-Identifier: Apache-2.0
//
// What the upstream kilnd says to a compile that was forwarded. Nothing here is believed yet: the entry that is made of a reply must still be
// taken in (Sealer::TakeIn), and a refusal counts only once its own entry, with its seal, is here.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <grpcpp/support/byte_buffer.h>
#include <grpcpp/support/status.h>

#include "cache/digest.h"
#include "cache/entry.h"
#include "kiln/v1/compile.pb.h"
#include "kiln/v1/seal.pb.h"
#include "server/reply/failure.h"

namespace kiln::server {

struct ForwardedReply {
  v1::SealedReply sealed;           // nothing that its seal does not cover
  v1::Provenance provenance;        // as it says, unverified
  std::vector<v1::Timing> timings;  // of the kilnd that compiled it
  std::vector<v1::PassDump> dumps;  // for Explain; nobody signs them, and they are for a person's eyes
};
std::expected<ForwardedReply, std::string> ReadForwarded(const grpc::ByteBuffer& bytes);

// What this host asked for.
struct Expected {
  cache::Digest key;         // of the program, as this build names it
  cache::Digest kept_under;  // and as this host keeps it, for that tenant
  std::string_view tenant;
  std::string_view build_id;
  std::string_view program = {};  // to keep beside it; empty: none
};

// The reply as an entry that may be taken in. The error says why it is another's: another program's, build's or tenant's.
std::expected<cache::Entry, std::string> EntryOf(const ForwardedReply& reply, const Expected& expected);

// Why there is no reply. A Failure of kind kInvalid or kUnsupported is the program's own, by that kilnd's unsigned word.
Failure FailureOf(const grpc::Status& status, std::string_view address);

// That of a host which has no workers: UNAVAILABLE with RetryInfo.
Failure NobodyCompiles(std::string_view address, std::string_view why, std::chrono::milliseconds retry_after);

}  // namespace kiln::server
