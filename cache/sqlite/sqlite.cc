// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/sqlite.h"

#include <fmt/format.h>
#include <sqlite3.h>

#include <cerrno>
#include <string>
#include <system_error>

#include "cache/try.h"

namespace kiln::cache::sqlite {
namespace {

ErrorCode CodeOf(sqlite3* connection, int result) {
  switch (result & 0xff) {
    case SQLITE_CORRUPT:
    case SQLITE_NOTADB: return ErrorCode::kDamaged;
    case SQLITE_FULL:
    case SQLITE_READONLY:  // a file system that was remounted
      return ErrorCode::kFull;
    case SQLITE_IOERR: {
      // Growing the shared-memory index, or a journal, on a full disk is an I/O error to SQLite.
      const int system = connection ? sqlite3_system_errno(connection) : 0;
      return system == ENOSPC || system == EDQUOT ? ErrorCode::kFull : ErrorCode::kUnreachable;
    }
    case SQLITE_TOOBIG:
    case SQLITE_CONSTRAINT:
    case SQLITE_MISMATCH: return ErrorCode::kInvalid;
    default: return ErrorCode::kUnreachable;
  }
}

std::unexpected<Error> FailWith(sqlite3* connection, int result) {
  const char* detail = connection ? sqlite3_errmsg(connection) : sqlite3_errstr(result);
  return Fail(CodeOf(connection, result), fmt::format("sqlite: {} (result {})", detail, result));
}

// The URI of a file that nobody writes. SQLite opens a file without its write-ahead log only if it is declared immutable, and then does not
// read a log.
std::string ReadOnlyUri(const std::filesystem::path& path) {
  std::string uri = path.is_absolute() ? "file://" : "file:";  // with an authority, an empty one
  for (const char c : path.native()) {
    if (c == '%' || c == '?' || c == '#') {
      uri += fmt::format("%{:02X}", static_cast<unsigned char>(c));
    } else {
      uri += c;
    }
  }
  std::error_code none;
  const auto log = std::filesystem::file_size(path.native() + "-wal", none);
  return uri + (none || log == 0 ? "?immutable=1" : "?vfs=unix-none");
}

}  // namespace

void Statement::Finalize::operator()(sqlite3_stmt* statement) const { sqlite3_finalize(statement); }

Query::~Query() {
  sqlite3_reset(statement_);
  sqlite3_clear_bindings(statement_);
}

Query& Query::Bind(int parameter, std::int64_t value) {
  if (const int result = sqlite3_bind_int64(statement_, parameter, value)) bind_result_ = result;
  return *this;
}

Query& Query::Bind(int parameter, std::string_view bytes) {
  // A null pointer would bind NULL and not the empty blob.
  const char* data = bytes.data() ? bytes.data() : "";
  if (const int result = sqlite3_bind_blob64(statement_, parameter, data, bytes.size(), SQLITE_STATIC)) {
    bind_result_ = result;
  }
  return *this;
}

std::expected<bool, Error> Query::Step() {
  if (bind_result_ != SQLITE_OK) return FailWith(nullptr, bind_result_);
  const int result = sqlite3_step(statement_);
  if (result == SQLITE_ROW) return true;
  if (result == SQLITE_DONE) return false;
  return FailWith(sqlite3_db_handle(statement_), result);
}

std::expected<void, Error> Query::Run() {
  for (;;) {
    KILN_ASSIGN_OR_RETURN(const bool row, Step());
    if (!row) return {};
  }
}

std::int64_t Query::Integer(int column) const { return sqlite3_column_int64(statement_, column); }

std::string_view Query::Blob(int column) const {
  const void* bytes = sqlite3_column_blob(statement_, column);
  if (bytes == nullptr) return {};
  return {static_cast<const char*>(bytes), static_cast<std::size_t>(sqlite3_column_bytes(statement_, column))};
}

bool Query::IsNull(int column) const { return sqlite3_column_type(statement_, column) == SQLITE_NULL; }

void Connection::Close::operator()(sqlite3* connection) const { sqlite3_close(connection); }

std::expected<Connection, Error> Connection::Open(const std::filesystem::path& path, OpenMode mode) {
  int flags = SQLITE_OPEN_NOMUTEX | SQLITE_OPEN_EXRESCODE;
  switch (mode) {
    case OpenMode::kRead: flags |= SQLITE_OPEN_READONLY | SQLITE_OPEN_URI; break;
    case OpenMode::kWrite: flags |= SQLITE_OPEN_READWRITE; break;
    case OpenMode::kCreate: flags |= SQLITE_OPEN_READWRITE | SQLITE_OPEN_CREATE; break;
  }
  sqlite3* handle = nullptr;
  const int result = sqlite3_open_v2(mode == OpenMode::kRead ? ReadOnlyUri(path).c_str() : path.c_str(), &handle, flags, nullptr);
  Connection connection(handle);
  if (result != SQLITE_OK) return FailWith(handle, result);
  return connection;
}

std::expected<Statement, Error> Connection::Prepare(std::string_view sql) {
  sqlite3_stmt* handle = nullptr;
  const int result = sqlite3_prepare_v3(handle_.get(), sql.data(), static_cast<int>(sql.size()), SQLITE_PREPARE_PERSISTENT, &handle, nullptr);
  if (result != SQLITE_OK) return FailWith(handle_.get(), result);
  Statement statement;
  statement.handle_.reset(handle);
  return statement;
}

std::expected<void, Error> Connection::Execute(const std::string& sql) {
  const int result = sqlite3_exec(handle_.get(), sql.c_str(), nullptr, nullptr, nullptr);
  if (result != SQLITE_OK) return FailWith(handle_.get(), result);
  return {};
}

std::expected<std::int64_t, Error> Connection::Integer(std::string_view sql) {
  KILN_ASSIGN_OR_RETURN(auto statement, Prepare(sql));
  Query query(statement);
  KILN_ASSIGN_OR_RETURN(const bool row, query.Step());
  return row ? query.Integer(0) : 0;
}

std::expected<std::string, Error> Connection::Text(std::string_view sql) {
  KILN_ASSIGN_OR_RETURN(auto statement, Prepare(sql));
  Query query(statement);
  KILN_ASSIGN_OR_RETURN(const bool row, query.Step());
  return row ? std::string(query.Blob(0)) : std::string();
}

void Connection::SetBusyTimeout(std::chrono::milliseconds timeout) { sqlite3_busy_timeout(handle_.get(), static_cast<int>(timeout.count())); }

std::int64_t Connection::Changes() const { return sqlite3_changes64(handle_.get()); }

bool Connection::InTransaction() const { return sqlite3_get_autocommit(handle_.get()) == 0; }

std::expected<bool, Error> Connection::Checkpoint(CheckpointMode mode) {
  int log_frames = 0;
  int copied_frames = 0;
  const int result = sqlite3_wal_checkpoint_v2(
      handle_.get(), nullptr, mode == CheckpointMode::kPassive ? SQLITE_CHECKPOINT_PASSIVE : SQLITE_CHECKPOINT_TRUNCATE, &log_frames, &copied_frames);
  if ((result & 0xff) == SQLITE_BUSY) return false;
  if (result != SQLITE_OK) return FailWith(handle_.get(), result);
  return log_frames == copied_frames;
}

void Connection::Interrupt() { sqlite3_interrupt(handle_.get()); }

}  // namespace kiln::cache::sqlite
