// A step on a device leaves the host free: between the step's beginning and the reading of its losses the
// host waits for nothing, on a device of tests that counts a wait wherever CUDA would make one.
#include <ATen/TensorOperators.h>
#include <ATen/ops/_pin_memory.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <mutex>

#include "attend/masked_attention.h"
#include "attend/recording_device.h"
#include "base/check.h"
#include "comm/nccl_threads.h"
#include "train/exact_modes.h"

namespace distca {
namespace {

using testing::ExactMode;
using testing::RunResult;
using Kind = StreamEntry::Kind;

constexpr const char* kKernel = "masked";  // tables are made for it as for flash attention
constexpr const char* kUnprepared = "masked, unprepared";

/// The same, which makes its tables in each call.
class Unprepared : public AttentionKernel {
 public:
  std::string name() const override { return kUnprepared; }
  bool needs_output() const override { return true; }
  void forward(const AttentionShape& shape, const KernelTasks& tasks, const RowPair& q, const RowPair& k,
               const RowPair& v, const RowPair& o, const RowPair& lse) override {
    kernel_->forward(shape, tasks, q, k, v, o, lse);
  }
  void backward(const AttentionShape& shape, const KernelTasks& tasks, KernelBackward& tensors) override {
    kernel_->backward(shape, tasks, tensors);
  }

