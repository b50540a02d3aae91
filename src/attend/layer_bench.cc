#include "attend/layer_bench.h"

#include <ATen/TensorOperators.h>
#include <ATen/ops/empty_like.h>

#include <algorithm>
#include <functional>
#include <map>

#include "attend/core_attention.h"
#include "attend/device.h"
#include "attend/testing.h"
#include "base/check.h"
#include "base/median.h"

namespace distca {
namespace {

at::ScalarType scalar_type(const std::string& dtype) {
  const std::map<std::string, at::ScalarType> types = {
      {"float32", at::kFloat}, {"float64", at::kDouble}, {"bfloat16", at::kBFloat16}};
  const auto found = types.find(dtype);
  DISTCA_CHECK_INPUT(found != types.end(), "dtype '{}' is none of float32, float64, bfloat16", dtype);
  return found->second;
}

constexpr const char* kSteps[] = {"forward/dispatch",  "forward/attend",  "forward/collect",
                                  "backward/dispatch", "backward/attend", "backward/collect"};
constexpr size_t kStepCount = std::size(kSteps);

// Seconds of work and exposed wait of each step, of one rank.
struct Sample {
  double work_s[kStepCount] = {}, wait_s[kStepCount] = {};
};

Sample run_once(AttentionRuntime& runtime, const BatchTables& tables, const LayerBenchOptions& options,
                const testing::HomeTensors& in, const at::Tensor& dout, testing::HomeTensors& out) {
  AttentionCall call(runtime, tables, options.shape, "the measured layer", true);
  const std::function<void()> steps[kStepCount] = {
      [&] { call.dispatch_begin(in.dq, in.dk, in.dv), call.dispatch_end(); },
      [&] { call.attend(); },
      [&] { call.collect_begin(), out.o = call.collect_end(); },
      [&] { call.grad_collect_begin(dout), call.grad_collect_end(); },
      [&] { call.grad_attend(); },
      [&] {
        call.grad_dispatch_begin();
        std::tie(out.dq, out.dk, out.dv) = call.grad_dispatch_end();
      },
  };
  Sample sample;
  for (size_t i = 0; i < kStepCount; ++i) {
    const double wait = runtime.stats.wait_s;
    sample.work_s[i] = device_seconds(options.device, steps[i]);
    sample.wait_s[i] = runtime.stats.wait_s - wait;
  }
  return sample;
}

std::vector<StepSeconds> over_ranks(Fabric& fabric, const std::vector<Sample>& samples) {
  std::vector<StepSeconds> steps;
  for (size_t i = 0; i < kStepCount; ++i) {
    std::vector<double> work, wait;
    for (const Sample& sample : samples) work.push_back(sample.work_s[i]), wait.push_back(sample.wait_s[i]);
    double most[] = {median(work), median(wait)}, sum = median(work);
    fabric.all_reduce(std::span<double>(most), ReduceOp::kMax, "seconds of steps");
    fabric.all_reduce(std::span(&sum, 1), ReduceOp::kSum, "seconds of steps");
    steps.push_back({kSteps[i], most[0], sum / fabric.world_size(), most[1]});
  }
  return steps;
}

std::vector<LayerBenchResult::MaxError> errors(Fabric& fabric, const testing::DenseTensors& dense,
                                               const testing::HomeTensors& home,
                                               const std::vector<int64_t>& rows) {
  const std::pair<const char*, std::pair<at::Tensor, at::Tensor>> compared[] = {{"o", {home.o, dense.o}},
                                                                                {"dq", {home.dq, dense.dq}},
                                                                                {"dk", {home.dk, dense.dk}},
                                                                                {"dv", {home.dv, dense.dv}}};
  std::vector<LayerBenchResult::MaxError> out;
  for (const auto& [name, tensors] : compared) {
    const at::Tensor home = tensors.first.cpu().to(tensors.second.scalar_type());
    double error = testing::relative_error(home, tensors.second, rows);
    fabric.all_reduce(std::span(&error, 1), ReduceOp::kMax, "errors");
    out.push_back({name, error});
  }
  return out;
}

// Rank 0 computes the dense result on the CPU in the type of the run (float32 for bfloat16) and hands it to
// the others.
void make_dense(Fabric& fabric, const Plan& plan, const AttentionShape& shape, testing::DenseTensors& dense) {
  if (dense.q.scalar_type() == at::kBFloat16) {
    for (at::Tensor* x : {&dense.q, &dense.k, &dense.v, &dense.dout}) *x = x->to(at::kFloat);
  }
  if (fabric.rank() == 0) {
    testing::dense_attention(plan.layout.doc_lengths, shape, dense);
  } else {
    dense.o = at::empty_like(dense.q), dense.dq = at::empty_like(dense.q);
    dense.dk = at::empty_like(dense.k), dense.dv = at::empty_like(dense.v);
  }
  for (at::Tensor* x : {&dense.o, &dense.dq, &dense.dk, &dense.dv}) {
    *x = x->contiguous();
    fabric.broadcast(x->data_ptr(), static_cast<int64_t>(x->nbytes()), 0, "the dense result");
  }
}

}  // namespace

LayerBenchResult bench_layer(Fabric& fabric, const Plan& plan, const LayerBenchOptions& options) {
  AttentionRuntime runtime(
      fabric, {options.kernel, 1, options.keep ? AttentionMemory::kKeep : AttentionMemory::kResend},
      options.device);
  const BatchTables tables = prepare(runtime, plan, options.shape);
  const std::vector<int64_t> rows = testing::dense_rows(plan.layout, fabric.rank());
  testing::DenseTensors dense =
      testing::random_inputs(plan.layout.tokens(), options.shape, scalar_type(options.dtype), options.seed);
  const auto here = [&](const at::Tensor& x) { return testing::home_rows(x, rows).to(options.device); };
  const testing::HomeTensors in = {{}, {}, here(dense.q), here(dense.k), here(dense.v)};
  const at::Tensor dout = here(dense.dout);
  testing::HomeTensors out;
  run_once(runtime, tables, options, in, dout, out);  // buffers grow to their size
  LayerBenchResult result;
  for (const AttentionStats::Sent& sent : runtime.stats.sent) {
    int64_t bytes = sent.bytes;
    fabric.all_reduce(std::span(&bytes, 1), ReduceOp::kSum, "bytes sent");
    result.sent.push_back({sent.kind, bytes});
  }
  std::vector<Sample> samples;
  for (int i = 0; i < options.repeats; ++i) {
    fabric.barrier("start of a repeat");
    samples.push_back(run_once(runtime, tables, options, in, dout, out));
  }
  result.steps = over_ranks(fabric, samples);
  result.pool_bytes = runtime.pool.bytes_held();
  fabric.all_reduce(std::span(&result.pool_bytes, 1), ReduceOp::kMax, "bytes of buffers");
  if (options.check) {
    make_dense(fabric, plan, options.shape, dense);
    result.errors = errors(fabric, dense, out, rows);
  }
  return result;
}

}  // namespace distca
