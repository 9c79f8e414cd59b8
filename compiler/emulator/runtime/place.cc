// SPDX-License-Identifier: Apache-2.0
#include "compiler/emulator/runtime/place.h"

#include <algorithm>
#include <optional>
#include <vector>

#include "compiler/emulator/runtime/block.h"

namespace kiln::emulator {
namespace {

// The element that holds this byte of the buffer; absent: padding.
std::optional<std::vector<int64_t>> IndexOf(const SharedSlot& slot, int64_t byte) {
  if (slot.shape.empty() || slot.layout.rank() != int(slot.shape.size())) return std::nullopt;
  std::vector<int64_t> index(slot.shape.size(), 0);
  while (true) {
    const int64_t first = slot.layout.swizzle().Apply(slot.layout.AddressOf(index) * slot.element_bytes);
    if (byte >= first && byte < first + slot.element_bytes) return index;
    size_t d = index.size();
    while (d > 0 && ++index[d - 1] == slot.shape[d - 1]) index[--d] = 0;
    if (d == 0) return std::nullopt;
  }
}

std::string ElementText(const SharedSlot& slot, int64_t byte) {
  const auto index = IndexOf(slot, byte);
  if (!index) return slot.name + " + " + std::to_string(byte) + " bytes";
  if (slot.versions == 1) return slot.name + IndexText(*index);
  return slot.name + IndexText(std::span(*index).subspan(1)) + " of version " + std::to_string(index->front());
}

}  // namespace

std::string IndexText(std::span<const int64_t> index) {
  std::string text;
  for (const int64_t i : index) text += (text.empty() ? "[" : ", ") + std::to_string(i);
  return text + "]";
}

NamedPlace SharedPlace(const Block& owner, uint64_t offset, const Block& from, uint32_t location) {
  NamedPlace named{"shared memory at byte " + std::to_string(offset), {.address = offset, .elements = {}}};
  if (&owner != &from) named.text += " of block " + owner.IndexName();
  std::string buffers;
  const auto holds = [&](const SharedSlot& slot) { return offset >= slot.offset && offset - slot.offset < slot.bytes; };
  const bool known =
      location != 0 && std::ranges::any_of(owner.grid().slots, [&](const SharedSlot& slot) { return holds(slot) && slot.HasTo(location); });
  for (const SharedSlot& slot : owner.grid().slots) {
    if (!holds(slot) || (known && !slot.HasTo(location))) continue;
    const uint64_t byte = offset - slot.offset;
    buffers += (buffers.empty() ? "" : " or ") + ElementText(slot, int64_t(byte));
    named.place.elements.push_back({slot.name, byte / slot.element_bytes});
  }
  if (!buffers.empty()) named.text += " (" + buffers + ")";
  return named;
}

NamedPlace BeyondPlace(const Block& block, int64_t offset) {
  NamedPlace named{"shared memory at byte " + std::to_string(offset) + "; the block has " + std::to_string(block.grid().shared_bytes) + " bytes",
                   {.address = uint64_t(offset), .elements = {}}};
  const SharedSlot* nearest = nullptr;
  for (const SharedSlot& slot : block.grid().slots) {
    const int64_t end = int64_t{slot.offset} + slot.bytes;
    if (end <= offset && (nearest == nullptr || end > int64_t{nearest->offset} + nearest->bytes)) nearest = &slot;
  }
  if (nearest == nullptr) return named;
  named.text += ", and " + nearest->name + " ends " + std::to_string(offset - nearest->offset - nearest->bytes) + " bytes before";
  named.place.elements.push_back({nearest->name, uint64_t(offset - nearest->offset) / nearest->element_bytes});
  return named;
}

}  // namespace kiln::emulator
