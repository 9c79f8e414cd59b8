// SPDX-License-Identifier: Apache-2.0
//
// The one table of scopes that a caller needs before a method of the service does anything. A method that is not in the table is refused to
// everybody.
#pragma once

#include <array>
#include <optional>
#include <string_view>

#include "server/access/caller.h"

namespace kiln::server {

struct MethodScope {
  std::string_view method;
  Scope scope;
};

inline constexpr std::array kMethodScopes = {
    MethodScope{"Compile", Scope::kRead},           // a hit; a miss needs kCompile besides (CompileFlow)
    MethodScope{"CompileStream", Scope::kRead},     // the same
    MethodScope{"Lookup", Scope::kRead},            // of the caller's tenant
    MethodScope{"Fetch", Scope::kRead},             // of the caller's tenant
    MethodScope{"EnsureKernels", Scope::kCompile},  // compiles what is missing
    MethodScope{"Rank", Scope::kRead},              // what is known of a space; to rank needs kCompile besides (CompileFlow)
    MethodScope{"Put", Scope::kCompile},            // what the caller has compiled
    MethodScope{"Run", Scope::kRun},                // on this host's devices
    MethodScope{"Tune", Scope::kTune},              // the same, with the compiles that it needs; a miss of these needs kCompile besides
    MethodScope{"Watch", Scope::kTune},             // of the caller's tenant
    MethodScope{"CacheHot", Scope::kCompile},       // the caller's own programs
    MethodScope{"Stats", Scope::kAdmin},            // everybody's
    MethodScope{"Capabilities", Scope::kRead},      // what this kilnd is
    MethodScope{"CacheList", Scope::kAdmin},        // this and the following reach every tenant's results, whatever the caller's tenant
    MethodScope{"CacheVerify", Scope::kAdmin},      // looks at all
    MethodScope{"CacheGc", Scope::kAdmin},          // removes some
    MethodScope{"CacheExport", Scope::kAdmin},      // copies them
    MethodScope{"CacheImport", Scope::kAdmin},      // adds to them
};

constexpr std::optional<Scope> ScopeOf(std::string_view method) {
  for (const MethodScope& row : kMethodScopes) {
    if (row.method == method) return row.scope;
  }
  return std::nullopt;
}

constexpr std::string_view NameOf(Scope scope) {
  switch (scope) {
    case Scope::kRead: return "read";
    case Scope::kCompile: return "compile";
    case Scope::kTune: return "tune";
    case Scope::kRun: return "run";
    case Scope::kAdmin: return "admin";
    case Scope::kRaw: return "raw";
  }
  return "";
}

}  // namespace kiln::server
