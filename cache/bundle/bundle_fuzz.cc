// SPDX-License-Identifier: Apache-2.0
#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>

#include "cache/bundle/bundle.h"
#include "cache/entry.h"
#include "cache/memory_tier.h"

// An import never ends the process, puts only entries that verify, and reports how many. The fuzzer repairs the digests at the end of its
// input, or it would never get past them.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  using namespace kiln::cache;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size > Digest::kSize && (data[size - 1] & 1) != 0) {
    const std::string_view before = std::string_view(bytes).substr(0, size - Digest::kSize);
    bytes.replace(size - Digest::kSize, Digest::kSize, Sha256(before).view());
  }
  const int file = ::memfd_create("bundle", MFD_CLOEXEC);
  if (file < 0 || ::write(file, bytes.data(), bytes.size()) != static_cast<ssize_t>(bytes.size())) std::abort();
  MemoryTier tier({.capacity = 1 << 20});
  BundleReport report;
  std::uint64_t seen = 0;
  const ImportFilter keep_all = [&](const Entry& entry) {
    ++seen;
    if (!Unseal(std::string(entry.sealed()))) std::abort();
    return entry;
  };
  (void)ImportBundle("/proc/self/fd/" + std::to_string(file), tier, &report, keep_all);
  ::close(file);
  if (report.entries > seen) std::abort();
  return 0;
}
