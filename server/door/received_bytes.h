// SPDX-License-Identifier: Apache-2.0
//
// How many bytes came in on each connection. gRPC says nothing of a message before it has all of it, and its resource quota says what all
// connections hold together, never who. But everything that it receives passes through one function of the C library, recvmsg(2), and the
// definition of an executable stands before that of any library: received_bytes.cc defines it, counts, and asks the kernel.
//
// Threads. Any; a count is one relaxed addition for each call of recvmsg.
#pragma once

#include <cstdint>

namespace kiln::server {

// Of the descriptor `fd` since this process began, whatever connections had it; 0 for a number that none has. Descriptors beyond the first
// million share counts.
std::uint64_t BytesReceived(int fd);

}  // namespace kiln::server
