// SPDX-License-Identifier: Apache-2.0
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

namespace kiln::cli {

// A JSON value under construction. Objects keep the order in which members were set.
class Json {
 public:
  Json(std::string_view text);
  Json(const std::string& text) : Json(std::string_view(text)) {}
  Json(const char* text) : Json(std::string_view(text)) {}
  Json(bool value) : text_(value ? "true" : "false") {}
  Json(double value);
  Json(std::int64_t value) : text_(std::to_string(value)) {}
  Json(std::uint64_t value) : text_(std::to_string(value)) {}
  Json(std::uint32_t value) : text_(std::to_string(value)) {}

  static Json Null();
  static Json Object(std::vector<std::pair<std::string_view, Json>> members);
  static Json Array(const std::vector<Json>& items);
  template <class Items, class Function>
  static Json Map(const Items& items, Function to_json) {
    std::vector<Json> values;
    for (const auto& item : items) values.push_back(to_json(item));
    return Array(values);
  }

  const std::string& text() const { return text_; }

 private:
  struct Raw {};
  Json(Raw, std::string text) : text_(std::move(text)) {}
  std::string text_;
};

}  // namespace kiln::cli
