// SPDX-License-Identifier: Apache-2.0
//
// Messages over a stream socket, each as a 4-byte little-endian length and a serialized protobuf. The peer is not trusted:
// a length over the limit or bytes that are no such message end the conversation.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <utility>

#include <google/protobuf/message_lite.h>

#include "clients/common/unique_fd.h"
#include "server/system/deadline.h"

namespace kiln::server {

class Channel {
 public:
  enum class End {
    kOk,
    kClosed,  // the peer is gone
    kDeadline,
    kWoken,    // the wake descriptor became readable
    kInvalid,  // what the peer sent is no message, or longer than the limit
  };

  // What ends a wait before the peer does. Neither: wait as long as the peer lives.
  struct Wait {
    int wake_fd = -1;
    std::optional<Deadline> until;
  };

  static constexpr std::size_t kMaxMessage = std::size_t{256} << 20;

  // One that takes descriptors keeps the last that came, for TakeDescriptor; for another the system throws them away.
  enum class Descriptors { kRefuse, kTake };
  explicit Channel(UniqueFd fd, Descriptors descriptors = Descriptors::kRefuse);

  // `descriptor`, where there is one, travels beside the first byte; it remains the caller's.
  End Send(const google::protobuf::MessageLite& message, const Wait& wait, int descriptor = -1);
  End Receive(google::protobuf::MessageLite& message, const Wait& wait);
  UniqueFd TakeDescriptor() { return std::move(descriptor_); }

  // True when the peer has closed its end; never waits.
  bool PeerGone() const;

 private:
  End WaitFor(short events, const Wait& wait) const;
  End Fill(std::size_t size, const Wait& wait);
  std::ptrdiff_t Read(char* data, std::size_t size);

  UniqueFd fd_;
  const Descriptors descriptors_;
  UniqueFd descriptor_;
  std::string in_;  // what was read and not yet taken
};

}  // namespace kiln::server
