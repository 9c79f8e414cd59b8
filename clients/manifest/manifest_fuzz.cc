// SPDX-License-Identifier: Apache-2.0
#include <cstdint>
#include <cstdlib>
#include <string_view>

#include "clients/manifest/manifest.h"

// A file that anybody made: what reads as a manifest is written in both forms, and both read back as the same requests.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln;
  const auto read = ReadManifest({reinterpret_cast<const char*>(data), size});
  if (!read) return 0;
  const v1::Manifest manifest = MakeManifest({read->entries().begin(), read->entries().end()});
  for (const ManifestForm form : {ManifestForm::kBinary, ManifestForm::kText}) {
    const std::string written = WriteManifest(manifest, form);
    const auto again = ReadManifest(written);
    if (!again || WriteManifest(*again, form) != written) std::abort();
  }
  return 0;
}
