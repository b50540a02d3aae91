// A table of strings that all ranks of a job reach apart from the fabric's own ways: where they meet to make
// communicators, and where they say what happened when those no longer work.
#pragma once

#include <condition_variable>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <string>

namespace distca {

/// Any thread may call. Throws Error where the table can't be reached.
class Store {
 public:
  virtual ~Store() = default;
  virtual void set(const std::string& key, const std::string& value) = 0;
  /// Waits up to `timeout_s` for somebody to set it; 0 asks whether somebody has.
  virtual std::optional<std::string> get(const std::string& key, double timeout_s) = 0;
  /// Adds to a counter that starts at 0, and returns it. Counters aren't read by get().
  virtual int64_t add(const std::string& key, int64_t value) = 0;
};

/// For ranks that are threads of one process.
class MemoryStore : public Store {
 public:
  void set(const std::string& key, const std::string& value) override;
  std::optional<std::string> get(const std::string& key, double timeout_s) override;
  int64_t add(const std::string& key, int64_t value) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
  std::map<std::string, int64_t> counters_;
};

}  // namespace distca
