// SPDX-License-Identifier: Apache-2.0
#pragma once

namespace kiln::server {

// `kilnd token new|list|revoke`: the file of bearer tokens. A kilnd that runs sees the change within a second or two. argv[0] is
// "token". Returns the exit status.
int TokenCommand(int argc, char** argv);

}  // namespace kiln::server
