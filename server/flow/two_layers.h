// SPDX-License-Identifier: Apache-2.0
//
// Results have two layers: PTX, which is kept under a key that names no ptxas, and the same with the cubin that a ptxas makes of it, which is
// kept under a key that names that ptxas. Another ptxas, or a host that got the PTX from elsewhere, makes only the cubin.
#pragma once

#include <optional>
#include <string_view>

#include "cache/digest.h"
#include "kiln/v1/compile.pb.h"
#include "server/queue/admission.h"

namespace kiln::server {

// Adds to a reply with PTX what ptxas made of it: the cubin, each kernel's resources, and warnings behind those of the compiler.
void AddAssembled(v1::Assembled&& assembled, v1::CompileReply& reply);

bool IsRefused(const JobOutcome& outcome);

// As a label has it (reply.h): empty where there is none.
std::string_view PortableIn(const std::optional<cache::Digest>& key);

// What is kept of a request beside its result: the program, so that a later compiler can compile it anew (Maintenance::Hot), unless it is large.
std::string_view ProgramToKeep(const v1::CompileRequest& request);

}  // namespace kiln::server
