// SPDX-License-Identifier: Apache-2.0
//
// Manifests as files. Not part of the client's interface.
#pragma once

#include <cstddef>
#include <expected>
#include <filesystem>
#include <vector>

#include "clients/cpp/client.h"
#include "clients/manifest/manifest.h"

namespace kiln {

// The requests of a manifest of either form, or of a recording's folder.
std::expected<std::vector<v1::ManifestEntry>, Error> ReadManifestFile(const std::filesystem::path& file);

// Whether AddToManifestFile can add to it.
std::expected<void, Error> CheckManifestFile(const std::filesystem::path& file);

// Adds the entries to those of the file, if it is there, and replaces it by a complete one of the same form; returns how many it has then. Two
// that do so at once wait for each other.
std::expected<std::size_t, Error> AddToManifestFile(const std::filesystem::path& file, std::vector<v1::ManifestEntry> entries);

// Replaces the file.
std::expected<void, Error> WriteManifestFile(const std::filesystem::path& file, const v1::Manifest& manifest, ManifestForm form);

}  // namespace kiln
