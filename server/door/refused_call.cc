// SPDX-License-Identifier: Apache-2.0
#include "server/door/refused_call.h"

#include <charconv>

#include "server/door/call_watch.h"
#include "server/reply/status_map.h"

namespace kiln::server {

std::size_t DetailsLimit(const grpc::CallbackServerContext& context) {
  const auto& metadata = context.client_metadata();
  const auto at = metadata.find("kiln-details-bytes");
  std::size_t limit = kDefaultDetailsBytes;
  if (at != metadata.end()) std::from_chars(at->second.begin(), at->second.end(), limit);
  return limit;
}

void TellId(grpc::CallbackServerContext& context) { context.AddTrailingMetadata("kiln-request-id", RequestIdOf(context)); }

grpc::Status Refuse(grpc::CallbackServerContext& context, const Failure& failure) {
  RecordOf(context).reason = ReasonOf(failure.kind);
  TellId(context);
  return ToStatus(failure, DetailsLimit(context));
}

}  // namespace kiln::server
