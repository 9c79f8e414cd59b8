// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <string>

#include "server/testing/fake_orders.h"

namespace kiln::server::testing {

// Tries it, by system calls alone; whether it worked. `ptxas`: the program that a worker may start.
bool Escapes(Escape escape, const std::string& ptxas);

}  // namespace kiln::server::testing
