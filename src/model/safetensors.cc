#include "model/safetensors.h"

#include <algorithm>
#include <bit>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <set>
#include <tuple>

#include "base/check.h"

namespace distca {
namespace {

static_assert(std::endian::native == std::endian::little, "tensors are stored little endian");

using json = nlohmann::json;  // looks keys up in logarithmic time: a header may hold very many

constexpr int64_t kLengthBytes = 8;
constexpr uint64_t kLargestHeader = 100'000'000;  // as the format's own reader allows

/// The object in `text`. Names that stand twice at the top are an error, not the last one's win.
json parse_object(std::string_view text, const std::string& origin) {
  std::set<std::string> names;
  std::string twice;
  const auto note_name = [&](int depth, json::parse_event_t event, const json& value) {
    if (event == json::parse_event_t::key && depth == 1 && !names.insert(value.get<std::string>()).second) {
      twice = value.get<std::string>();
    }
    return true;
  };
  json object;
  try {
    object = json::parse(text, note_name);
  } catch (const json::exception&) {
    throw InputError(format("{}: is not JSON", origin));
  }
  DISTCA_CHECK_INPUT(object.is_object(), "{}: is not a JSON object", origin);
  DISTCA_CHECK_INPUT(twice.empty(), "{}: '{}' stands there twice", origin, twice);
  return object;
}

std::string header_text(std::string_view file, const std::string& origin) {
  DISTCA_CHECK_INPUT(file.size() >= kLengthBytes, "{}: {} bytes are no safetensors file", origin,
                     file.size());
  uint64_t length = 0;
  std::memcpy(&length, file.data(), kLengthBytes);
  const uint64_t rest = file.size() - kLengthBytes;
  DISTCA_CHECK_INPUT(
      length <= rest && length <= kLargestHeader,
      "{}: its header is said to have {} bytes, but {} follow: truncated, or not a safetensors file", origin,
      length, rest);
  return std::string(file.substr(kLengthBytes, length));
}

/// The non-negative integers of a JSON array.
std::vector<int64_t> read_sizes(const json& tensor, const char* key, const std::string& what) {
  const auto at = tensor.find(key);
  DISTCA_CHECK_INPUT(at != tensor.end() && at->is_array(), "{}: {} is missing or not a list", what, key);
  std::vector<int64_t> sizes;
  for (const json& size : *at) {
    const bool natural = size.is_number_unsigned() && size.get<uint64_t>() <= uint64_t{INT64_MAX};
    DISTCA_CHECK_INPUT(natural, "{}: {} holds something else than sizes", what, key);
    sizes.push_back(size.get<int64_t>());
  }
  return sizes;
}

/// Bytes of a tensor; −1 when they don't fit into 64 bits.
int64_t bytes_of(const SafetensorsEntry& entry) {
  int64_t bytes = safetensors_dtype_bytes(entry.dtype);
  if (std::find(entry.shape.begin(), entry.shape.end(), 0) != entry.shape.end()) return 0;
  for (const int64_t size : entry.shape) {
    if (__builtin_mul_overflow(bytes, size, &bytes)) return -1;
  }
  return bytes;
}

SafetensorsEntry read_entry(const std::string& name, const json& tensor, const std::string& origin) {
  const std::string what = format("{}: tensor '{}'", origin, name);
  DISTCA_CHECK_INPUT(tensor.is_object(), "{} is not described by an object", what);
  const auto dtype = tensor.find("dtype");
  DISTCA_CHECK_INPUT(dtype != tensor.end() && dtype->is_string(), "{}: dtype is missing or not a string",
                     what);
  SafetensorsEntry entry{name, dtype->get<std::string>(), read_sizes(tensor, "shape", what), 0, 0};
  const std::vector<int64_t> offsets = read_sizes(tensor, "data_offsets", what);
  DISTCA_CHECK_INPUT(offsets.size() == 2 && offsets[0] <= offsets[1],
                     "{}: data_offsets are not a begin and an end", what);
  entry.begin = offsets[0];
  entry.end = offsets[1];
  DISTCA_CHECK_INPUT(safetensors_dtype_bytes(entry.dtype) > 0, "{}: dtype '{}' is not known", what,
                     entry.dtype);
  DISTCA_CHECK_INPUT(bytes_of(entry) == entry.end - entry.begin,
                     "{}: its shape and dtype {} don't make the {} bytes between its offsets", what,
                     entry.dtype, entry.end - entry.begin);
  return entry;
}

SafetensorsMetadata read_metadata(const json& object, const std::string& origin) {
  DISTCA_CHECK_INPUT(object.is_object(), "{}: __metadata__ is not an object", origin);
  SafetensorsMetadata metadata;
  for (const auto& [key, value] : object.items()) {
    DISTCA_CHECK_INPUT(value.is_string(), "{}: __metadata__ '{}' is not a string", origin, key);
    metadata[key] = value.get<std::string>();
  }
  return metadata;
}

void check_end_to_end(const std::vector<SafetensorsEntry>& tensors, int64_t data_bytes,
                      const std::string& origin) {
  int64_t end = 0;
  for (const SafetensorsEntry& entry : tensors) {
    DISTCA_CHECK_INPUT(entry.begin == end,
                       "{}: tensor '{}' begins at byte {} of the data, where {} is next: {}", origin,
                       entry.name, entry.begin, end, entry.begin < end ? "an overlap" : "a gap");
    end = entry.end;
  }
  DISTCA_CHECK_INPUT(end == data_bytes, "{}: its tensors take {} bytes, but {} follow the header: {}", origin,
                     end, data_bytes, end > data_bytes ? "truncated" : "something is left over");
}

}  // namespace

int64_t safetensors_dtype_bytes(std::string_view dtype) {
  static constexpr std::pair<std::string_view, int64_t> kTypes[] = {
      {"BOOL", 1}, {"U8", 1},  {"I8", 1},  {"F8_E4M3", 1}, {"F8_E5M2", 1}, {"U16", 2}, {"I16", 2}, {"F16", 2},
      {"BF16", 2}, {"U32", 4}, {"I32", 4}, {"F32", 4},     {"U64", 8},     {"I64", 8}, {"F64", 8}};
  for (const auto& [name, bytes] : kTypes) {
    if (name == dtype) return bytes;
  }
  return 0;
}

SafetensorsHeader parse_safetensors(std::string_view file, const std::string& origin) {
  const std::string text = header_text(file, origin);
  const json object = parse_object(text, origin + ": its header");
  SafetensorsHeader header;
  header.data_begin = kLengthBytes + static_cast<int64_t>(text.size());
  for (const auto& [name, value] : object.items()) {
    if (name == "__metadata__") {
      header.metadata = read_metadata(value, origin);
    } else {
      header.tensors.push_back(read_entry(name, value, origin));
    }
  }
  std::sort(header.tensors.begin(), header.tensors.end(), [](const auto& a, const auto& b) {
    return std::tie(a.begin, a.end, a.name) < std::tie(b.begin, b.end, b.name);
  });
  check_end_to_end(header.tensors, static_cast<int64_t>(file.size()) - header.data_begin, origin);
  return header;
}

SafetensorsFile::SafetensorsFile(const std::string& path)
    : file_(path), header_(parse_safetensors(file_.bytes(), path)) {
  for (size_t i = 0; i < header_.tensors.size(); ++i) index_[header_.tensors[i].name] = i;
}

const SafetensorsEntry* SafetensorsFile::find(const std::string& name) const {
  const auto at = index_.find(name);
  return at == index_.end() ? nullptr : &header_.tensors[at->second];
}

std::string_view SafetensorsFile::bytes(const SafetensorsEntry& entry) const {
  return file_.bytes().substr(static_cast<size_t>(header_.data_begin + entry.begin),
                              static_cast<size_t>(entry.end - entry.begin));
}

SafetensorsWriter::SafetensorsWriter(const std::string& path, std::vector<SafetensorsEntry> tensors,
                                     const SafetensorsMetadata& metadata)
    : tensors_(std::move(tensors)), file_(path) {
  nlohmann::ordered_json header = nlohmann::ordered_json::object();
  if (!metadata.empty()) header["__metadata__"] = metadata;
  std::set<std::string> names{"__metadata__"};
  int64_t end = 0;
  for (SafetensorsEntry& entry : tensors_) {
    const int64_t bytes = safetensors_dtype_bytes(entry.dtype) > 0 ? bytes_of(entry) : -1;
    DISTCA_CHECK(bytes >= 0, "{}: tensor '{}' has no size: dtype '{}'", path, entry.name, entry.dtype);
    DISTCA_CHECK(names.insert(entry.name).second, "{}: two tensors are called '{}'", path, entry.name);
    entry.begin = end;
    entry.end = end += bytes;
    header.push_back(
        {entry.name,
         {{"dtype", entry.dtype}, {"shape", entry.shape}, {"data_offsets", {entry.begin, entry.end}}}});
  }
  std::string text = header.dump();
  text.resize((text.size() + 7) / 8 * 8, ' ');
  const uint64_t length = text.size();
  file_.write({reinterpret_cast<const char*>(&length), kLengthBytes});
  file_.write(text);
}

void SafetensorsWriter::append(std::string_view bytes) {
  DISTCA_CHECK(next_ < tensors_.size(), "{}: has {} tensors, and another was appended", file_.path(),
               tensors_.size());
  const SafetensorsEntry& entry = tensors_[next_++];
  DISTCA_CHECK(static_cast<int64_t>(bytes.size()) == entry.end - entry.begin,
               "{}: {} bytes were appended for tensor '{}', which has {}", file_.path(), bytes.size(),
               entry.name, entry.end - entry.begin);
  file_.write(bytes);
}

void SafetensorsWriter::commit() {
  DISTCA_CHECK(next_ == tensors_.size(), "{}: {} of {} tensors were appended", file_.path(), next_,
               tensors_.size());
  file_.commit();
}

namespace {

/// tensor → the file that an index says it is in; files are names in the index's own folder.
std::map<std::string, std::string> read_index(const std::string& path) {
  const MappedFile file(path);
  const json object = parse_object(file.bytes(), path);
  const auto map = object.find("weight_map");
  DISTCA_CHECK_INPUT(map != object.end() && map->is_object(), "{}: weight_map is missing or not an object",
                     path);
  std::map<std::string, std::string> files;
  for (const auto& [name, value] : map->items()) {
    DISTCA_CHECK_INPUT(value.is_string(), "{}: tensor '{}' has no file's name", path, name);
    files[name] = value.get<std::string>();
    const bool plain = !files[name].empty() && files[name].find('/') == std::string::npos;
    DISTCA_CHECK_INPUT(plain, "{}: tensor '{}' is said to be in '{}', which is not a file of this folder",
                       path, name, files[name]);
  }
  return files;
}

std::vector<SafetensorsFile> open_shards(const std::string& index) {
  const std::map<std::string, std::string> placed = read_index(index);
  std::map<std::string, size_t> opened;
  std::vector<SafetensorsFile> files;
  for (const auto& [name, file] : placed) {
    if (opened.contains(file)) continue;
    opened[file] = files.size();
    files.emplace_back((std::filesystem::path(index).parent_path() / file).string());
  }
  for (const auto& [name, file] : placed) {
    DISTCA_CHECK_INPUT(files[opened[file]].find(name) != nullptr, "{}: tensor '{}' is not in {}", index, name,
                       file);
  }
  std::map<std::string, std::string> seen;
  for (const SafetensorsFile& file : files) {
    for (const SafetensorsEntry& entry : file.header().tensors) {
      const auto [at, first] = seen.emplace(entry.name, file.path());
      DISTCA_CHECK_INPUT(first, "tensor '{}' is in {} and in {}", entry.name, at->second, file.path());
    }
  }
  return files;
}

}  // namespace

std::vector<SafetensorsFile> open_safetensors(const std::string& path) {
  namespace fs = std::filesystem;
  std::string file = path;
  if (fs::is_directory(path)) {
    file = (fs::path(path) / "model.safetensors").string();
    if (!fs::exists(file)) file += ".index.json";
    DISTCA_CHECK_INPUT(fs::exists(file),
                       "{}: holds neither model.safetensors nor model.safetensors.index.json", path);
  }
  if (file.ends_with(".json")) return open_shards(file);
  std::vector<SafetensorsFile> files;
  files.emplace_back(file);
  return files;
}

}  // namespace distca
