// SPDX-License-Identifier: Apache-2.0
//
// Compiles without a daemon, in a kiln-worker of its own: nothing is cached, and a compiler that fails takes only that
// worker with it.
#pragma once

#include <chrono>
#include <expected>
#include <string>

#include "clients/cpp/client.h"

namespace kiln::cli {

struct LocalOptions {
  std::string worker;  // empty: kiln-worker beside this executable
  std::chrono::milliseconds timeout{300'000};
  bool raw = false;  // also programs with functions in other languages
};

std::expected<Compiled, Error> CompileLocally(const CompileRequest& request, const LocalOptions& options, const Client::OnStage& on_stage);

// "DIRECTORY OF THIS EXECUTABLE/name".
std::string Beside(const char* name);

}  // namespace kiln::cli
