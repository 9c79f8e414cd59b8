// SPDX-License-Identifier: Apache-2.0
//
// The items of an EnsureKernels: every request for every target.
//
// A manifest may have tens of megabytes. Each request is serialized and hashed once, whatever the number of targets. This is done in
// pieces, so that the caller can let other work run in between, and can stop. A serialized request is not kept as a message as well.
//
// Not synchronised: one thread at a time expands; afterwards any number may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include <grpcpp/support/byte_buffer.h>

#include "cache/digest.h"
#include "kiln/v1/service.pb.h"
#include "server/config/request_limits.h"
#include "server/reply/failure.h"

namespace kiln::server {

class Manifest {
 public:
  struct Item {
    std::uint32_t request = 0;  // index in EnsureRequest.requests
    std::uint32_t target = 0;   // of the targets asked for, each once
    cache::Digest digest;       // of its request and target
  };

  // `limits` outlive this. Takes at most as many targets as there are; the same target under two spellings is one.
  Manifest(v1::EnsureRequest request, const RequestLimits& limits);

  // Counts of a serialized EnsureRequest, made before it is parsed.
  struct Size {
    std::size_t requests = 0;
    std::size_t targets = 0;
    std::size_t memory = 0;  // what a call with it holds until it ends, about: the message or its requests' bytes, what is known of each item
  };
  static Size Measure(const grpc::ByteBuffer& bytes, const RequestLimits& limits);
  static std::optional<Failure> ProblemOf(const Size& size, const RequestLimits& limits);

  // Why it cannot be expanded.
  const std::optional<Failure>& problem() const { return problem_; }

  // A piece of a few milliseconds. True when that was the last: the items are there, in the order of their digests.
  bool ExpandSome();

  const std::vector<Item>& items() const { return items_; }
  std::string_view TargetOf(const Item& item) const;
  // A serialized CompileRequest.
  std::string BytesOf(const Item& item) const;
  double SizeOf(const Item& item) const { return static_cast<double>(requests_[item.request].size); }  // its request's bytes, as it came
  // Set where the request is larger than any may be: it has no bytes then.
  std::optional<Failure> ProblemOf(const Item& item) const;

 private:
  struct Request {
    std::string bytes;     // without its target; empty: too large
    std::string target;    // its own, where none are named for all
    std::size_t size = 0;  // as it came
  };
  void Expand(std::uint32_t index);

  v1::EnsureRequest request_;  // of which the first are empty: they are in requests_
  const RequestLimits& limits_;
  std::optional<Failure> problem_;
  std::vector<std::string> targets_;  // empty: each request names its own
  std::vector<Request> requests_;
  std::vector<Item> items_;
};

}  // namespace kiln::server
