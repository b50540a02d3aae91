// A job of MPI ranks that goes wrong in the way its first argument names: what python/test_comm_faults.py
// watches.
#include <unistd.h>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <map>
#include <string>
#include <thread>
#include <vector>

#include "base/check.h"
#include "comm/mpi.h"

namespace distca {
namespace {

using Body = void (*)(Fabric&);

void sleep_long() {
  std::this_thread::sleep_for(std::chrono::seconds(600));
}

/// Exchanges of `bytes` between all pairs, for ever.
void exchange(Fabric& fabric, int64_t bytes) {
  std::vector<char> send(bytes), recv(bytes * fabric.world_size());
  std::vector<ExchangePart> parts(1);
  parts[0] = {send.data(), recv.data(), {}, {}};
  for (int32_t peer = 0; peer < fabric.world_size(); ++peer) {
    parts[0].sends.push_back({peer, 0, bytes});
    parts[0].receives.push_back({peer, peer * bytes, bytes});
  }
  for (int64_t layer = 0;; ++layer) {
    fabric.all_to_all(parts, "dispatch layer " + std::to_string(layer))->wait();
    if (layer == 3) std::fprintf(stderr, "rank %d has pid %d\n", fabric.rank(), getpid());
  }
}

const std::map<std::string, Body> kFaults = {
    {"silent",
     [](Fabric& fabric) {
       double loss = 1;
       if (fabric.rank() == 2) sleep_long();
       fabric.all_reduce(&loss, 1, DType::kFloat64, ReduceOp::kSum, "loss of step 7");
     }},
    {"throw",
     [](Fabric& fabric) {
       fabric.barrier("start");
       if (fabric.rank() == 1) throw Error("no space left on the device");
       fabric.barrier("step 1");
     }},
    {"throw while busy",
     [](Fabric& fabric) {
       fabric.barrier("start");
       if (fabric.rank() == 1) throw std::runtime_error("out of memory");
       sleep_long();
     }},
    {"wrong input", [](Fabric&) { throw InputError("heads 3 are not divisible by 2"); }},
    {"abort",
     [](Fabric& fabric) {
       if (fabric.rank() == 3) fabric.abort("the plans differ");
       fabric.barrier("plan");
     }},
    {"other operation",
     [](Fabric& fabric) {
       if (fabric.rank() == 0) fabric.barrier("step 7");
       double loss = 1;
       fabric.all_reduce(&loss, 1, DType::kFloat64, ReduceOp::kSum, "loss");
     }},
    {"other size",
     [](Fabric& fabric) {
       std::vector<char> data(100000);
       std::vector<ExchangePart> parts(2);
       parts[1] = {data.data(), data.data(), {}, {}};
       if (fabric.rank() == 1) parts[1].sends = {{2, 0, 90000}};
       if (fabric.rank() == 2) parts[1].receives = {{1, 0, 90001}};
       fabric.all_to_all(parts, "collect layer 0")->wait();
       fabric.barrier("after");
     }},
    {"unexpected",
     [](Fabric& fabric) {
       std::vector<char> data(10);
       std::vector<ExchangePart> parts(1);
       parts[0] = {data.data(), data.data(), {}, {}};
       if (fabric.rank() == 1) parts[0].sends = {{2, 0, 10}};
       fabric.all_to_all(parts, "collect layer 0")->wait();
       fabric.barrier("after");
     }},
    {"drop",
     [](Fabric& fabric) {
       std::vector<char> send(100000), recv(100000);
       std::vector<ExchangePart> parts(1);
       parts[0] = {send.data(), recv.data(), {}, {}};
       if (fabric.rank() == 1) parts[0].receives = {{2, 0, 100000}};
       if (fabric.rank() == 2) parts[0].sends = {{1, 0, 100000}};
       auto pending = fabric.all_to_all(parts, "dispatch layer 0");
       if (fabric.rank() == 2) sleep_long();
       pending.reset();
       fabric.barrier("after");
     }},
    {"small messages for ever", [](Fabric& fabric) { exchange(fabric, 100); }},
    {"large messages for ever", [](Fabric& fabric) { exchange(fabric, 3 << 20); }},
};

}  // namespace
}  // namespace distca

int main(int argc, char** argv) {
  const double timeout_s = argc > 2 ? std::atof(argv[2]) : 600;
  return distca::run_mpi_rank({.timeout_s = timeout_s}, distca::kFaults.at(argv[1]));
}
