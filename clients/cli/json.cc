// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/json.h"

#include <cmath>

#include <fmt/format.h>

namespace kiln::cli {
namespace {

std::string Quote(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"': out += "\\\""; break;
      case '\\': out += "\\\\"; break;
      case '\n': out += "\\n"; break;
      case '\t': out += "\\t"; break;
      default:
        if (static_cast<unsigned char>(c) < 0x20) {
          out += fmt::format("\\u{:04x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + "\"";
}

}  // namespace

Json::Json(std::string_view text) : text_(Quote(text)) {}
Json::Json(double value) : text_(std::isfinite(value) ? fmt::format("{:.6g}", value) : "null") {}

Json Json::Null() { return Json(Raw{}, "null"); }

Json Json::Object(std::vector<std::pair<std::string_view, Json>> members) {
  std::string out = "{";
  for (const auto& [name, value] : members) {
    if (out.size() > 1) out += ", ";
    out += Quote(name) + ": " + value.text();
  }
  return Json(Raw{}, out + "}");
}

Json Json::Array(const std::vector<Json>& items) {
  std::string out = "[";
  for (const Json& item : items) {
    if (out.size() > 1) out += ", ";
    out += item.text();
  }
  return Json(Raw{}, out + "]");
}

}  // namespace kiln::cli
