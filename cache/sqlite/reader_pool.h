// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstddef>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <memory>
#include <optional>
#include <vector>

#include "cache/error.h"
#include "cache/mutex.h"
#include "cache/sqlite/sqlite_schema.h"
#include "cache/sqlite/sqlite_tier.h"

namespace kiln::cache {

// The reading connections. Each thread that reads has one to itself for as long as it holds a lease; there come to be
// as many as ever read at once, and the most recently used goes out first, so that its cache is warm.
class ReaderPool {
 public:
  enum class Work : std::uint8_t { kShort, kLong };  // a Suspend interrupts what is long

  class Lease {
   public:
    Lease(Lease&& other) noexcept;
    Lease& operator=(Lease&&) = delete;
    ~Lease();

    Reader* operator->() { return reader_.get(); }

    // Call this with every error of the reader. The connection is then closed instead of reused, and damage is reported while the lease
    // still prevents the file from being replaced.
    void Failed(const Error& error);

   private:
    friend class ReaderPool;
    Lease(ReaderPool& pool, std::unique_ptr<Reader> reader) : pool_(&pool), reader_(std::move(reader)) {}

    ReaderPool* pool_;
    std::unique_ptr<Reader> reader_;
    bool discard_ = false;
  };

  // `writable`: as for Reader::Open.
  ReaderPool(std::filesystem::path database, const SqliteOptions& options, bool writable, std::function<void(const Error&)> on_damage)
      : database_(std::move(database)), options_(options), writable_(writable), on_damage_(std::move(on_damage)) {}

  // Nothing while the pool is suspended.
  std::expected<std::optional<Lease>, Error> Acquire(Work work);

  // Gives out no more leases, waits for those that are out, and closes every connection.
  void Suspend();
  void Resume();

 private:
  void Return(std::unique_ptr<Reader> reader, bool discard);

  const std::filesystem::path database_;
  const SqliteOptions& options_;
  const bool writable_;
  const std::function<void(const Error&)> on_damage_;

  Mutex mutex_;
  CondVar returned_;
  std::vector<std::unique_ptr<Reader>> idle_ KILN_GUARDED_BY(mutex_);
  std::vector<Reader*> long_work_ KILN_GUARDED_BY(mutex_);  // leased for work that may be interrupted
  std::size_t leased_ KILN_GUARDED_BY(mutex_) = 0;
  bool suspended_ KILN_GUARDED_BY(mutex_) = false;
};

}  // namespace kiln::cache
