// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "server/upstream/answer.h"
#include "server/upstream/tenant_tokens.h"
#include "server/upstream/upstream_tier.h"
#include "server/upstream/via.h"

// What an upstream kilnd, a client that takes itself for a kilnd, or a file of tokens may say: any bytes give what they should or an error
// that is not empty, and nothing is kept of a reply that is not said again in the same bytes.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln::server;
  if (size == 0) return 0;
  const std::string_view text(reinterpret_cast<const char*>(data) + 1, size - 1);
  switch (data[0] % 5) {
    case 0: {
      const grpc::Slice slice(text.data(), text.size());
      const auto reply = ReadForwarded(grpc::ByteBuffer(&slice, 1));
      if (!reply && reply.error().empty()) std::abort();
      if (reply && !EntryOf(*reply, {kiln::cache::Digest(), kiln::cache::Digest(), "default", reply->provenance.compiler()}) &&
          reply->sealed.key() == kiln::cache::Digest().view() && reply->sealed.ByteSizeLong() < (1 << 20)) {
        std::abort();
      }
      break;
    }
    case 1: {
      const auto tokens = ParseTenantTokens(text);
      if (!tokens && tokens.error().empty()) std::abort();
      break;
    }
    case 2: {
      const std::string via = ReadVia(text);
      if (Hops(via) > kMostHops || ReadVia(via) != via) std::abort();
      break;
    }
    case 3: {
      const auto entry = FetchedEntry(kiln::cache::Digest(), std::string(text));
      if (!entry && entry.error().message.empty()) std::abort();
      break;
    }
    default: {
      const Failure failure = FailureOf(
          {static_cast<grpc::StatusCode>(text.empty() ? 2 : 1 + static_cast<unsigned char>(text[0]) % 16), "why", std::string(text)}, "there");
      if (failure.message.empty() || failure.retry_after.value_or(std::chrono::milliseconds(0)).count() < 0) std::abort();
    }
  }
  return 0;
}
