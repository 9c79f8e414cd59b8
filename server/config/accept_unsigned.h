// SPDX-License-Identifier: Apache-2.0
//
// From whom Put takes results that no trusted key has sealed. Such a result is served to every caller of its tenant as what the
// program compiles to, on the word of who put it, whose name its seal then carries (Provenance.put_by).
#pragma once

namespace kiln::server {

enum class AcceptUnsigned { kOfNobody, kOfAdmins, kOfAnybody };

}  // namespace kiln::server
