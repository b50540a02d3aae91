#include "comm/store.h"

#include <chrono>

namespace distca {

void MemoryStore::set(const std::string& key, const std::string& value) {
  const std::lock_guard lock(mutex_);
  values_[key] = value;
  changed_.notify_all();
}

std::optional<std::string> MemoryStore::get(const std::string& key, double timeout_s) {
  std::unique_lock lock(mutex_);
  const auto there = [&] { return values_.contains(key); };
  if (!changed_.wait_for(lock, std::chrono::duration<double>(timeout_s), there)) return std::nullopt;
  return values_.at(key);
}

int64_t MemoryStore::add(const std::string& key, int64_t value) {
  const std::lock_guard lock(mutex_);
  return counters_[key] += value;
}

}  // namespace distca
