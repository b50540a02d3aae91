#include "attend/attention_kernel.h"

#include <mutex>

#include "attend/cpu_kernels.h"
#include "attend/flash_kernel.h"
#include "attend/plain_kernel.h"
#include "attend/pytorch_kernel.h"
#include "base/check.h"

namespace distca {
namespace {

struct Registered {
  std::string name;
  at::DeviceType device;
  KernelFactory factory;
};

struct Registry {
  std::mutex mutex;
  std::vector<Registered> kernels = {
#ifndef DISTCA_MINIMAL
      {"cpu", at::kCPU, make_cpu_kernel},
#endif
      {"pytorch", at::kCPU, make_pytorch_kernel}, {"reference", at::kCPU, make_reference_kernel},
      {"plain", at::kCPU, make_plain_kernel},     {"flash", at::kCUDA, make_flash_kernel},
      {"plain", at::kCUDA, make_plain_kernel},    {"plain", at::kPrivateUse1, make_plain_kernel}};
};

Registry& registry() {
  static Registry instance;
  return instance;
}

}  // namespace

at::ScalarType accumulator_type(at::ScalarType dtype) {
  return dtype == at::kDouble ? at::kDouble : at::kFloat;
}

void register_attention_kernel(const std::string& name, at::DeviceType device, KernelFactory factory) {
  DISTCA_CHECK_INPUT(!name.empty() && name != "auto", "an attention kernel can't be named '{}'", name);
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  for (const Registered& kernel : known.kernels) {
    DISTCA_CHECK_INPUT(kernel.name != name || kernel.device != device,
                       "attention kernel '{}' is registered already", name);
  }
  known.kernels.push_back({name, device, std::move(factory)});
}

std::unique_ptr<AttentionKernel> make_attention_kernel(const std::string& name, at::DeviceType device,
                                                       int threads) {
  KernelFactory factory;
  {
    Registry& known = registry();
    std::lock_guard lock(known.mutex);
    for (const Registered& kernel : known.kernels) {
      if (!factory && kernel.device == device && (kernel.name == name || name == "auto"))
        factory = kernel.factory;
    }
  }
  if (factory) return factory(threads);
  std::string names;
  for (const std::string& other : attention_kernel_names(device))
    names += (names.empty() ? "" : ", ") + other;
  throw InputError(format("no attention kernel '{}' for {}: there are auto, {}", name,
                          c10::DeviceTypeName(device, true), names));
}

std::vector<std::string> attention_kernel_names(at::DeviceType device) {
  Registry& known = registry();
  std::lock_guard lock(known.mutex);
  std::vector<std::string> names;
  for (const Registered& kernel : known.kernels) {
    if (kernel.device == device) names.push_back(kernel.name);
  }
  return names;
}

}  // namespace distca
