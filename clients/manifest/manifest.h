// SPDX-License-Identifier: Apache-2.0
//
// A manifest as a file, in one of two forms. The binary one is a serialized kiln.v1.Manifest. The text form is for people and reads back: each
// request is a line of kiln.v1.CompileRequest in protobuf's text, and its program, indented, in the text form of the IR:
//
//   kiln manifest 1
//
//   request target: "cuda:sm_90a" options { fast_math: true }
//     kiln 1
//     func @scale(%A: global f16[64]) {
//       …
//     }
//
// "refused" in the place of "request": the compiler refused it where it was recorded.
#pragma once

#include <expected>
#include <string>
#include <string_view>
#include <vector>

#include "kiln/v1/manifest.pb.h"

namespace kiln {

enum class ManifestForm : std::uint8_t { kNone, kBinary, kText };

// By its first bytes; kNone: something else, a program perhaps.
ManifestForm FormOfManifest(std::string_view bytes);

// Of either form. Bytes may come from anyone; the error says where they are wrong.
std::expected<v1::Manifest, std::string> ReadManifest(std::string_view bytes);
std::string WriteManifest(const v1::Manifest& manifest, ManifestForm form);

// What of a request decides its result: who waits for it, and how, is not part of it.
v1::CompileRequest AsRecorded(v1::CompileRequest request);

// Each request once, whatever the order of `entries`. Two are one if the compiler's key for both is the same: they differ in names, or in the
// form of the program.
v1::Manifest MakeManifest(const std::vector<v1::ManifestEntry>& entries);

// The name that the program's author gave it; empty where there is none, or no program.
std::string ProgramName(std::string_view module);

}  // namespace kiln
