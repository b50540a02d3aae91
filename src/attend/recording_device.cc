#include "attend/recording_device.h"

#include <ATen/CPUGeneratorImpl.h>
#include <ATen/core/dispatch/Dispatcher.h>
#include <ATen/core/stack.h>
#include <ATen/detail/PrivateUse1HooksInterface.h>
#include <ATen/ops/empty.h>
#include <c10/core/impl/DeviceGuardImplInterface.h>
#include <torch/library.h>

#include <algorithm>
#include <memory>
#include <unordered_map>
#include <utility>

#include "attend/recording_pinned.h"
#include "attend/recording_state.h"
#include "base/check.h"

namespace distca::testing {
namespace {

using Kind = StreamEntry::Kind;

thread_local c10::DeviceIndex current_device = 0;

void log_stream(const c10::Stream& stream, Kind kind, int64_t event, const char* what) {
  add_to_log(stream.device_index(), {kind, static_cast<int32_t>(stream.id()), 0, 0, event, what});
}

/// A graph here is of one stream: another that waited for it would be drawn into it.
void check_not_recorded(c10::DeviceIndex device) {
  DISTCA_CHECK(recording_state().devices[static_cast<size_t>(device)].graph == nullptr,
               "while a graph is recorded, streams of its device wait for each other");
}

struct TorchEvent {
  int64_t number = -1;  // of its last record
};

struct Guard final : c10::impl::DeviceGuardImplInterface {
  c10::DeviceType type() const override { return at::kPrivateUse1; }
  c10::Device exchangeDevice(c10::Device device) const override {
    const c10::Device before = getDevice();
    setDevice(device);
    return before;
  }
  c10::Device getDevice() const override { return {at::kPrivateUse1, current_device}; }
  void setDevice(c10::Device device) const override { uncheckedSetDevice(device); }
  void uncheckedSetDevice(c10::Device device) const noexcept override {
    if (device.has_index()) current_device = device.index();
  }
  c10::Stream getStream(c10::Device device) const override {
    const c10::DeviceIndex index = device.has_index() ? device.index() : current_device;
    return c10::Stream(c10::Stream::UNSAFE, {at::kPrivateUse1, index},
                       current_streams[static_cast<size_t>(index)]);
  }
  c10::Stream getDefaultStream(c10::Device device) const override {
    return c10::Stream(c10::Stream::UNSAFE, device, 0);
  }
  c10::Stream getNewStream(c10::Device device, int) const override {
    return c10::Stream(c10::Stream::UNSAFE, device,
                       recording_state().devices[static_cast<size_t>(device.index())].streams++);
  }
  c10::Stream getStreamFromGlobalPool(c10::Device device, bool) const override {
    return getNewStream(device, 0);
  }
  c10::Stream exchangeStream(c10::Stream stream) const override {
    const c10::Stream before = getStream(stream.device());
    current_streams[static_cast<size_t>(stream.device_index())] = stream.id();
    return before;
  }
  void destroyEvent(void* event, const c10::DeviceIndex) const noexcept override {
    delete static_cast<TorchEvent*>(event);
  }
  void record(void** event, const c10::Stream& stream, const c10::DeviceIndex,
              const c10::EventFlag) const override {
    check_not_recorded(stream.device_index());
    if (*event == nullptr) *event = new TorchEvent;
    const int64_t number = recording_state().events++;
    static_cast<TorchEvent*>(*event)->number = number;
    log_stream(stream, Kind::kRecord, number, "record");
  }
  void block(void* event, const c10::Stream& stream) const override {
    check_not_recorded(stream.device_index());
    if (event != nullptr) log_stream(stream, Kind::kWait, static_cast<TorchEvent*>(event)->number, "wait");
  }
  bool queryEvent(void*) const override { return true; }
  bool queryStream(const c10::Stream&) const override { return true; }
  void synchronizeStream(const c10::Stream& stream) const override {
    log_stream(stream, Kind::kHostWait, -1, "synchronize");
  }
  void synchronizeEvent(void*) const override {}
  void synchronizeDevice(const c10::DeviceIndex device) const override {
    add_to_log(device, {Kind::kHostWait, 0, 0, 0, -1, "synchronize"});
  }
  c10::DeviceIndex deviceCount() const noexcept override { return kRecordingDevices; }
};

struct Hooks final : at::PrivateUse1HooksInterface {
  bool isBuilt() const override { return true; }
  bool isAvailable() const override { return true; }
  bool hasPrimaryContext(c10::DeviceIndex) const override { return true; }
  const at::Generator& getDefaultGenerator(c10::DeviceIndex) const override {
    static const at::Generator generator = at::detail::createCPUGenerator();
    return generator;
  }
  c10::DeviceIndex deviceCount() const override { return kRecordingDevices; }
  void setCurrentDevice(c10::DeviceIndex device) const override { current_device = device; }
  c10::DeviceIndex getCurrentDevice() const override { return current_device; }
  c10::DeviceIndex exchangeDevice(c10::DeviceIndex device) const override {
    return std::exchange(current_device, device);
  }
  c10::DeviceIndex maybeExchangeDevice(c10::DeviceIndex device) const override {
    return device < 0 ? current_device : exchangeDevice(device);
  }
  bool isPinnedPtr(const void* data) const override { return is_pinned(data); }
  c10::Allocator* getPinnedMemoryAllocator() const override { return pinned_allocator(); }
};

/// Calls body(first byte, end) for the runs of bytes that a strided tensor's elements make up; where these
/// are many, for one from the first to the last.
template <typename Body>
void for_each_run(const at::Tensor& x, const Body& body) {
  constexpr int64_t kMost = 256;
  if (x.numel() == 0) return;
  std::vector<std::pair<int64_t, int64_t>> dims;  // stride and size, the narrowest first
  for (int64_t i = 0; i < x.dim(); ++i)
    if (x.size(i) > 1 && x.stride(i) > 0) dims.push_back({x.stride(i), x.size(i)});
  std::sort(dims.begin(), dims.end());
  int64_t inner = 1, runs = 1, last = 0;  // elements of a run
  size_t outer = 0;
  for (; outer < dims.size() && dims[outer].first == inner; ++outer) inner *= dims[outer].second;
  for (size_t i = outer; i < dims.size(); ++i) {
    runs *= dims[i].second;
    last += dims[i].first * (dims[i].second - 1);
  }
  if (runs > kMost) inner += last, runs = 1;
  const auto size = static_cast<uint64_t>(x.element_size());
  const auto first =
      reinterpret_cast<uint64_t>(x.storage().data()) + static_cast<uint64_t>(x.storage_offset()) * size;
  for (int64_t run = 0; run < runs; ++run) {
    uint64_t at = first;
    for (int64_t i = static_cast<int64_t>(outer), rest = run; rest > 0; ++i) {
      const auto [stride, count] = dims[static_cast<size_t>(i)];
      at += static_cast<uint64_t>(rest % count * stride) * size;
      rest /= count;
    }
    body(at, at + static_cast<uint64_t>(inner) * size);
  }
}

bool is_ours(const at::Tensor& x) {
  return x.defined() && x.device().type() == at::kPrivateUse1;
}

void log_access(const at::Tensor& x, Kind kind, const std::string& what) {
  const auto stream = static_cast<int32_t>(current_streams[static_cast<size_t>(x.device().index())]);
  for_each_run(x, [&](uint64_t begin, uint64_t end) {
    add_to_log(x.device().index(), {kind, stream, begin, end, -1, what});
  });
}

void log_host_wait(c10::DeviceIndex device, const std::string& what) {
  const auto stream = static_cast<int32_t>(current_streams[static_cast<size_t>(device)]);
  add_to_log(device, {Kind::kHostWait, stream, 0, 0, -1, what});
}

/// A tensor like `like` in `storage`.
at::Tensor tensor_in(c10::Storage storage, const at::Tensor& like, c10::DispatchKey key) {
  at::Tensor out =
      at::detail::make_tensor<c10::TensorImpl>(std::move(storage), c10::DispatchKeySet(key), like.dtype());
  out.unsafeGetTensorImpl()->set_sizes_and_strides(like.sizes(), like.strides(), like.storage_offset());
  return out;
}

/// A new tensor of the CPU, as one of the device, which owns it from now on.
at::Tensor taken_over(const at::Tensor& on_cpu, c10::DeviceIndex device) {
  struct Owner {
    at::Tensor on_cpu;
    c10::DeviceIndex device;
    int32_t stream;
  };
  void* const data = on_cpu.storage().mutable_data();
  DeviceState& state = recording_state().devices[static_cast<size_t>(device)];
  if (state.graph != nullptr) state.graph_memory.insert(data);
  const c10::StreamId current = current_streams[static_cast<size_t>(device)];
  const auto stream = static_cast<int32_t>(state.graph != nullptr ? state.graph_home.load() : current);
  const auto release = [](void* context) {
    const std::unique_ptr<Owner> owner(static_cast<Owner*>(context));
    const c10::Storage& storage = owner->on_cpu.storage();
    const auto begin = reinterpret_cast<uint64_t>(storage.data());
    add_to_log(owner->device,
               {Kind::kRelease, owner->stream, begin, begin + storage.nbytes(), -1, "an allocation"});
    recording_state().memory.remove(storage.data());
  };
  c10::DataPtr owned(data, new Owner{on_cpu, device, stream}, release, {at::kPrivateUse1, device});
  recording_state().memory.add(data, on_cpu.storage().nbytes());
  return tensor_in({c10::Storage::use_byte_size_t(), on_cpu.storage().nbytes(), std::move(owned), nullptr,
                    /*resizable=*/false},
                   on_cpu, c10::DispatchKey::PrivateUse1);
}

/// The tensors among values, those in lists included.
std::vector<at::Tensor> tensors_of(const torch::jit::Stack& values) {
  std::vector<at::Tensor> tensors;
  for (const c10::IValue& value : values) {
    if (value.isTensor()) tensors.push_back(value.toTensor());
    if (!value.isTensorList()) continue;
    for (const at::Tensor& x : value.toTensorVector()) tensors.push_back(x);
  }
  return tensors;
}

/// One call of an operator: its arguments as tensors of the CPU in the same memory, and the way back. While a
/// graph is recorded the call leaves no trace but its new tensors, and is done in every run of the graph.
class Call {
 public:
  Call(const c10::OperatorHandle& op, torch::jit::Stack& stack) : op_(op), stack_(stack) {}

