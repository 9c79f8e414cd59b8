// SPDX-License-Identifier: Apache-2.0
//
// The folder that the clients of a recording fill ($KILN_RECORD). Each request is a file whose name is the SHA-256 of its bytes, which takes its
// name once it is complete. So processes and threads need not know of each other, a client that is killed loses nothing that it has asked,
// and what is asked a thousand times is kept once. A file NAME.refused says that the compiler refused the request.
//
// Why clients write, and no proxy listens in the place of the daemon:
//   - A client whose address stands in its code, or that speaks TLS to another host, goes past a proxy.
//   - kilnd knows callers of its socket by their user. Through a proxy all would be the recorder's.
//   - `kiln compile --local` asks no daemon.
//   - What finds no daemon is recorded as well.
// What it costs: each client must do it (there are two, in Python and in C++), and a child whose environment is emptied is not seen; a proxy
// would not see that one either. A forked child writes as its parent does. A process of another user cannot write to the folder: its
// requests fail and say so, since a recording with a hole would be noticed only where a kernel is missing.
#pragma once

#include <expected>
#include <filesystem>
#include <string>
#include <vector>

#include "kiln/v1/manifest.pb.h"

namespace kiln {

// Notes a request; does nothing where the folder is gone, which is how a recording ends for those who outlive it. A request that asks to be
// explained is not noted: its result is kept nowhere. The error says why it cannot be noted.
std::expected<void, std::string> NoteRequest(const std::filesystem::path& folder, const v1::CompileRequest& request);
// And that the compiler refused it.
std::expected<void, std::string> NoteRefusal(const std::filesystem::path& folder, const v1::CompileRequest& request);

// What was noted so far.
std::expected<std::vector<v1::ManifestEntry>, std::string> ReadFolder(const std::filesystem::path& folder);

}  // namespace kiln
