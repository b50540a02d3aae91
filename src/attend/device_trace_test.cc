#include "attend/device_trace.h"

#include <ATen/ops/mm.h>
#include <ATen/ops/randn.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <filesystem>

#include "base/file.h"
#include "base/json.h"

namespace distca {
namespace {

TEST(DeviceTrace, HasWhatRanWhileItWasOn) {
  const std::string path = testing::TempDir() + "device_trace_test.json";
  const at::Tensor a = at::randn({8, 8});
  {
    DeviceTrace trace(at::kCPU);
    at::mm(a, a);
    at::mm(a, a);
    trace.write(path);
  }
  at::mm(a, a);
  { const DeviceTrace nobody_writes(at::kCPU); }
  const Json events = parse_json(read_text(path), path).at("traceEvents");
  EXPECT_EQ(std::count_if(events.begin(), events.end(),
                          [](const Json& event) { return event.value("name", "") == "aten::mm"; }),
            2);
  std::filesystem::remove(path);
}

}  // namespace
}  // namespace distca