  void run() {
    const c10::FunctionSchema& schema = op_.schema();
    const size_t arguments = schema.arguments().size(), returns = schema.returns().size();
    const size_t first = stack_.size() - arguments;
    for (size_t i = 0; i < arguments; ++i)
      to_cpu(stack_[first + i], writes(schema.arguments()[i].alias_info()));
    if (device_ < 0) device_ = current_device;
    const DeviceState& state = recording_state().devices[static_cast<size_t>(device_)];
    GraphCalls* const graph = state.graph;
    const bool host_waits = answers_host(schema.name()) || writes_host_ || (reads_host_ && !is_async());
    DISTCA_CHECK(graph == nullptr || !host_waits, "in {} the host waits for the device", schema.name());
    if (host_waits) log_host_wait(device_, schema.name());
    const torch::jit::Stack on_cpu(stack_.begin() + static_cast<int64_t>(first), stack_.end());
    if (graph == nullptr) log_all();
    std::vector<std::pair<at::Tensor, at::Tensor>> before;
    // What the graph itself allocates may hold what it will: sizes and indices follow from it.
    for (const at::Tensor& x : written_)
      if (graph != nullptr && state.graph_memory.count(x.storage().data()) == 0)
        before.push_back({x, x.clone()});
    {
      const at::AutoDispatchBelowADInplaceOrView below;
      op_.callBoxed(stack_);
    }
    for (const auto& [x, value] : before) x.copy_(value);
    const size_t out = stack_.size() - returns;
    for (size_t i = 0; i < returns; ++i) from_cpu(stack_[out + i]);
    for (const auto& [argument, x] : arguments_) resize(x, *argument);
    if (graph == nullptr) {
      log_all();
    } else if (!only_views() && !only_allocates()) {
      graph->push_back(again(on_cpu));
    }
  }

