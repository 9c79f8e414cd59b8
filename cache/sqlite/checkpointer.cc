// SPDX-License-Identifier: Apache-2.0
#include "cache/sqlite/checkpointer.h"

#include <algorithm>
#include <chrono>
#include <utility>

namespace kiln::cache {
namespace {

constexpr auto kPause = std::chrono::seconds(1);

}  // namespace

void Checkpointer::Start() {
  thread_ = std::thread([this] { Run(); });
}

bool Checkpointer::Stop() {
  {
    MutexLock lock(mutex_);
    stopping_ = true;
  }
  work_.NotifyAll();
  if (thread_.joinable()) thread_.join();
  return check_pending_;
}

void Checkpointer::Committed(std::uint64_t bytes) {
  bool enough = false;
  {
    MutexLock lock(mutex_);
    pending_bytes_ += bytes;
    enough = pending_bytes_ >= context_.options.checkpoint_bytes;
  }
  if (enough) work_.NotifyOne();
}

void Checkpointer::Run() {
  if (check_pending_) CheckStructure();
  while (WaitForCommits()) Checkpoint();
}

// True when a checkpoint is due, false when it is time to end.
bool Checkpointer::WaitForCommits() {
  MutexLock lock(mutex_);
  std::uint64_t before = 0;
  while (!stopping_ && pending_bytes_ < context_.options.checkpoint_bytes) {
    before = pending_bytes_;
    const bool woken = work_.WaitFor(mutex_, kPause);
    if (!woken && pending_bytes_ != 0 && pending_bytes_ == before) break;
  }
  pending_bytes_ = 0;
  return !stopping_;
}

void Checkpointer::CheckStructure() {
  auto lease = context_.readers.Acquire(ReaderPool::Work::kLong);
  if (!lease || !*lease) return;
  auto problem = (**lease)->QuickCheck();
  if (!problem) {
    (*lease)->Failed(problem.error());
    return;
  }
  check_pending_ = false;
  if (!problem->empty()) (*lease)->Failed({ErrorCode::kDamaged, "checked after an unclean end: " + *problem});
}

void Checkpointer::Checkpoint() {
  auto lease = context_.readers.Acquire(ReaderPool::Work::kShort);
  if (!lease || !*lease) return;
  auto complete = (**lease)->Checkpoint(sqlite::CheckpointMode::kPassive);
  if (complete && context_.directory.WalBytes() > truncate_above_) complete = Truncate(**lease);
  if (!complete) {
    ++context_.counters.errors;
    (*lease)->Failed(complete.error());
  }
  // What is left, because of a reader, a later commit or a full disk, is tried again after a pause.
  if (complete && *complete) return;
  MutexLock lock(mutex_);
  pending_bytes_ = std::max<std::uint64_t>(pending_bytes_, 1);
}

std::expected<bool, Error> Checkpointer::Truncate(ReaderPool::Lease& reader) {
  {
    MutexLock lock(mutex_);
    truncating_ = true;
  }
  auto truncated = reader->Checkpoint(sqlite::CheckpointMode::kTruncate);
  {
    MutexLock lock(mutex_);
    truncating_ = false;
  }
  truncated_.NotifyAll();
  const bool done = truncated && *truncated;
  truncate_above_ = context_.options.wal_limit + (done ? 0 : context_.directory.WalBytes());
  return truncated;
}

void Checkpointer::AwaitTruncation() {
  MutexLock lock(mutex_);
  while (truncating_) truncated_.Wait(mutex_);
}

}  // namespace kiln::cache
