// SPDX-License-Identifier: Apache-2.0
#include "ir/diagnostic.h"

namespace kiln::ir {

void Diagnostics::Add(Diagnostic d) {
  if (d.severity == Severity::kError) ++errors_;
  if (all_.size() < kMax) all_.push_back(std::move(d));
}

void Diagnostics::Error(std::string message, std::string hint, SourceLoc loc, std::string statement) {
  Add({Severity::kError, FaultKind::kInvalid, std::move(message), std::move(hint), std::move(statement), loc});
}

void Diagnostics::Unsupported(std::string message, std::string hint, SourceLoc loc, std::string statement) {
  Add({Severity::kError, FaultKind::kUnsupported, std::move(message), std::move(hint), std::move(statement), loc});
}

void Diagnostics::Internal(std::string message, SourceLoc loc) { Add({Severity::kError, FaultKind::kInternal, std::move(message), {}, {}, loc}); }

void Diagnostics::Warning(std::string message, std::string hint, SourceLoc loc) {
  Add({Severity::kWarning, FaultKind::kInvalid, std::move(message), std::move(hint), {}, loc});
}

}  // namespace kiln::ir
