#include "base/check.h"
#include "base/digest.h"
#include "base/json.h"
#include "plan/plan.h"

namespace distca {
namespace {

/// A list of whole numbers, of `size` ones where that is not negative.
std::vector<int64_t> numbers(const Json& list, const std::string& place, int64_t size = -1) {
  DISTCA_CHECK_INPUT(list.is_array(), "{}: is not a list", place);
  DISTCA_CHECK_INPUT(size < 0 || static_cast<int64_t>(list.size()) == size, "{}: has {} numbers, not {}",
                     place, list.size(), size);
  std::vector<int64_t> values;
  values.reserve(list.size());
  for (const Json& value : list) {
    DISTCA_CHECK_INPUT(!value.is_number() || value.get<double>() < 0x1p63, "{}: {} is too large a number",
                       place, value.dump());
    DISTCA_CHECK_INPUT(value.is_number_integer(), "{}: {} is not a whole number", place, value.dump());
    values.push_back(value.get<int64_t>());
  }
  return values;
}

int32_t narrow(int64_t value, const std::string& place) {
  DISTCA_CHECK_INPUT(value == static_cast<int32_t>(value), "{}: {} is too large", place, value);
  return static_cast<int32_t>(value);
}

class DumpReader {
 public:
  DumpReader(const Json& dump, std::string origin) : dump_(dump), origin_(std::move(origin)) {
    DISTCA_CHECK_INPUT(dump.is_object(), "{}: is not a plan: no object", origin_);
  }

  const Json& at(const char* key) const {
    DISTCA_CHECK_INPUT(dump_.contains(key), "{}: is not a plan: it has no \"{}\"", origin_, key);
    return dump_[key];
  }

  int64_t number(const char* key) const { return numbers(Json::array({at(key)}), place(key), 1)[0]; }

  std::string place(const char* key) const { return origin_ + ": " + key; }
  std::string place(const char* key, size_t i) const { return format("{}: {}[{}]", origin_, key, i); }

  Layout layout() const {
    Layout layout;
    layout.doc_lengths = numbers(at("doc_lengths"), place("doc_lengths"));
    layout.ranks = narrow(number("ranks"), place("ranks"));
    layout.rows = number("rows");
    const Json& shards = at("shards");
    DISTCA_CHECK_INPUT(shards.is_array(), "{}: is not a list", place("shards"));
    const std::vector<int64_t> rows =
        numbers(at("shard_rows"), place("shard_rows"), static_cast<int64_t>(shards.size()));
    for (size_t i = 0; i < shards.size(); ++i) {
      const std::string here = place("shards", i);
      const std::vector<int64_t> shard = numbers(shards[i], here, 4);
      layout.shards.push_back(
          {narrow(shard[0], here), {shard[1], shard[2]}, narrow(shard[3], here), rows[i]});
    }
    return layout;
  }

  std::vector<Task> tasks() const {
    const Json& list = at("tasks");
    DISTCA_CHECK_INPUT(list.is_array(), "{}: is not a list", place("tasks"));
    std::vector<Task> tasks;
    for (size_t i = 0; i < list.size(); ++i) {
      const std::string here = place("tasks", i);
      const std::vector<int64_t> task = numbers(list[i], here, 6);
      tasks.push_back({narrow(task[0], here), {task[1], task[2]}, {task[3], task[4]}, narrow(task[5], here)});
    }
    return tasks;
  }

 private:
  const Json& dump_;
  std::string origin_;
};

}  // namespace

std::string dump_plan(const Plan& plan) {
  Json shards = Json::array(), rows = Json::array(), tasks = Json::array();
  for (const Shard& shard : plan.layout.shards) {
    shards.push_back({shard.doc, shard.tokens.begin, shard.tokens.end, shard.home});
    rows.push_back(shard.row);
  }
  for (const Task& task : plan.tasks) {
    tasks.push_back({task.doc, task.q.begin, task.q.end, task.kv.begin, task.kv.end, task.server});
  }
  Json dump;
  dump["doc_lengths"] = plan.layout.doc_lengths;
  dump["servers"] = plan.servers;
  dump["shards"] = std::move(shards);
  dump["tasks"] = std::move(tasks);
  dump["digest"] = hex_digest(plan.digest());
  dump["ranks"] = plan.layout.ranks;
  dump["rows"] = plan.layout.rows;
  dump["shard_rows"] = std::move(rows);
  return dump.dump();
}

Plan parse_plan(std::string_view text, const std::string& origin) {
  const Json dump = parse_json(text, origin);
  const DumpReader reader(dump, origin);
  Plan plan{reader.layout(), narrow(reader.number("servers"), reader.place("servers")), reader.tasks()};
  const Json& digest = reader.at("digest");
  DISTCA_CHECK_INPUT(digest.is_string(), "{}: is not a string", reader.place("digest"));
  const uint64_t stated = parse_digest(digest.get<std::string>());
  DISTCA_CHECK_INPUT(stated == plan.digest(), "{}: its digest is {}, that of its contents {}: it was changed",
                     origin, hex_digest(stated), hex_digest(plan.digest()));
  try {
    plan.validate();
  } catch (const Error& error) {
    throw InputError(format("{}: not a valid plan: {}", origin, error.what()));
  }
  return plan;
}

Plan load_plan(const std::string& path) {
  return parse_plan(read_text(path), path);
}

}  // namespace distca