 private:
  static bool writes(const c10::AliasInfo* alias) { return alias != nullptr && alias->isWrite(); }
  /// Whether the operator only makes another view of its argument.
  bool only_views() const {
    const auto& returns = op_.schema().returns();
    return !returns.empty() && returns[0].alias_info() != nullptr && !returns[0].alias_info()->isWrite();
  }

  void access(const at::Tensor& x, Kind kind) { accesses_.push_back({x, kind}); }
  void log_all() {
    for (const auto& [x, kind] : accesses_) log_access(x, kind, op_.schema().name());
    accesses_.clear();
  }

  /// The call once more, on the same memory.
  std::function<void()> again(torch::jit::Stack arguments) {
    std::vector<const c10::StorageImpl*> known;
    for (const auto& [storage, ours] : originals_) known.push_back(storage);
    return [op = op_, arguments = std::move(arguments), known = std::move(known), fresh = std::move(fresh_),
            keep = std::move(keep_), accesses = std::move(accesses_)] {
      for (const auto& [x, kind] : accesses) log_access(x, kind, op.schema().name());
      torch::jit::Stack stack = arguments;
      const at::AutoDispatchBelowADInplaceOrView below;
      op.callBoxed(stack);
      size_t next = 0;
      for (const at::Tensor& x : tensors_of(stack)) {
        const bool ours = std::any_of(keep.begin(), keep.end(), [&](const auto& y) { return x.is_same(y); });
        const c10::StorageImpl* storage = x.defined() ? x.storage().unsafeGetStorageImpl() : nullptr;
        if (!x.defined() || ours || std::find(known.begin(), known.end(), storage) != known.end()) continue;
        fresh[next++].copy_(x);
      }
    };
  }

