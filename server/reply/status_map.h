// SPDX-License-Identifier: Apache-2.0
//
// The one table from failures to gRPC status codes.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>
#include <vector>

#include <grpcpp/support/status.h>

#include "server/reply/failure.h"

namespace kiln::server {

// Details travel in a header that most clients limit to 8 KiB; a client that takes more says so in the metadata
// `kiln-details-bytes`.
inline constexpr std::size_t kDefaultDetailsBytes = 5 << 10;
inline constexpr std::size_t kMaxDetailsBytes = 512 << 10;

// The diagnostics and the reproducer. Diagnostics beyond so many bytes are left out, and the last one says how many.
v1::CompileFailure FittingFailure(const Failure& failure, std::size_t limit);

// The status with a google.rpc.Status in its details, which holds a CompileFailure of `details_bytes`, or a RetryInfo.
grpc::Status ToStatus(const Failure& failure, std::size_t details_bytes = kDefaultDetailsBytes);

// The kind in one word, for logs and metrics: "queue-full". All of them.
std::string_view ReasonOf(Failure::Kind kind);
std::vector<std::string> AllReasons();

// "OK", "RESOURCE_EXHAUSTED".
std::string_view CodeName(int code);

}  // namespace kiln::server
