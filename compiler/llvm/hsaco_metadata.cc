// SPDX-License-Identifier: Apache-2.0
//
// LLVM's "User Guide for AMDGPU Backend", code object V5: the metadata note is MessagePack; NAME.kd is a kernel's
// descriptor. For what EmitHsaco just made: a malformed ELF is an error, but LLVM's MessagePack reader traps on
// malformed metadata.
#include <cstring>

#include "compiler/llvm/emit.h"

#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wunused-parameter"
#include <llvm/BinaryFormat/MsgPackDocument.h>
#include <llvm/Object/ELF.h>
#include <llvm/Support/AMDHSAKernelDescriptor.h>
#pragma GCC diagnostic pop

namespace kiln::llvm_ir {
namespace {

namespace hsa = llvm::amdhsa;
namespace msgpack = llvm::msgpack;
using Elf = llvm::object::ELF64LE;
using ElfFile = llvm::object::ELFFile<Elf>;

std::string Text(llvm::Error error) { return "not a code object: " + llvm::toString(std::move(error)); }

// The metadata note's bytes; empty where there is none.
std::expected<std::string, std::string> MetadataNote(const ElfFile& elf) {
  auto headers = elf.program_headers();
  if (!headers) return std::unexpected(Text(headers.takeError()));
  for (const auto& header : *headers) {
    if (header.p_type != llvm::ELF::PT_NOTE) continue;
    llvm::Error error = llvm::Error::success();
    std::string found;
    for (const auto& note : elf.notes(header, error)) {
      if (note.getType() == llvm::ELF::NT_AMDGPU_METADATA && note.getName() == "AMDGPU") {
        found = note.getDescAsStringRef(header.p_align).str();
      }
    }
    if (error) return std::unexpected(Text(std::move(error)));
    if (!found.empty()) return found;
  }
  return std::unexpected("not a code object: it has no AMDGPU metadata note");
}

uint32_t Number(msgpack::MapDocNode& map, const char* key) {
  const auto found = map.find(llvm::StringRef(key));
  if (found == map.end()) return 0;
  if (found->second.getKind() == msgpack::Type::UInt) return uint32_t(found->second.getUInt());
  return found->second.getKind() == msgpack::Type::Int ? uint32_t(found->second.getInt()) : 0;
}

std::string String(msgpack::MapDocNode& map, const char* key) {
  const auto found = map.find(llvm::StringRef(key));
  if (found == map.end() || found->second.getKind() != msgpack::Type::String) return "";
  return found->second.getString().str();
}

// The address of the dynamic symbol `name`.
llvm::Expected<uint64_t> Address(const ElfFile& elf, const std::string& name) {
  auto sections = elf.sections();
  if (!sections) return sections.takeError();
  for (const auto& section : *sections) {
    if (section.sh_type != llvm::ELF::SHT_DYNSYM) continue;
    auto symbols = elf.symbols(&section);
    if (!symbols) return symbols.takeError();
    auto strings = elf.getStringTableForSymtab(section);
    if (!strings) return strings.takeError();
    for (const auto& symbol : *symbols) {
      auto symbol_name = symbol.getName(*strings);
      if (!symbol_name) return symbol_name.takeError();
      if (*symbol_name == name) return symbol.st_value;
    }
  }
  return llvm::createStringError("it has no kernel descriptor " + name);
}

std::expected<hsa::kernel_descriptor_t, std::string> Descriptor(const ElfFile& elf, const std::string& name) {
  auto address = Address(elf, name);
  if (!address) return std::unexpected(Text(address.takeError()));
  auto place = elf.toMappedAddr(*address);
  if (!place) return std::unexpected(Text(place.takeError()));
  hsa::kernel_descriptor_t descriptor;
  if (*place < elf.base() || *place > elf.end() || size_t(elf.end() - *place) < sizeof descriptor) {
    return std::unexpected("not a code object: descriptor " + name + " is outside the file");
  }
  std::memcpy(&descriptor, *place, sizeof descriptor);
  return descriptor;
}

std::expected<v1::KernelResources, std::string> Kernel(const ElfFile& elf, msgpack::MapDocNode& map) {
  const auto descriptor = Descriptor(elf, String(map, ".symbol"));
  if (!descriptor) return std::unexpected(descriptor.error());
  const std::string name = String(map, ".name");
  if (descriptor->kernarg_size != Number(map, ".kernarg_segment_size") ||
      descriptor->group_segment_fixed_size != Number(map, ".group_segment_fixed_size")) {
    return std::unexpected("metadata and kernel descriptor of " + name + " disagree");
  }
  v1::KernelResources kernel;
  kernel.set_entry(name);
  kernel.set_shared_bytes(descriptor->group_segment_fixed_size);
  kernel.set_registers(Number(map, ".vgpr_count"));
  kernel.set_scalar_registers(Number(map, ".sgpr_count"));
  kernel.set_spill_bytes(4 * Number(map, ".vgpr_spill_count"));
  kernel.set_local_bytes(descriptor->private_segment_fixed_size);
  return kernel;
}

}  // namespace

std::expected<std::vector<v1::KernelResources>, std::string> ReadHsacoResources(const std::string& hsaco) {
  auto elf = ElfFile::create(hsaco);
  if (!elf) return std::unexpected(Text(elf.takeError()));
  const auto note = MetadataNote(*elf);
  if (!note) return std::unexpected(note.error());
  msgpack::Document document;
  if (!document.readFromBlob(*note, false) || !document.getRoot().isMap()) {
    return std::unexpected("the code object's metadata is malformed");
  }
  auto& root = document.getRoot().getMap();
  const auto kernels = root.find(llvm::StringRef("amdhsa.kernels"));
  std::vector<v1::KernelResources> resources;
  if (kernels == root.end() || !kernels->second.isArray()) return resources;
  for (msgpack::DocNode& node : kernels->second.getArray()) {
    if (!node.isMap()) return std::unexpected("the code object's metadata is malformed");
    auto kernel = Kernel(*elf, node.getMap());
    if (!kernel) return std::unexpected(kernel.error());
    resources.push_back(std::move(*kernel));
  }
  return resources;
}

}  // namespace kiln::llvm_ir