  bool only_allocates() const { return op_.schema().name().rfind("aten::empty", 0) == 0; }
  /// Whether the operator returns what the host has to read from the device first, a size or a number.
  static bool answers_host(const std::string& name) {
    constexpr const char* kNames[] = {"aten::_local_scalar_dense", "aten::nonzero", "aten::masked_select",
                                      "aten::equal", "aten::repeat_interleave"};
    return std::find(std::begin(kNames), std::end(kNames), name) != std::end(kNames);
  }
  /// Whether a copy from the host is under way when copy_(to, from, non_blocking) returns, as on a CUDA
  /// device.
  bool is_async() const { return pinned_ && non_blocking_; }

  at::Tensor to_cpu(const at::Tensor& x, bool written) {
    if (!is_ours(x)) {
      if (!x.defined()) return x;
      DISTCA_CHECK(x.dim() == 0 || op_.schema().name() == "aten::copy_",
                   "{} of tensors of the recording device and of the CPU", op_.schema().name());
      of_host_.push_back(x.unsafeGetTensorImpl());
      writes_host_ = writes_host_ || written;
      reads_host_ = reads_host_ || (!written && op_.schema().name() == "aten::copy_");
      pinned_ = x.numel() == 0 || is_pinned(x.storage().data());
      return x;
    }
    device_ = x.device().index();
    if (written || !only_views()) access(x, written ? Kind::kWrite : Kind::kRead);
    if (written && x.numel() == 0) {  // an output, which gets its memory from the operator
      const at::Tensor out = at::empty(x.sizes(), x.options().device(at::kCPU));
      arguments_.emplace(out.unsafeGetTensorImpl(), x);
      keep_.push_back(out);
      return out;
    }
    c10::Storage& storage = storages_[x.storage().unsafeGetStorageImpl()];
    if (!storage) {
      c10::DataPtr same(x.storage().mutable_data(), c10::Device(at::kCPU));
      storage = c10::Storage(c10::Storage::use_byte_size_t(), x.storage().nbytes(), std::move(same), nullptr,
                             /*resizable=*/false);
      originals_.emplace(storage.unsafeGetStorageImpl(), x.storage());
    }
    at::Tensor out = tensor_in(storage, x, c10::DispatchKey::CPU);
    arguments_.emplace(out.unsafeGetTensorImpl(), x);
    keep_.push_back(out);
    if (written) written_.push_back(out);
    return out;
  }

  void to_cpu(c10::IValue& value, bool written) {
    if (value.isTensor()) {
      value = to_cpu(value.toTensor(), written);
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& x : value.toTensorVector()) tensors.push_back(to_cpu(x, written));
      value = tensors;
    } else if (value.isList()) {
      for (c10::IValue item : value.toList()) {
        if (!item.isTensor()) continue;
        c10::List<std::optional<at::Tensor>> tensors;
        for (const auto& x : value.toOptionalTensorVector()) {
          tensors.push_back(x.has_value() ? std::optional(to_cpu(*x, written)) : std::nullopt);
        }
        value = tensors;
        return;
      }
    } else if (value.isBool()) {
      non_blocking_ = value.toBool();  // of copy_, which has no other
    } else if (value.isDevice()) {
      const c10::Device device = value.toDevice();
      if (device.type() == at::kPrivateUse1 && device_ < 0)
        device_ = device.has_index() ? device.index() : current_device;
      value = c10::Device(at::kCPU);
    }
  }

