// SPDX-License-Identifier: Apache-2.0
#include <cstdlib>
#include <string>
#include <string_view>

#include "ir/canonical.h"
#include "ir/codec/decode.h"
#include "ir/codec/encode.h"
#include "ir/codec/wire_size.h"
#include "ir/limits.h"
#include "ir/text/print.h"
#include "ir/verify/verify.h"
#include "kiln/v1/ir.pb.h"

// What is measured before bytes are parsed is no less than what they take then.
void CheckMeasured(std::string_view bytes) {
  using namespace kiln;
  const ir::ModuleSize size = ir::MeasureModule(bytes);
  v1::Module wire;
  if (size.memory == 0 || size.memory > ir::kMaxModuleMemory || !wire.ParseFromArray(bytes.data(), int(bytes.size()))) return;
  if (wire.SpaceUsedLong() > size.memory) std::abort();
}

// Whatever bytes decode, print, verify and encode without a fault, and what was encoded decodes to the same program.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace kiln::ir;
  const std::string_view sent(reinterpret_cast<const char*>(data), size);
  CheckMeasured(sent);
  Diagnostics diagnostics;
  auto module = DecodeModule(sent, diagnostics);
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
