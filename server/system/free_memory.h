// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kiln::server {

// Gives the system back what the allocator keeps of freed memory, where that is much: after a burst of large requests, pieces that still live
// lie between those that were freed, and glibc returns the ends of its heaps by itself alone. Milliseconds, in which other threads may wait for
// the allocator: for a quiet moment, or now and then.
void ReturnFreeMemory();

}  // namespace kiln::server
