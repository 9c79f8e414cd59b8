// SPDX-License-Identifier: Apache-2.0
//
// A bundle (bundle.h) that stays open, and whose entries are read one by one.
//
// It is read with pread. An Entry owns its bytes, so a mapping would save nothing, and a file that is cut while it is mapped kills the process.
#pragma once

#include <sys/stat.h>

#include <cstdint>
#include <expected>
#include <filesystem>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "cache/digest.h"
#include "cache/error.h"

namespace kiln::cache {

class BundleFile {
 public:
  // kRefused where it is no ordinary file, or others than root and the user of this process could change it; kUnreachable where it cannot be
  // opened; kCorrupt or kInvalid where it does not begin as a bundle of this version. The message names it.
  static std::expected<BundleFile, Error> Open(const std::filesystem::path& path);
  ~BundleFile();
  BundleFile(BundleFile&& other) noexcept : path_(std::move(other.path_)), file_(std::exchange(other.file_, -1)), opened_(other.opened_) {}
  BundleFile& operator=(BundleFile&&) = delete;

  const std::filesystem::path& path() const { return path_; }

  struct Record {
    Digest key;
    std::uint64_t offset = 0;  // of the sealed entry
    std::uint32_t size = 0;
  };
  struct Contents {
    std::vector<Record> records;  // whose heads are whole, in the file's order
    std::uint64_t damaged = 0;    // those whose heads are not
    std::string trouble;          // why no more was read; empty: the file is whole but for these
  };
  // Reads the heads and no body, in time proportional to the entries.
  Contents Index() const;

  // kCorrupt where the file ends before, else kUnreachable.
  std::expected<std::string, Error> Read(std::uint64_t offset, std::uint64_t size) const;

  // False when somebody has written into it or cut it since.
  bool IsAsOpened() const;

 private:
  BundleFile(std::filesystem::path path, int file) : path_(std::move(path)), file_(file) {}
  std::uint64_t size() const { return static_cast<std::uint64_t>(opened_.st_size); }
  std::expected<void, Error> Check();
  std::string Walk(Contents& contents) const;
  void Note(std::uint64_t offset, std::uint64_t size, std::string_view start, Contents& contents) const;
  std::string TroubleAtEnd(std::uint64_t at, std::uint64_t records) const;

  std::filesystem::path path_;
  int file_;
  struct stat opened_{};
};

}  // namespace kiln::cache
