// SPDX-License-Identifier: Apache-2.0
//
// How many bytes came in on each connection. gRPC does not report a message before all of it has arrived, and its resource quota covers all
// connections together, not each one. But gRPC receives everything through recvmsg(2) of the C library, and an executable's definition of a
// function takes precedence over a library's. So received_bytes.cc defines recvmsg, counts the bytes, and calls the kernel.
//
// Threads. Any; a count is one relaxed addition for each call of recvmsg.
#pragma once

#include <cstdint>

namespace kiln::server {

// Bytes received on descriptor `fd` since this process began, by whichever connections had it; 0 for a number that no descriptor has.
// Descriptors beyond the first million share counts.
std::uint64_t BytesReceived(int fd);

}  // namespace kiln::server
