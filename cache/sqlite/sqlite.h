// SPDX-License-Identifier: Apache-2.0
//
// SQLite, as much of it as the store needs. The library's own header is seen by sqlite.cc alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <expected>
#include <filesystem>
#include <memory>
#include <string>
#include <string_view>

#include "cache/error.h"

struct sqlite3;
struct sqlite3_stmt;

namespace kiln::cache::sqlite {

// A prepared statement. It must be destroyed before its connection.
class Statement {
 public:
  Statement() = default;
  explicit operator bool() const { return handle_ != nullptr; }

 private:
  friend class Connection;
  friend class Query;
  struct Finalize {
    void operator()(sqlite3_stmt* statement) const;
  };
  std::unique_ptr<sqlite3_stmt, Finalize> handle_;
};

// One execution of a statement; its destructor ends it, and with it the read transaction it may hold. Parameters are
// numbered from 1, columns from 0.
class Query {
 public:
  explicit Query(Statement& statement) : statement_(statement.handle_.get()) {}
  ~Query();
  Query(const Query&) = delete;
  Query& operator=(const Query&) = delete;

  Query& Bind(int parameter, std::int64_t value);

  // Binds a blob. The bytes are not copied: they must stay until the query is destroyed.
  Query& Bind(int parameter, std::string_view bytes);

  // True for a row, false at the end.
  std::expected<bool, Error> Step();

  // Steps to the end.
  std::expected<void, Error> Run();

  // Columns of the current row; their bytes last until the next step.
  std::int64_t Integer(int column) const;
  std::string_view Blob(int column) const;
  bool IsNull(int column) const;

 private:
  sqlite3_stmt* const statement_;
  int bind_result_ = 0;
};

// kRead is for a file that nobody writes: it takes no locks, needs no shared memory, and reads a log that was left behind. It is one
// connection's alone from PRAGMA locking_mode = EXCLUSIVE on, without which such a log cannot be read.
enum class OpenMode : std::uint8_t { kRead, kWrite, kCreate };
enum class CheckpointMode : std::uint8_t { kPassive, kTruncate };

// A connection, for one thread at a time; only Interrupt may come from another.
//
// Errors: kDamaged when the file is no database or its structure is broken, kFull when there is no room or
// nothing may be written, kInvalid for a
// value that cannot be stored, kUnreachable for everything else (I/O, locks, interrupted).
class Connection {
 public:
  static std::expected<Connection, Error> Open(const std::filesystem::path& path, OpenMode mode);

  std::expected<Statement, Error> Prepare(std::string_view sql);

  // Runs statements that are separated by semicolons, ignoring their rows.
  std::expected<void, Error> Execute(const std::string& sql);

  // The first column of the first row.
  std::expected<std::int64_t, Error> Integer(std::string_view sql);
  std::expected<std::string, Error> Text(std::string_view sql);

  // How long to wait for a lock that another connection holds.
  void SetBusyTimeout(std::chrono::milliseconds timeout);

  // Rows changed by the last insert, update or delete.
  std::int64_t Changes() const;

  bool InTransaction() const;

  // Whether all of the write-ahead log was copied back; false when a reader or writer was in the way.
  std::expected<bool, Error> Checkpoint(CheckpointMode mode);

  // Makes the running statement of whatever thread end with kUnreachable.
  void Interrupt();

 private:
  struct Close {
    void operator()(sqlite3* connection) const;
  };
  explicit Connection(sqlite3* handle) : handle_(handle) {}
  std::unique_ptr<sqlite3, Close> handle_;
};

}  // namespace kiln::cache::sqlite
