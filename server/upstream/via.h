// SPDX-License-Identifier: Apache-2.0
//
// The way of a compile through kilnds that forward it, so that none goes in circles. Each kilnd that forwards writes a name of its own, made
// at its start, behind those that it was sent (metadata `kiln-via`). A kilnd forwards nothing that bears its name already, nor what has come
// through kMostHops others.
//
// Lookups need none of this: a Fetch that comes from a kilnd is answered from what this host has and shares, and goes no further.
#pragma once

#include <cstddef>
#include <string>
#include <string_view>

#include <grpcpp/server_context.h>

namespace kiln::server {

inline constexpr const char* kViaHeader = "kiln-via";
inline constexpr std::size_t kMostHops = 4;

// 16 hexadecimal digits, from the kernel's random numbers.
std::string NewViaName();

// What a call's metadata says; empty: it comes from a client. One that no kilnd can have written counts as full.
std::string ViaOf(const grpc::ServerContextBase& context);
std::string ReadVia(std::string_view sent);

bool HasName(std::string_view via, std::string_view name);
std::size_t Hops(std::string_view via);

// With a name more.
std::string Extended(std::string_view via, std::string_view name);

}  // namespace kiln::server
