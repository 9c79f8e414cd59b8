// SPDX-License-Identifier: Apache-2.0
//
// Compiles a file through kilnd and writes the code beside it:  kiln-example-client program.kiln cuda:sm_90a
#include <fstream>
#include <iostream>
#include <iterator>

#include "clients/cpp/client.h"

int main(int argc, char** argv) {
  if (argc != 3) {
    std::cerr << "usage: kiln-example-client FILE TARGET\n";
    return 2;
  }
  std::ifstream file(argv[1], std::ios::binary);
  const std::string module{std::istreambuf_iterator<char>(file), {}};

  auto client = kiln::Client::Connect();
  if (!client) {
    std::cerr << client.error().message << '\n';
    return 1;
  }
  const auto compiled = client->Compile({.module = module, .target = argv[2]}, [](std::string_view stage) { std::cerr << stage << '\n'; });
  if (!compiled) {
    std::cerr << compiled.error().message << '\n';
    for (const kiln::Diagnostic& d : compiled.error().diagnostics) {
      std::cerr << "line " << d.line << ": " << d.message << "\n  " << d.hint << '\n';
    }
    return 1;
  }
  const std::string out = std::string(argv[1]) + (compiled->kind == kiln::CodeKind::kPtx ? ".ptx" : ".hsaco");
  std::ofstream(out, std::ios::binary) << compiled->code;
  std::cout << out << ": " << compiled->code.size() << " bytes, " << (compiled->origin == kiln::Origin::kCompiled ? "compiled" : "known") << '\n';
  return 0;
}
