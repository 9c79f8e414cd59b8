// SPDX-License-Identifier: Apache-2.0
#include "clients/cli/run_arguments.h"

#include <algorithm>
#include <charconv>

#include <fmt/format.h>

#include "clients/runtime/host_expr.h"

namespace kiln::cli {

int RunArguments::index() const {
  int value = -1;
  const char* end = device.data() + device.size();
  const auto parsed = std::from_chars(device.data(), end, value);
  return parsed.ptr == end ? value : -1;
}

Error InvalidInput(std::string message) { return {.code = ErrorCode::kInvalid, .message = std::move(message)}; }

Error ToError(const runtime::Error& error) {
  const bool ours = error.kind == runtime::Error::Kind::kArgument;
  return {.code = ours ? ErrorCode::kInvalid : ErrorCode::kUnavailable, .message = error.message};
}

std::expected<Values, Error> ParseValues(const std::vector<std::string>& words) {
  Values values;
  for (const std::string& word : words) {
    const std::size_t equals = word.find('=');
    std::int64_t value = 0;
    const char* end = word.data() + word.size();
    const auto parsed = std::from_chars(word.data() + std::min(equals + 1, word.size()), end, value);
    if (equals == std::string::npos || parsed.ec != std::errc() || parsed.ptr != end) {
      return std::unexpected(InvalidInput(word + " is not NAME=NUMBER"));
    }
    values[word.substr(0, equals)] = value;
  }
  return values;
}

std::int64_t ScalarOf(const runtime::LaunchParam& param, const Values& values) {
  const auto at = values.find(param.name);
  return at == values.end() ? 1 : at->second;
}

std::expected<std::vector<std::int64_t>, Error> ShapeOf(const runtime::LaunchInfo& info, const runtime::LaunchParam& param,
                                                        const Values& sizes) {
  std::vector<std::optional<std::int64_t>> symbols;
  for (const runtime::LaunchSymbol& symbol : info.symbols) {
    const auto at = sizes.find(symbol.name);
    symbols.push_back(at == sizes.end() ? std::nullopt : std::optional(at->second));
  }
  const std::vector<std::optional<std::int64_t>> no_scalars(info.params.size());
  const std::vector<bool> no_scalar(info.params.size(), false);
  std::vector<std::int64_t> shape;
  for (const runtime::HostNodes& nodes : param.shape) {
    const auto expr = runtime::HostExpr::Parse(nodes, info.symbols.size(), no_scalar);
    if (!expr) return std::unexpected(ToError(expr.error()));
    const auto value = expr->Evaluate({symbols, no_scalars});
    if (!value) return std::unexpected(ToError(value.error()));
    if (!*value) {
      return std::unexpected(InvalidInput(fmt::format("the shape of {} depends on {}; give each name in it a value, e.g. "
                                                      "--dim {}=1024",
                                                      param.name, expr->Text(info), info.symbols.front().name)));
    }
    shape.push_back(**value);
  }
  return shape;
}

}  // namespace kiln::cli