  /// An argument as the operator left it.
  void resize(const at::Tensor& x, const c10::TensorImpl& on_cpu) {
    if (x.sizes() == on_cpu.sizes()) return;
    DISTCA_CHECK(x.numel() == 0, "{} changes the shape of an argument", op_.schema().name());
    for (const at::Tensor& kept : keep_) {
      if (kept.unsafeGetTensorImpl() != &on_cpu) continue;
      const at::Tensor out = taken_over(kept, device_);
      access(out, Kind::kWrite);
      x.unsafeGetTensorImpl()->set_storage_keep_dtype(out.storage());
      x.unsafeGetTensorImpl()->set_sizes_and_strides(out.sizes(), out.strides(), out.storage_offset());
    }
  }

  at::Tensor from_cpu(const at::Tensor& x) {
    if (!x.defined() || is_ours(x)) return x;
    for (const c10::TensorImpl* tensor : of_host_)
      if (tensor == x.unsafeGetTensorImpl()) return x;
    if (const auto same = arguments_.find(x.unsafeGetTensorImpl()); same != arguments_.end()) {
      return same->second;
    }
    if (const auto view = originals_.find(x.storage().unsafeGetStorageImpl()); view != originals_.end())
      return tensor_in(view->second, x, c10::DispatchKey::PrivateUse1);
    const at::Tensor out = taken_over(x, device_);
    if (!only_allocates()) access(out, Kind::kWrite);
    fresh_.push_back(x);
    return out;
  }

  void from_cpu(c10::IValue& value) {
    if (value.isTensor()) {
      value = from_cpu(value.toTensor());
    } else if (value.isTensorList()) {
      std::vector<at::Tensor> tensors;
      for (const at::Tensor& x : value.toTensorVector()) tensors.push_back(from_cpu(x));
      value = tensors;
    }
  }

  const c10::OperatorHandle& op_;
  torch::jit::Stack& stack_;
  c10::DeviceIndex device_ = -1;
  bool writes_host_ = false, reads_host_ = false, pinned_ = false, non_blocking_ = false;
  std::vector<std::pair<at::Tensor, Kind>> accesses_;
  std::vector<at::Tensor> keep_, written_;  // arguments, of the CPU
  std::vector<at::Tensor> fresh_;           // results, of the CPU, in the order in which they come
  std::vector<const c10::TensorImpl*> of_host_;
  std::unordered_map<const c10::StorageImpl*, c10::Storage> storages_;   // ours → the CPU's
  std::unordered_map<const c10::StorageImpl*, c10::Storage> originals_;  // the CPU's → ours
  std::unordered_map<const c10::TensorImpl*, at::Tensor> arguments_;     // the CPU's → ours
};

void run_on_cpu(const c10::OperatorHandle& op, torch::jit::Stack* stack) {
  Call(op, *stack).run();
}

/// PyTorch is told before main(): its autograd engine counts devices once, when it first runs.
struct Registration {
  Registration() {
    c10::register_privateuse1_backend("recording");
    at::RegisterPrivateUse1HooksInterface(new Hooks);  // for the life of the process
    register_recording_graphs();
    all.fallback(torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
    // Its own kernel for all devices looks at the kind of device.
    some.impl("copy_", torch::CppFunction::makeFromBoxedFunction<&run_on_cpu>());
  }

  const Guard guard;
  const c10::impl::DeviceGuardImplRegistrar registrar{at::kPrivateUse1, &guard};
  torch::Library all{torch::Library::IMPL, "_", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
  torch::Library some{torch::Library::IMPL, "aten", c10::DispatchKey::PrivateUse1, __FILE__, __LINE__};
};

const Registration registration;

}  // namespace

at::Device recording_device(int32_t index) {
  DISTCA_CHECK(0 <= index && index < kRecordingDevices, "recording device {} of {}", index,
               kRecordingDevices);
  return {at::kPrivateUse1, static_cast<c10::DeviceIndex>(index)};
}

}  // namespace distca::testing
