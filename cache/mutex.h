// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <chrono>
#include <condition_variable>
#include <mutex>

#include "cache/thread_annotations.h"

namespace kiln::cache {

// std::mutex with the annotations that libstdc++ lacks.
class KILN_CAPABILITY("mutex") Mutex {
 public:
  void Lock() KILN_ACQUIRE() { mutex_.lock(); }
  void Unlock() KILN_RELEASE() { mutex_.unlock(); }

 private:
  friend class CondVar;
  std::mutex mutex_;
};

// Holds the mutex to the end of its scope. Unlock lets go of it earlier, and Lock takes it again.
class KILN_SCOPED_CAPABILITY MutexLock {
 public:
  explicit MutexLock(Mutex& mutex) KILN_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~MutexLock() KILN_RELEASE() {
    if (held_) mutex_.Unlock();
  }
  MutexLock(const MutexLock&) = delete;
  MutexLock& operator=(const MutexLock&) = delete;

  void Lock() KILN_ACQUIRE() {
    mutex_.Lock();
    held_ = true;
  }
  void Unlock() KILN_RELEASE() {
    held_ = false;
    mutex_.Unlock();
  }

 private:
  Mutex& mutex_;
  bool held_ = true;
};

// A mutex that its holder may lock again, for callbacks that run under it.
class KILN_CAPABILITY("mutex") RecursiveMutex {
 public:
  void Lock() KILN_ACQUIRE() { mutex_.lock(); }
  void Unlock() KILN_RELEASE() { mutex_.unlock(); }

 private:
  friend class RecursiveCondVar;
  std::recursive_mutex mutex_;
};

class KILN_SCOPED_CAPABILITY RecursiveMutexLock {
 public:
  explicit RecursiveMutexLock(RecursiveMutex& mutex) KILN_ACQUIRE(mutex) : mutex_(mutex) { mutex_.Lock(); }
  ~RecursiveMutexLock() KILN_RELEASE() { mutex_.Unlock(); }
  RecursiveMutexLock(const RecursiveMutexLock&) = delete;
  RecursiveMutexLock& operator=(const RecursiveMutexLock&) = delete;

 private:
  RecursiveMutex& mutex_;
};

// A wait without a condition may wake for no reason, so call it in a loop. A condition is evaluated under the mutex; the analysis checks
// its reads if it is written as `[&]() KILN_REQUIRES(mutex_) { … }`.
class CondVar {
 public:
  void Wait(Mutex& mutex) KILN_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock);
    lock.release();
  }
  // False when the time ran out. The kernel measures it, so it is real time: a test that moves its clock must also wake who waits.
  bool WaitFor(Mutex& mutex, std::chrono::microseconds timeout) KILN_REQUIRES(mutex) {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const auto status = condition_.wait_for(lock, timeout);
    lock.release();
    return status == std::cv_status::no_timeout;
  }

  // The analysis cannot see that the condition's mutex is this one.
  template <class Condition>
  void Wait(Mutex& mutex, Condition condition) KILN_REQUIRES(mutex) KILN_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock, condition);
    lock.release();
  }
  // What the condition says at the end.
  template <class Condition>
  bool WaitFor(Mutex& mutex, std::chrono::microseconds timeout, Condition condition) KILN_REQUIRES(mutex) KILN_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const bool met = condition_.wait_for(lock, timeout, condition);
    lock.release();
    return met;
  }

  void NotifyOne() { condition_.notify_one(); }
  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable condition_;
};

// For a thread that holds a RecursiveMutex once.
class RecursiveCondVar {
 public:
  template <class Condition>
  void Wait(RecursiveMutex& mutex, Condition condition) KILN_REQUIRES(mutex) KILN_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    condition_.wait(lock, condition);
    lock.release();
  }
  template <class Condition>
  bool WaitFor(RecursiveMutex& mutex, std::chrono::microseconds timeout, Condition condition) KILN_REQUIRES(mutex) KILN_NO_THREAD_SAFETY_ANALYSIS {
    std::unique_lock lock(mutex.mutex_, std::adopt_lock);
    const bool met = condition_.wait_for(lock, timeout, condition);
    lock.release();
    return met;
  }

  void NotifyAll() { condition_.notify_all(); }

 private:
  std::condition_variable_any condition_;
};

}  // namespace kiln::cache
