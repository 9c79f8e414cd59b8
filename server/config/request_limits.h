// SPDX-License-Identifier: Apache-2.0
//
// What a request may be: each limit has a setting of its own, and an error that names it. The settings of a module's can only be
// below what the decoder takes (ir/limits.h), whose limits protect every process that reads one.
#pragma once

#include <cstddef>
#include <optional>

#include "ir/codec/wire_size.h"
#include "ir/limits.h"
#include "ir/module.h"
#include "server/reply/failure.h"

namespace kiln::server {

struct RequestLimits {
  std::size_t request_bytes = std::size_t{8} << 20;
  std::size_t module_bytes = ir::kMaxModuleBytes;
  std::size_t kernels = ir::kMaxKernels;
  std::size_t statements = ir::kMaxStmts;
  std::size_t nesting = ir::kMaxNesting;
  std::size_t expressions = ir::kMaxExprs;
  std::size_t buffers = ir::kMaxBuffers;
  std::size_t artifact_bytes = std::size_t{64} << 20;
  std::size_t manifest_items = 100'000;  // requests × targets of one EnsureRequest
};

// Which limit the module exceeds; `bytes` is its serialized size. Checked on the bytes before decoding and on the decoded module; the text
// form is measured only once it is decoded.
std::optional<Failure> OverLimit(const ir::ModuleSize& module, std::size_t bytes, const RequestLimits& limits);
std::optional<Failure> OverLimit(const ir::Module& module, std::size_t bytes, const RequestLimits& limits);

Failure RequestTooLarge(std::size_t bytes, const RequestLimits& limits);
Failure ArtifactTooLarge(std::size_t bytes, const RequestLimits& limits);

}  // namespace kiln::server
