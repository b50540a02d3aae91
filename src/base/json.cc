#include "base/json.h"

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <iostream>

#include "base/check.h"

namespace distca {
namespace {

constexpr int kDeepest = 200;  // far above any file of ours; values are read and written recursively

}  // namespace

Json parse_json(std::string_view text, const std::string& origin) {
  const auto check_depth = [&](int depth, Json::parse_event_t, const Json&) {
    DISTCA_CHECK_INPUT(depth < kDeepest, "{}: is nested deeper than {} lists and objects", origin, kDeepest);
    return true;
  };
  try {
    return Json::parse(text, check_depth);
  } catch (const Json::parse_error& error) {
    const size_t end = std::min<size_t>(error.byte == 0 ? 0 : error.byte - 1, text.size());
    const std::string_view before = text.substr(0, end);
    const auto line = 1 + std::count(before.begin(), before.end(), '\n');
    const size_t line_start = before.rfind('\n') == std::string_view::npos ? 0 : before.rfind('\n') + 1;
    throw InputError(format("{}:{}:{}: not JSON", origin, line, end - line_start + 1));
  } catch (const Json::out_of_range&) {
    throw InputError(format("{}: holds a number beyond what 64 bits can tell", origin));
  } catch (const Json::exception&) {
    throw InputError(format("{}: not JSON that can be read", origin));
  }
}

std::string read_text(const std::string& path) {
  std::error_code unknown;
  DISTCA_CHECK_INPUT(!std::filesystem::is_directory(path, unknown), "{}: is a folder, not a file", path);
  std::ifstream in(path, std::ios::binary);
  DISTCA_CHECK_INPUT(in.good(), "{}: can't be opened: {}", path, std::strerror(errno));
  std::ostringstream text;
  text << in.rdbuf();
  DISTCA_CHECK_INPUT(!in.bad(), "{}: can't be read", path);
  return text.str();
}

Json read_json(const std::string& path) {
  return parse_json(read_text(path), path);
}

void write_json(const Json& value, const std::string& path, int indent) {
  const std::string text = value.dump(indent) + "\n";
  if (path == "-") {
    std::cout << text << std::flush;
    DISTCA_CHECK(std::cout.good(), "standard output can't be written");
    return;
  }
  std::ofstream out(path, std::ios::binary);
  out << text << std::flush;
  DISTCA_CHECK(out.good(), "{}: can't be written: {}", path, std::strerror(errno));
}

}  // namespace distca
