#include "attend/cpu_kernels.h"
#include "attend/plain_memory_kernel.h"
#include "base/thread_pool.h"
#include "kernel/cpu.h"

namespace distca {
namespace {

class CpuKernel : public PlainMemoryKernel {
 public:
  explicit CpuKernel(int threads) : pool_(threads) {}
  std::string name() const override { return "cpu"; }

 protected:
  void run(const AttentionForward<float>& args) override { cpu_attention_forward(args, pool_); }
  void run(const AttentionForward<double>& args) override { cpu_attention_forward(args, pool_); }
  void run(const AttentionForward<BFloat16>& args) override { cpu_attention_forward(args, pool_); }
  void run(const AttentionBackward<float>& args) override { cpu_attention_backward(args, pool_); }
  void run(const AttentionBackward<double>& args) override { cpu_attention_backward(args, pool_); }
  void run(const AttentionBackward<BFloat16>& args) override { cpu_attention_backward(args, pool_); }

 private:
  ThreadPool pool_;
};

}  // namespace

std::unique_ptr<AttentionKernel> make_cpu_kernel(int threads) {
  return std::make_unique<CpuKernel>(threads);
}

}  // namespace distca
