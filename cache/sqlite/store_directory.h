// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <expected>
#include <filesystem>
#include <functional>
#include <optional>
#include <string_view>

#include "cache/error.h"

namespace kiln::cache {

using FilesystemType = std::function<std::optional<std::uint64_t>(const std::filesystem::path&)>;

// kRefused where a store may not be in the directory, which exists: where everybody or another user can write, and on a network file
// system, whose locks and shared memory SQLite cannot rely on.
std::expected<void, Error> MayHoldStore(const std::filesystem::path& directory, const FilesystemType& type = {});

// Whether another process holds the store in the directory now.
bool IsHeld(const std::filesystem::path& directory);

// The directory of a store, held by one process at a time:
//
//   kiln.db, kiln.db-wal, kiln.db-shm   the database
//   lock                                locked while a process holds the directory; holds its number
//   open                                exists while a process holds it: found at the next start, it tells that the
//                                       last one ended without closing
//   kiln.db.corrupt-N (…-wal, …-shm)    set aside; the two newest are kept
class StoreDirectory {
 public:
  // Creates and locks the directory. kRefused as by MayHoldStore, when another process holds it, when its lock is no
  // ordinary file with one name, or when a file of the database is a symbolic link. One on a file system that is mounted
  // read-only can be held by several at once.
  static std::expected<StoreDirectory, Error> Hold(const std::filesystem::path& directory, const FilesystemType& type);

  // Gives up the lock. The mark of an open store stays unless it was closed with MarkClosed.
  ~StoreDirectory();
  StoreDirectory(StoreDirectory&& other) noexcept;
  StoreDirectory& operator=(StoreDirectory&&) = delete;

  bool writable() const { return writable_; }
  std::filesystem::path database() const { return directory_ / "kiln.db"; }
  std::uint64_t WalBytes() const;

  // Marks the store as open; whether the mark was there already.
  std::expected<bool, Error> MarkOpen();
  void MarkClosed();

  // Renames the database and what belongs to it, so that the next Open starts with an empty one. Nobody may have it
  // open. Returns the new path of the database file.
  std::expected<std::filesystem::path, Error> SetAside();

 private:
  StoreDirectory(std::filesystem::path directory, int lock, bool writable) : directory_(std::move(directory)), lock_(lock), writable_(writable) {}

  std::filesystem::path directory_;
  int lock_;  // -1: none
  bool writable_;
};

}  // namespace kiln::cache
