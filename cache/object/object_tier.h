// SPDX-License-Identifier: Apache-2.0
//
// The tier for what memory is too dear for: an S3 bucket, or a server that takes GET, HEAD and PUT. An object is a packed entry
// (cache/outside/packed_entry.h), and its name is the entry's key.
//
// It is an outside tier: what it holds is verified by its digests here, and by its signature in TieredCache. Get waits no longer than the
// timeout for it, whatever it is asked before, and not at all for a store that is left alone (store.h). Put hands over to the queue (write_queue.h).
#pragma once

#include <memory>

#include "cache/object/store.h"
#include "cache/object/write_queue.h"
#include "cache/tier.h"

namespace kiln::cache::object {

class ObjectTier final : public Tier {
 public:
  struct Options {
    std::uint64_t max_entry = std::uint64_t{32} << 20;  // bytes of a sealed entry; larger ones stay out
    WriteQueue::Options queue;
    Store::Options store;  // its `most` follows from max_entry
  };

  ObjectTier(Options options, const Clock& clock);
  ~ObjectTier() override { EndSoon(); }

  std::string_view name() const override { return "object"; }
  bool blocking() const override { return true; }
  bool outside() const override { return true; }
  bool available() const override { return store_.available(); }
  std::expected<std::optional<Entry>, Error> Get(const Digest& key) override;
  std::expected<std::optional<Entry>, Error> GetWithin(const Digest& key, Waited& waited) override;
  void Put(Entry entry, PutDone done = {}) override;
  void Refused(const Digest& key) override { writes_.ReplaceNext(key); }
  std::expected<bool, Error> Erase(const Digest& key) override;
  void EndSoon() override;
  TierStats Stats() const override;

  bool AwaitAvailable(std::chrono::milliseconds patience) { return store_.AwaitAvailable(patience); }

 private:
  std::expected<std::optional<Entry>, Error> Read(const Digest& key, Waited& waited);

  const std::uint64_t max_entry_;
  Store store_;
  ReadCounters reads_;
  WriteQueue writes_;
};

}  // namespace kiln::cache::object
