// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>

#include "ir/limits.h"
#include "ir/text/parse.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"

// Whatever text parses prints as a text that reads back as itself.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kiln::ir;
  Diagnostics diagnostics;
  auto module = Parse({reinterpret_cast<const char*>(data), size}, diagnostics);
  if (module.has_value() == diagnostics.HasErrors()) std::abort();
  if (!module) return 0;
  (void)Verify(*module, diagnostics);
  std::string text = Print(*module);
  Diagnostics none;
  auto again = Parse(text, none);
  if (text.size() <= kMaxModuleBytes && (!again || Print(*again) != text)) std::abort();
  return 0;
}
