// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>

#include "ir/canonical.h"
#include "ir/codec/decode.h"
#include "ir/codec/encode.h"
#include "ir/limits.h"
#include "ir/print.h"
#include "ir/verify.h"

// Whatever bytes decode, print, verify and encode without a fault, and what was encoded decodes to the same program.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kiln::ir;
  Diagnostics diagnostics;
  auto module = DecodeModule({reinterpret_cast<const char*>(data), size}, diagnostics);
  if (module.has_value() == diagnostics.HasErrors()) std::abort();
  if (!module) return 0;
  (void)Print(*module);
  (void)Verify(*module, diagnostics);
  std::string canonical = CanonicalBytes(*module);
  Diagnostics none;
  std::string bytes = EncodeBytes(*module);
  auto again = Decode(bytes, none);
  bool fits = bytes.size() <= kMaxModuleBytes && module->exprs.size() <= kMaxExprs;
  if (fits && (!again || CanonicalBytes(*again) != canonical)) std::abort();
  return 0;
}
