// SPDX-License-Identifier: Apache-2.0
//
// Memory for modules that are being decoded. A module that finds too little memory waits. Waiting modules are admitted in the order of
// their arrival, so that small ones cannot overtake a large one forever. A module that needs more than the total is decoded alone.
//
// Threads. Any; those of the heavy executor wait here. No deadlock: a module holds its memory while one thread decodes it, and that thread waits
// for nothing.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <list>
#include <optional>
#include <utility>

#include "cache/mutex.h"

namespace kiln::server {

class DecodingRoom {
 public:
  explicit DecodingRoom(std::size_t capacity) : capacity_(capacity) {}
  DecodingRoom(const DecodingRoom&) = delete;
  DecodingRoom& operator=(const DecodingRoom&) = delete;

  // A reservation of bytes, given back when this object ends.
  class Place {
   public:
    Place(DecodingRoom& room, std::size_t bytes) : room_(&room), bytes_(bytes) {}
    Place(Place&& other) noexcept : room_(std::exchange(other.room_, nullptr)), bytes_(other.bytes_) {}
    Place& operator=(Place&&) = delete;
    ~Place() {
      if (room_ != nullptr) room_->Leave(bytes_);
    }

   private:
    DecodingRoom* room_;
    std::size_t bytes_;
  };

  // Nothing once `given_up` says so, which is asked a few times a second.
  template <class GivenUp>
  std::optional<Place> Enter(std::size_t bytes, const GivenUp& given_up) {
    cache::MutexLock lock(mutex_);
    const auto turn = waiting_.insert(waiting_.end(), bytes);
    const auto fits = [&]() KILN_REQUIRES(mutex_) { return turn == waiting_.begin() && (used_ == 0 || used_ + bytes <= capacity_); };
    bool may = true;
    while (!left_.WaitFor(mutex_, kLook, fits) && (may = !given_up())) {
    }
    waiting_.erase(turn);
    if (may) used_ += bytes;
    lock.Unlock();
    left_.NotifyAll();  // the next one's turn
    if (!may) return std::nullopt;
    return std::optional<Place>(std::in_place, *this, bytes);
  }

  std::size_t waiting() const {
    cache::MutexLock lock(mutex_);
    return waiting_.size();
  }

 private:
  static constexpr std::chrono::milliseconds kLook{100};

  void Leave(std::size_t bytes) {
    {
      cache::MutexLock lock(mutex_);
      used_ -= bytes;
    }
    left_.NotifyAll();
  }

  const std::size_t capacity_;
  mutable cache::Mutex mutex_;
  cache::CondVar left_;
  std::list<std::size_t> waiting_ KILN_GUARDED_BY(mutex_);  // bytes that each wants, in the order of their turns
  std::size_t used_ KILN_GUARDED_BY(mutex_) = 0;
};

}  // namespace kiln::server
