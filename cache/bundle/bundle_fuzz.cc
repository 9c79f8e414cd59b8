// SPDX-License-Identifier: Apache-2.0
#include <fcntl.h>
#include <unistd.h>

#include <cstdint>
#include <cstdlib>
#include <map>
#include <memory>
#include <string>

#include "cache/bundle/bundle.h"
#include "cache/bundle/bundle_tier.h"
#include "cache/entry.h"
#include "cache/memory_tier.h"

namespace {

using namespace kiln::cache;

// A file that lasts as long as the process.
struct Scratch {
  Scratch() {
    file = ::mkstemp(path.data());
    if (file < 0) std::abort();
  }
  ~Scratch() { ::unlink(path.c_str()); }
  std::string path = "/dev/shm/kiln-bundle-fuzz-XXXXXX";
  int file = -1;
};

}  // namespace

// An import never ends the process, puts only entries that verify, and reports how many. What it takes from a file, a tier serves from it,
// too. The fuzzer repairs the digests at the end of its input, or it would never get past them.
extern "C" int LLVMFuzzerTestOneInput(const std::uint8_t* data, std::size_t size) {
  static const Scratch scratch;
  std::string bytes(reinterpret_cast<const char*>(data), size);
  if (size > Digest::kSize && (data[size - 1] & 1) != 0) {
    const std::string_view before = std::string_view(bytes).substr(0, size - Digest::kSize);
    bytes.replace(size - Digest::kSize, Digest::kSize, Sha256(before).view());
  }
  if (::ftruncate(scratch.file, 0) != 0 || ::pwrite(scratch.file, bytes.data(), bytes.size(), 0) != static_cast<ssize_t>(bytes.size())) std::abort();
  MemoryTier tier({.capacity = 1 << 20});
  BundleReport report;
  std::uint64_t seen = 0;
  std::map<Digest, Entry> first;
  const ImportFilter keep_all = [&](const Entry& entry) {
    ++seen;
    if (!Unseal(std::string(entry.sealed()))) std::abort();
    first.emplace(entry.key(), entry);
    return entry;
  };
  (void)ImportBundle(scratch.path, tier, &report, keep_all);
  if (report.entries > seen) std::abort();
  BundleOptions options{.files = {scratch.path}, .take_in = [](const Entry& entry) -> std::expected<Entry, std::string> { return entry; }};
  const auto served = BundleTier::Open(std::move(options));
  if (!served && !first.empty()) std::abort();
  for (const auto& [key, entry] : first) {
    const auto found = (*served)->Get(key);
    if (!found || !*found || (*found)->digest() != entry.digest()) std::abort();
  }
  return 0;
}
