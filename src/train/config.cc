#include "train/config.h"

#define TOML_EXCEPTIONS 1
#include <toml++/toml.h>

#include <algorithm>
#include <charconv>
#include <cmath>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "base/check.h"

namespace distca {
namespace {

/// Single-character edits that turn `a` into `b`.
size_t edit_distance(std::string_view a, std::string_view b) {
  std::vector<size_t> row(b.size() + 1);
  for (size_t j = 0; j <= b.size(); ++j) row[j] = j;
  for (size_t i = 1; i <= a.size(); ++i) {
    size_t diagonal = row[0];
    row[0] = i;
    for (size_t j = 1; j <= b.size(); ++j) {
      const size_t changed = diagonal + (a[i - 1] != b[j - 1]);
      diagonal = row[j];
      row[j] = std::min({changed, row[j] + 1, row[j - 1] + 1});
    }
  }
  return row[b.size()];
}

/// The key nearest to `section`.`name`; a key of the same name elsewhere counts as one edit away.
std::string nearest_key(const std::vector<ConfigKey>& keys, const std::string& section,
                        const std::string& name) {
  const auto distance = [&](const ConfigKey& key) {
    const size_t of_sections = edit_distance(key.section, section);
    return edit_distance(key.name, name) * 2 + std::min<size_t>(of_sections, 3);
  };
  return std::min_element(keys.begin(), keys.end(),
                          [&](const ConfigKey& a, const ConfigKey& b) { return distance(a) < distance(b); })
      ->full_name();
}

std::string kind_of(const toml::node& node) {
  switch (node.type()) {
    case toml::node_type::string:
      return "the text \"" + node.as_string()->get() + "\"";
    case toml::node_type::integer:
      return "the integer " + std::to_string(node.as_integer()->get());
    case toml::node_type::floating_point:
      return "the number " + text(node.as_floating_point()->get());
    case toml::node_type::boolean:
      return node.as_boolean()->get() ? "true" : "false";
    case toml::node_type::array:
      return "a list";
    case toml::node_type::table:
      return "a section";
    default:
      return "a date or time";
  }
}

void check_number(const ConfigKey& key, double value, const std::string& place) {
  DISTCA_CHECK_INPUT(std::isfinite(value), "{}: {} is not a finite number", place, key.full_name());
  DISTCA_CHECK_INPUT(value >= key.least, "{}: {} = {} is less than {}", place, key.full_name(), value,
                     key.least);
  DISTCA_CHECK_INPUT(value <= key.most, "{}: {} = {} is more than {}", place, key.full_name(), value,
                     key.most);
}

void check_choice(const ConfigKey& key, const std::string& value, const std::string& place) {
  if (key.choices.empty() || std::count(key.choices.begin(), key.choices.end(), value)) return;
  std::string choices;
  for (const std::string& choice : key.choices) choices += (choices.empty() ? "" : ", ") + choice;
  throw InputError(format("{}: {} = \"{}\" is none of: {}", place, key.full_name(), value, choices));
}

std::vector<double> list_of_numbers(const ConfigKey& key, const toml::array& list, const std::string& place) {
  std::vector<double> out;
  for (const toml::node& element : list) {
    const auto number = element.value<double>();
    DISTCA_CHECK_INPUT(number.has_value(), "{}: {} takes numbers, not {}", place, key.full_name(),
                       kind_of(element));
    check_number(key, *number, place);
    out.push_back(*number);
  }
  return out;
}

/// Puts `node` where `key` says. `place` opens the error message.
void assign(const ConfigKey& key, const toml::node& node, const std::string& place) {
  const auto refuse = [&](const char* wanted) {
    throw InputError(format("{}: {} takes {}, not {}", place, key.full_name(), wanted, kind_of(node)));
  };
  if (const auto* flag = std::get_if<bool*>(&key.slot)) {
    if (!node.is_boolean()) refuse("true or false");
    **flag = node.as_boolean()->get();
  } else if (const auto* whole = std::get_if<int64_t*>(&key.slot)) {
    if (!node.is_integer()) refuse("an integer");
    check_number(key, static_cast<double>(node.as_integer()->get()), place);
    **whole = node.as_integer()->get();
  } else if (const auto* number = std::get_if<double*>(&key.slot)) {
    if (!node.is_number()) refuse("a number");
    check_number(key, *node.value<double>(), place);
    **number = *node.value<double>();
  } else if (const auto* string = std::get_if<std::string*>(&key.slot)) {
    if (!node.is_string()) refuse("a text");
    check_choice(key, node.as_string()->get(), place);
    **string = node.as_string()->get();
  } else if (const auto* speeds = std::get_if<SpeedSetting*>(&key.slot)) {
    const bool measured = node.is_string() && node.as_string()->get() == "measured";
    if (!measured && !node.is_array()) refuse("a list of numbers or \"measured\"");
    **speeds = {};
    (*speeds)->measured = measured;
    if (!measured) (*speeds)->given = list_of_numbers(key, *node.as_array(), place);
  } else {
    if (!node.is_array()) refuse("a list of numbers");
    *std::get<std::vector<double>*>(key.slot) = list_of_numbers(key, *node.as_array(), place);
  }
}

const ConfigKey& find_key(const std::vector<ConfigKey>& keys, const std::string& section,
                          const std::string& name, const std::string& place) {
  for (const ConfigKey& key : keys)
    if (key.section == section && key.name == name) return key;
  throw InputError(format("{}: unknown key {}; the nearest is {}", place,
                          section.empty() ? name : section + "." + name, nearest_key(keys, section, name)));
}

std::string place_of(const std::string& origin, const toml::source_region& source) {
  return format("{}:{}", origin, source.begin.line);
}

void apply_file(std::string_view content, const std::string& origin, const std::vector<ConfigKey>& keys,
                Config& config) {
  toml::table root;
  try {
    root = toml::parse(content, origin);
  } catch (const toml::parse_error& error) {
    throw InputError(format("{}:{}: not TOML: {}", place_of(origin, error.source()),
                            error.source().begin.column, error.description()));
  }
  for (const auto& [section, node] : root) {
    const std::string name(section.str());
    const toml::table* entries = node.as_table();
    if (entries == nullptr) find_key(keys, "", name, place_of(origin, section.source()));
    const bool known =
        std::any_of(keys.begin(), keys.end(), [&](const ConfigKey& key) { return key.section == name; });
    DISTCA_CHECK_INPUT(known || !entries->empty(), "{}: unknown section [{}]",
                       place_of(origin, section.source()), name);
    for (const auto& [key, value] : *entries) {
      const std::string place = place_of(origin, key.source());
      const ConfigKey& found = find_key(keys, name, std::string(key.str()), place);
      assign(found, value, place);
      config.places[found.full_name()] = place;
    }
  }
}

void apply_override(const std::string& setting, const std::vector<ConfigKey>& keys, Config& config) {
  const size_t equals = setting.find('=');
  const size_t dot = setting.find('.');
  DISTCA_CHECK_INPUT(equals != std::string::npos && dot < equals,
                     "--set {}: it takes section.key=value, as in --set train.steps=10", setting);
  const std::string place = "--set " + setting, value = setting.substr(equals + 1);
  const ConfigKey& key =
      find_key(keys, setting.substr(0, dot), setting.substr(dot + 1, equals - dot - 1), place);
  toml::table parsed;
  try {
    if (value.find('\n') == std::string::npos) parsed = toml::parse("value = " + value);
  } catch (const toml::parse_error&) {
    parsed.clear();
  }
  // On a command line .5 and 5. are numbers too.
  if (double number = 0; parsed.empty() && std::holds_alternative<double*>(key.slot)) {
    const char* end = value.data() + value.size();
    const auto [stop, fault] = std::from_chars(value.data(), end, number);
    if (fault == std::errc() && stop == end) parsed.insert("value", number);
  }
  const toml::node* node = parsed.get("value");
  const toml::value<std::string> bare(value);
  const bool is_text = std::holds_alternative<std::string*>(key.slot);
  assign(key, node == nullptr || (is_text && !node->is_string()) ? bare : *node, place);
  config.places[key.full_name()] = place;
}

/// The place of the last of `keys` that was given on the command line, else of the last one in the file, else
/// `origin`: where to look when their values contradict each other.
std::string place_of_any(const Config& c, const std::string& origin, const std::vector<std::string>& keys) {
  std::string in_file = origin;
  for (const std::string& key : keys) {
    const auto place = c.places.find(key);
    if (place == c.places.end()) continue;
    if (place->second.rfind("--set ", 0) == 0) return place->second;
    in_file = place->second;
  }
  return in_file;
}

/// What no key alone can get wrong.
void check_together(const Config& c, const std::string& origin) {
  const auto at = [&](const std::vector<std::string>& keys) { return place_of_any(c, origin, keys); };
  DISTCA_CHECK_INPUT(!c.data.path.empty() || c.cluster.gpus > 0,
                     "{}: data.path is not given: the prefix of a dataset", at({"data.path"}));
  DISTCA_CHECK_INPUT(!c.model.config.empty(), "{}: model.config is not given: a config.json or a preset",
                     at({"model.config"}));
  const int64_t parts = c.train.micro_batches * c.train.nano_batches;
  const std::vector<std::string> sizes = {"train.micro_batches", "train.nano_batches",
                                          "train.tokens_per_batch"};
  DISTCA_CHECK_INPUT(c.train.tokens_per_batch % parts == 0,
                     "{}: train.tokens_per_batch = {} is not a multiple of micro_batches · nano_batches = {}",
                     at(sizes), c.train.tokens_per_batch, parts);
  std::vector<std::string> of_context = sizes;
  of_context.insert(of_context.begin(), "data.context");
  DISTCA_CHECK_INPUT(c.data.context <= rows_of_nano_batch(c),
                     "{}: data.context = {} is more than a nano-batch of {} rows (tokens_per_batch {} ÷ {})",
                     at(of_context), c.data.context, rows_of_nano_batch(c), c.train.tokens_per_batch, parts);
  DISTCA_CHECK_INPUT(c.train.min_lr <= c.train.lr, "{}: train.min_lr = {} is more than train.lr = {}",
                     at({"train.lr", "train.min_lr"}), c.train.min_lr, c.train.lr);
  DISTCA_CHECK_INPUT(c.train.beta1 < 1, "{}: train.beta1 must be below 1", at({"train.beta1"}));
  DISTCA_CHECK_INPUT(c.train.beta2 < 1, "{}: train.beta2 must be below 1", at({"train.beta2"}));
  DISTCA_CHECK_INPUT(c.checkpoint.every == 0 || !c.checkpoint.dir.empty(),
                     "{}: checkpoint.every = {} needs checkpoint.dir",
                     at({"checkpoint.every", "checkpoint.dir"}), c.checkpoint.every);
  DISTCA_CHECK_INPUT(c.checkpoint.resume != "latest" || !c.checkpoint.dir.empty(),
                     "{}: checkpoint.resume = \"latest\" needs checkpoint.dir",
                     at({"checkpoint.resume", "checkpoint.dir"}));
}

}  // namespace

Config parse_config(std::string_view content, const std::string& origin,
                    const std::vector<std::string>& overrides) {
  Config config;
  const std::vector<ConfigKey> keys = config_keys(config);
  apply_file(content, origin, keys, config);
  for (const std::string& setting : overrides) apply_override(setting, keys, config);
  check_together(config, origin);
  return config;
}

Config read_config(const std::string& path, const std::vector<std::string>& overrides) {
  std::ifstream in(path, std::ios::binary);
  DISTCA_CHECK_INPUT(in.good() && !std::filesystem::is_directory(path), "{}: can't be read", path);
  std::ostringstream content;
  content << in.rdbuf();
  return parse_config(content.str(), path, overrides);
}

std::string at_key(const Config& config, const std::string& key) {
  const auto place = config.places.find(key);
  return place == config.places.end() ? "" : place->second + ": ";
}

int64_t rows_of_nano_batch(const Config& config) {
  return config.train.tokens_per_batch / (config.train.micro_batches * config.train.nano_batches);
}

}  // namespace distca
