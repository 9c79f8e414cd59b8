// SPDX-License-Identifier: Apache-2.0
//
// kiln_conformance_forms: the names of all forms. kiln_conformance_forms DIR SEED [STEP]: each instruction form's (or each STEP-th's) PTX,
// operands and emulated results, and forms.json, which says how to launch and compare them. `conformance` runs it.
#include <algorithm>
#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iostream>

#include "compiler/llvm/emit.h"
#include "tests/emulator/instructions/conformance_kernel.h"

namespace kiln::emulator::conformance {
namespace {

void WriteFile(const std::string& path, const void* data, size_t bytes) {
  std::ofstream(path, std::ios::binary).write(static_cast<const char*>(data), std::streamsize(bytes));
}

template <typename Array>
std::string List(const Array& values, size_t count) {
  std::string text = "[";
  for (size_t i = 0; i < count; ++i) text += (i == 0 ? "" : ", ") + std::to_string(values[i]);
  return text + "]";
}

// Strides as the driver takes them.
std::string MapJson(const TensorMapSpec& given, bool of_results) {
  TensorMapSpec spec = given;
  uint64_t stride = BytesOf(spec.type);
  for (uint32_t i = 0; i + 1 < spec.rank; ++i) {
    stride *= spec.dims[i];
    if (spec.strides[i] == 0) spec.strides[i] = stride;
    stride = spec.strides[i];
  }
  return "{\"of_results\": " + std::string(of_results ? "true" : "false") + ", \"type\": " + std::to_string(int(spec.type)) +
         ", \"dims\": " + List(spec.dims, spec.rank) + ", \"strides\": " + List(spec.strides, spec.rank - 1) +
         ", \"box\": " + List(spec.box, spec.rank) + ", \"element_strides\": " + List(spec.element_strides, spec.rank) +
         ", \"swizzle\": " + std::to_string(int(spec.swizzle)) + ", \"fill\": " + std::to_string(int(spec.fill)) + "}";
}

std::string Exactly(double v) {
  char text[32];
  return {text, std::to_chars(text, text + sizeof text, v).ptr};
}

std::string Json(const Form& form, double tolerance, const std::string& file) {
  std::string text = "{\"name\": \"" + form.name + "\", \"file\": \"" + file + "\", \"threads\": " + std::to_string(form.threads) +
                     ", \"blocks\": " + std::to_string(form.blocks) + ", \"faults\": " + (form.faults ? "true" : "false") +
                     ", \"shared_bytes\": " + std::to_string(form.shared_bytes) + ", \"result\": \"" + std::string(ir::Name(form.result)) +
                     "\", \"tolerance\": " + Exactly(tolerance);
  if (form.map) text += ", \"map\": " + MapJson(*form.map, form.map_out);
  return text + "}";
}

int Main(const std::string& folder, uint64_t seed, size_t step) {
  llvm_ir::InitializeTargets();
  const std::vector<Form> forms = AllForms();
  std::string list;
  for (size_t i = 0; i < forms.size(); i += step) {
    const auto made = Make(forms[i], seed + i);
    if (!made) {
      std::cerr << forms[i].name << ": " << made.error() << "\n";
      return 1;
    }
    const std::string file = std::to_string(i), path = folder + "/" + file;
    WriteFile(path + ".ptx", made->ptx.data(), made->ptx.size());
    WriteFile(path + ".in", made->input.data(), made->input.size() * 4);
    WriteFile(path + ".out", made->output.data(), made->output.size() * 4);
    list += (i == 0 ? "\n" : ",\n") + Json(forms[i], made->tolerance, file);
  }
  const std::string json = "{\"seed\": " + std::to_string(seed) + ", \"forms\": [" + list + "\n]}\n";
  WriteFile(folder + "/forms.json", json.data(), json.size());
  return 0;
}

}  // namespace
}  // namespace kiln::emulator::conformance

int main(int argc, char** argv) {
  if (argc == 1) {
    for (const auto& form : kiln::emulator::conformance::AllForms()) std::cout << form.name << "\n";
    return 0;
  }
  if (argc != 3 && argc != 4) {
    std::cerr << "usage: kiln_conformance_forms [DIR SEED [STEP]]\n";
    return 2;
  }
  const size_t step = argc == 4 ? std::max(std::strtoull(argv[3], nullptr, 10), 1ull) : 1;
  return kiln::emulator::conformance::Main(argv[1], std::strtoull(argv[2], nullptr, 10), step);
}
