// SPDX-License-Identifier: Apache-2.0
//
// From a request to its cache key: the only file of the server that knows the IR.
#pragma once

#include <expected>
#include <optional>
#include <string>
#include <string_view>

#include "cache/digest.h"
#include "kiln/v1/compile.pb.h"
#include "server/config/request_limits.h"
#include "server/reply/failure.h"
#include "server/telemetry/call_record.h"

namespace kiln::server {

struct ResolvedRequest {
  cache::Digest key;
  std::string target;                               // the canonical name
  std::string name;                                 // of the module; a label for people
  bool has_functions = false;                       // in other languages
  std::optional<std::string> ptxas = std::nullopt;  // what the key says of it; nothing where none has a part in the artifact
  // The key of the same without a cubin, which hosts without ptxas ask for and every ptxas can go on from; nothing where `key` is that.
  std::optional<cache::Digest> portable = std::nullopt;
  std::optional<cache::Digest> program = std::nullopt;  // the same for every build of the compiler and every ptxas, where it was asked for
};
enum class WantsProgram : bool { kNo, kYes };

// Why nothing is compiled for it.
std::optional<Failure> ProblemOfTarget(std::string_view target);

// Decodes the module, looks up the target, computes the key. `ptxas` names the ptxas that will make cubins (its version text,
// empty for none): it changes the artifact, so it is part of the key wherever it is used. The stages "decode" and "key" are marked in
// `notes` where there are any.
std::expected<ResolvedRequest, Failure> Resolve(const v1::CompileRequest& request, const std::string& ptxas, const RequestLimits& limits,
                                                CallNotes* notes = nullptr, WantsProgram wants_program = WantsProgram::kNo);

// Settings of a serialized CompileRequest, found without reading its larger fields. Defaults if the request does not have them, or is
// malformed.
struct RequestSettings {
  v1::Priority priority = v1::INTERACTIVE;
  bool durable = false;
  bool has_space = false;
};
RequestSettings SettingsOf(std::string_view request);

}  // namespace kiln::server
