// The recording device as fabrics see it.
#include <array>
#include <cstring>
#include <map>
#include <memory>
#include <mutex>
#include <vector>

#include "attend/recording_state.h"
#include "comm/reduce.h"

namespace distca::testing {
namespace {

using Kind = StreamEntry::Kind;

/// The device and stream behind a handle of comm/, which is never null.
struct Place {
  c10::DeviceIndex device;
  int32_t stream;

  static Place of(Stream stream) {
    const auto number = reinterpret_cast<uint64_t>(stream.handle) - 1;
    return {static_cast<c10::DeviceIndex>(number >> 32), static_cast<int32_t>(number & 0xffffffff)};
  }
  static Stream handle(c10::DeviceIndex device, c10::StreamId stream) {
    return {
        reinterpret_cast<void*>((static_cast<uint64_t>(device) << 32 | static_cast<uint64_t>(stream)) + 1)};
  }
};

class RecordingDevice : public Device {
 public:
  explicit RecordingDevice(c10::DeviceIndex index) : index_(index) {}
  ~RecordingDevice() override {
    for (const auto& owned : owned_) memory().remove(owned.get());
  }

  Stream current_stream() override {
    return Place::handle(index_, current_streams[static_cast<size_t>(index_)]);
  }
  void set_current_stream(Stream stream) override {
    current_streams[static_cast<size_t>(index_)] = Place::of(stream).stream;
  }
  Stream make_stream(const std::string&) override {
    return Place::handle(index_, recording_state().devices[static_cast<size_t>(index_)].streams++);
  }

  Event record(Stream stream) override {
    const int64_t number = recording_state().events++;
    add(stream, {Kind::kRecord, 0, 0, 0, number, "record"});
    return {std::make_shared<int64_t>(number)};
  }
  void wait(Stream stream, const Event& event) override {
    add(stream, {Kind::kWait, 0, 0, 0, *static_cast<const int64_t*>(event.handle.get()), "wait"});
  }
  bool done(const Event&) override { return true; }

  // What a copy between two ranks' devices reads and writes, both have told.
  void copy(void* to, const void* from, int64_t bytes, Stream stream) override {
    const bool here = !memory().holds(to) || !memory().holds(from);
    if (here && memory().holds(from)) log(stream, Kind::kRead, from, bytes, kToHost);
    if (here && memory().holds(to)) writes(stream, to, bytes);
    if (bytes > 0 && to != from) std::memmove(to, from, static_cast<size_t>(bytes));
  }
  void combine(void* sum, const void* x, int64_t count, DType dtype, ReduceOp op, Stream) override {
    const std::array<const void*, 2> sources = {sum, x};
    reduce_in_rank_order(sources, sum, count, dtype, op);
  }

  bool holds(const void* pointer) override { return memory().holds(pointer); }
  // A stream's memory is its own: what it gives back it alone gets again.
  void* allocate(int64_t bytes, Stream stream) override {
    const std::lock_guard lock(mutex_);
    auto& free = free_[{stream.handle, bytes}];
    void* data = nullptr;
    if (!free.empty()) {
      data = free.back();
      free.pop_back();
    } else {
      owned_.push_back(std::make_unique<char[]>(static_cast<size_t>(bytes + 1)));
      data = owned_.back().get();
      memory().add(data, static_cast<size_t>(bytes + 1));
    }
    allocated_[data] = {stream, bytes};
    return data;
  }
  void release(void* pointer) override {
    const std::lock_guard lock(mutex_);
    const auto [stream, bytes] = allocated_.extract(pointer).mapped();
    log(stream, Kind::kRelease, pointer, bytes, kScratch);
    free_[{stream.handle, bytes}].push_back(pointer);
  }
  void* allocate_host(int64_t bytes) override { return std::malloc(static_cast<size_t>(bytes + 1)); }
  void release_host(void* pointer) override { std::free(pointer); }

  void reads(Stream stream, const void* pointer, int64_t bytes) override {
    access(stream, Kind::kRead, pointer, bytes);
  }
  void writes(Stream stream, const void* pointer, int64_t bytes) override {
    access(stream, Kind::kWrite, pointer, bytes);
  }

 private:
  static Memory& memory() { return recording_state().memory; }
  static void add(Stream stream, StreamEntry entry) {
    const Place place = Place::of(stream);
    entry.stream = place.stream;
    add_to_log(place.device, std::move(entry));
  }
  static void log(Stream stream, Kind kind, const void* pointer, int64_t bytes, const char* what) {
    const auto begin = reinterpret_cast<uint64_t>(pointer);
    add(stream, {kind, 0, begin, begin + static_cast<uint64_t>(bytes), -1, what});
  }
  void access(Stream stream, Kind kind, const void* pointer, int64_t bytes) {
    const std::lock_guard lock(mutex_);
    const bool scratch = allocated_.count(const_cast<void*>(pointer)) > 0;
    log(stream, kind, pointer, bytes, scratch ? kScratch : kTransfer);
  }

  static constexpr const char* kScratch = "the scratch of a transfer";
  const c10::DeviceIndex index_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<char[]>> owned_;
  std::map<void*, std::pair<Stream, int64_t>> allocated_;
  std::map<std::pair<void*, int64_t>, std::vector<void*>> free_;  // by stream and bytes
};

}  // namespace

std::shared_ptr<Device> device_for_fabrics(at::Device device) {
  return std::make_shared<RecordingDevice>(device.index());
}

}  // namespace distca::testing
