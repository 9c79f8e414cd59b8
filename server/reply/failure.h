// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "kiln/v1/compile.pb.h"

namespace kiln::server {

// Why a request gets no result. Each kind has one cause: the environment, the program, or a defect of ours.
struct Failure {
  enum class Kind {
    // the request or its program
    kMalformed,    // the bytes are no request
    kInvalid,      // the program is wrong: diagnostics
    kUnsupported,  // the program may be right; this compiler or target cannot do it: diagnostics
    kNotFound,
    kRefused,          // this daemon is configured not to do that
    kUnauthenticated,  // nobody knows who calls
    kForbidden,        // the caller may not do that
    kQuota,            // the caller's tenant has used up what it may; retry_after
    // the environment
    kQueueFull,  // retry_after
    kTooMuch,    // more than this daemon takes, now or later
    kDraining,
    kNoWorker,
    kCancelled,
    kStore,  // the store cannot be read or written
    // ourselves
    kDefect,  // the compiler failed: reproducer
  };
  Kind kind;
  std::string message;  // what was asked, why it failed, what to try
  std::vector<v1::Diagnostic> diagnostics;
  std::string reproducer;
  std::optional<std::chrono::milliseconds> retry_after;
};

}  // namespace kiln::server