 private:
  std::unique_ptr<AttentionKernel> kernel_ = make_packing_kernel(kKernel, testing::make_masked_attention());
};

void register_kernels() {
  static std::once_flag once;
  std::call_once(once, [] {
    testing::register_masked_kernel(kKernel, at::kPrivateUse1);
    register_attention_kernel(kUnprepared, at::kPrivateUse1,
                              [](int) { return std::make_unique<Unprepared>(); });
  });
}

/// Every rank on a device of its own, with what its device was given from the beginning of each step to the
/// end of its backward and the sums over ranks.
struct Steps {
  RunResult result;
  std::vector<std::vector<StreamEntry>> logs;
};

Steps run_steps(int32_t ranks, const RunInputs& inputs) {
  Steps run;
  std::mutex mutex;
  const auto library = make_nccl_for_threads(testing::device_for_fabrics(testing::recording_device(0)));
  const auto store = std::make_shared<MemoryStore>();
  std::vector<NcclJob> jobs;
  for (int32_t rank = 0; rank < ranks; ++rank)
    jobs.push_back(
        {testing::device_for_fabrics(testing::recording_device(rank)), library, store, rank, ranks, {}});
  run_nccl_thread_ranks(jobs, [&](Fabric& fabric) {
    RunInputs own = inputs;
    own.device = testing::recording_device(fabric.rank());
    Trainer trainer(fabric, own);
    for (int64_t step = 0; step < own.config.train.steps; ++step) {
      StreamLog log;
      testing::record_to(own.device, &log);
      StepMetrics metrics = trainer.forward_backward();
      testing::record_to(own.device, nullptr);
      trainer.update(metrics);
      const std::lock_guard lock(mutex);
      run.logs.push_back(log.take());
      if (fabric.rank() == 0) run.result.losses.push_back(metrics.loss);
    }
  });
  return run;
}

RunInputs inputs_of(const ExactMode& mode, const char* kernel) {
  RunInputs inputs = testing::exact_run(mode, "float64");
  inputs.config.train.steps = mode.graphs ? 3 : 2;  // the third runs graphs that the second has captured
  inputs.model.num_hidden_layers = 2;
  inputs.config.attention.kernel = kernel;
  return inputs;
}

/// Products of the layers and of attention. The sum of gradients that ends a step has none.
bool is_work(const StreamEntry& entry) {
  for (const char* name : {"aten::mm", "aten::bmm", "aten::addmm"})
    if (entry.what == name) return true;
  return false;
}

/// Waits that more work comes after. The comparison of plans, with which a step begins, isn't counted.
std::vector<const StreamEntry*> waits_before_work(const std::vector<StreamEntry>& log) {
  std::vector<const StreamEntry*> waits, pending;
  bool begun = false;
  for (const StreamEntry& entry : log) {
    const bool compares_plans = entry.what == testing::kToHost && !begun;
    if ((entry.kind == Kind::kHostWait || entry.what == testing::kToHost) && !compares_plans)
      pending.push_back(&entry);
    if (!is_work(entry)) continue;
    begun = true;
    waits.insert(waits.end(), pending.begin(), pending.end());
    pending.clear();
  }
  return waits;
}

void expect_no_waits(const ExactMode& mode, const char* kernel, const RunResult& dense) {
  SCOPED_TRACE(std::string(kernel) + ", " + mode.name());
  const int32_t ranks = (mode.tp * mode.pp == 4 ? 8 : 4) + static_cast<int32_t>(mode.servers);
  const Steps run = run_steps(ranks, inputs_of(mode, kernel));
  for (size_t step = 0; step < dense.losses.size(); ++step)
    EXPECT_NEAR(run.result.losses.at(step), dense.losses[step], 1e-10);
  for (const auto& log : run.logs) {
    EXPECT_TRUE(std::any_of(log.begin(), log.end(), is_work));
    for (const StreamEntry* wait : waits_before_work(log))
      ADD_FAILURE() << "the host waits in " << wait->what << ", entry " << wait - log.data() << " of "
                    << log.size();
  }
}

TEST(DeviceWaits, AStepMakesNoneBeforeItsLossesAreRead) {
  register_kernels();
  const RunResult dense = testing::run_dense(inputs_of({}, "cpu"));
  for (const char* overlap : {"pingpong", "single"})
    for (const char* memory : {"keep", "resend"})
      for (const int64_t pp : {1, 2})
        for (const int64_t tp : {1, 2})
          expect_no_waits({overlap, memory, tp, pp, 0, "fixed", 1}, kKernel, dense);
  for (const int64_t pp : {1, 2}) {
    expect_no_waits({"pingpong", "keep", 1, pp, pp == 1 ? 1 : 0, "fixed", 1}, "plain", dense);
    for (const int64_t tp : {1, 2}) {
      ExactMode mode{"pingpong", "resend", tp, pp, 0, "fixed", 1};
      mode.graphs = true;
      expect_no_waits(mode, kKernel, dense);
    }
  }
}

TEST(DeviceWaits, TablesThatAreMadeInACallAreFound) {
  register_kernels();
  for (const auto& log : run_steps(2, inputs_of({}, kUnprepared)).logs)
    EXPECT_FALSE(waits_before_work(log).empty());
}

/// What the test above goes by: the device counts waits where CUDA makes them.
TEST(DeviceWaits, ACopyFromMemoryThatIsNotPinnedIsOne) {
  const at::Device device = testing::recording_device(0);
  const auto waits_of = [&](const auto& work) {
    StreamLog log;
    testing::record_to(device, &log);
    work();
    testing::record_to(device, nullptr);
    const std::vector<StreamEntry> entries = log.take();
    return std::count_if(entries.begin(), entries.end(),
                         [](const StreamEntry& entry) { return entry.kind == Kind::kHostWait; });
  };
  const at::Tensor plain = at::randn({5}), pinned = at::_pin_memory(plain, device);
  EXPECT_TRUE(pinned.equal(plain));
  EXPECT_EQ(waits_of([&] { plain.to(device, at::kFloat, /*non_blocking=*/true); }), 1);
  EXPECT_EQ(waits_of([&] { pinned.to(device, at::kFloat, /*non_blocking=*/false); }), 1);
  EXPECT_EQ(waits_of([&] { pinned.to(device, at::kFloat, /*non_blocking=*/true); }), 0);
  EXPECT_EQ(waits_of([&] { pinned.narrow(0, 2, 3).to(device, at::kFloat, /*non_blocking=*/true); }), 0);
  const at::Tensor on_device = pinned.to(device);
  EXPECT_EQ(waits_of([&] { on_device.cpu(); }), 1);
  EXPECT_EQ(waits_of([&] { (on_device * 2).add_(on_device); }), 0);
  EXPECT_EQ(waits_of([&] { on_device.gt(0).nonzero(); }), 1);
}

}  // namespace
}  // namespace distca
