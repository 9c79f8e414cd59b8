// SPDX-License-Identifier: Apache-2.0
//
// A map from numbers whose copies share what neither has changed: a copy takes constant time, a change some nodes of a tree. For what is known at
// one point of a program and goes on to be known in each branch from there.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <optional>

namespace kiln::compiler {

template <typename T>
class PersistentMap {
 public:
  const T* Find(uint32_t key) const {
    const Node* node = root_.get();
    for (int shift = kTop; node != nullptr && shift > 0; shift -= kBits) node = node->children[Digit(key, shift)].get();
    if (node == nullptr || !node->values || !(*node->values)[Digit(key, 0)]) return nullptr;
    return &*(*node->values)[Digit(key, 0)];
  }

  void Set(uint32_t key, T value) {
    std::shared_ptr<Node>* place = &root_;
    for (int shift = kTop;; shift -= kBits) {
      Own(*place);
      if (shift == 0) break;
      place = &(*place)->children[Digit(key, shift)];
    }
    auto& values = (*place)->values;
    if (values == nullptr) values = std::make_unique<Values>();
    (*values)[Digit(key, 0)] = std::move(value);
  }

 private:
  static constexpr int kBits = 4, kTop = 32 - kBits;
  static constexpr size_t Digit(uint32_t key, int shift) { return key >> shift & ((1u << kBits) - 1); }

  struct Node;
  using Values = std::array<std::optional<T>, size_t{1} << kBits>;
  struct Node {
    Node() = default;
    Node(const Node& other) : children(other.children), values(other.values == nullptr ? nullptr : std::make_unique<Values>(*other.values)) {}
    Node& operator=(const Node&) = delete;
    std::array<std::shared_ptr<Node>, size_t{1} << kBits> children;
    std::unique_ptr<Values> values;  // of the lowest nodes
  };

  // What other maps see as well is copied before it changes.
  static void Own(std::shared_ptr<Node>& node) {
    if (node == nullptr) {
      node = std::make_shared<Node>();
    } else if (node.use_count() > 1) {
      node = std::make_shared<Node>(*node);
    }
  }

  std::shared_ptr<Node> root_;
};

}  // namespace kiln::compiler
