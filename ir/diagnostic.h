// SPDX-License-Identifier: Apache-2.0
//
// Messages for the author of a program. A pass gathers every problem it can see before it gives up.
#pragma once

#include <cstdint>
#include <expected>
#include <string>
#include <utility>
#include <vector>

namespace kiln::ir {

struct SourceLoc {
  uint32_t file = 0;  // index in Module.files
  uint32_t line = 0;  // 0: unknown
};

enum class Severity : uint8_t { kError, kWarning, kNote };
enum class FaultKind : uint8_t {
  kInvalid,      // the program is wrong
  kUnsupported,  // the program may be right, but this compiler or target cannot do it
  kInternal,     // the compiler is wrong
};

struct Diagnostic {
  Severity severity = Severity::kError;
  FaultKind kind = FaultKind::kInvalid;
  std::string message;    // what was asked and why it fails
  std::string hint;       // what to try
  std::string statement;  // the statement's text, one line
  SourceLoc loc;
};

// At most `kMax` are kept; the rest is counted.
class Diagnostics {
 public:
  static constexpr size_t kMax = 100;
  void Add(Diagnostic d);
  void Error(std::string message, std::string hint = {}, SourceLoc loc = {}, std::string statement = {});
  void Unsupported(std::string message, std::string hint = {}, SourceLoc loc = {}, std::string statement = {});
  void Internal(std::string message, SourceLoc loc = {});
  void Warning(std::string message, std::string hint = {}, SourceLoc loc = {});

  bool HasErrors() const { return errors_ > 0; }
  size_t errors() const { return errors_; }
  const std::vector<Diagnostic>& all() const { return all_; }

 private:
  std::vector<Diagnostic> all_;
  size_t errors_ = 0;
};

// A pass failed; the Diagnostics that it was given say why.
struct Failed {};
using Result = std::expected<void, Failed>;

}  // namespace kiln::ir
