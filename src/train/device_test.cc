// Whole runs on devices that are not the CPU, with exchanges on streams of their own: the dense model's
// numbers, every access to memory in order, and every order that is missing found.
#include <gtest/gtest.h>

#include <algorithm>
#include <map>
#include <random>

#include "attend/recording_device.h"
#include "base/check.h"
#include "comm/nccl_threads.h"
#include "train/exact_modes.h"

namespace distca {
namespace {

using testing::ExactMode;
using testing::RunResult;
using Kind = StreamEntry::Kind;

struct DeviceRun {
  RunResult result;
  std::vector<std::vector<StreamEntry>> logs;  // by rank
};

/// Every rank on a device of its own.
DeviceRun run_on_devices(int32_t ranks, const RunInputs& inputs) {
  DeviceRun run;
  run.logs.resize(static_cast<size_t>(ranks));
  const auto library = make_nccl_for_threads(testing::device_for_fabrics(testing::recording_device(0)));
  const auto store = std::make_shared<MemoryStore>();
  std::vector<StreamLog> logs(static_cast<size_t>(ranks));
  std::vector<NcclJob> jobs;
  for (int32_t rank = 0; rank < ranks; ++rank) {
    const at::Device device = testing::recording_device(rank);
    testing::record_to(device, &logs[static_cast<size_t>(rank)]);
    jobs.push_back({testing::device_for_fabrics(device), library, store, rank, ranks, {}});
  }
  run_nccl_thread_ranks(jobs, [&](Fabric& fabric) {
    RunInputs own = inputs;
    own.device = testing::recording_device(fabric.rank());
    RunResult of_rank = testing::run_rank(fabric, own);
    if (fabric.rank() == 0) run.result = std::move(of_rank);
  });
  for (int32_t rank = 0; rank < ranks; ++rank) {
    testing::record_to(testing::recording_device(rank), nullptr);
    run.logs[static_cast<size_t>(rank)] = logs[static_cast<size_t>(rank)].take();
  }
  return run;
}

/// With graphs pieces run as ever in the first step, are captured in the second, and run as graphs from there
/// on: a fourth step's loss shows what the third has left.
RunInputs inputs_of(const ExactMode& mode) {
  RunInputs inputs = testing::exact_run(mode, "float64");
  // Half the rows; documents still lie over three ranks.
  inputs.config.train.tokens_per_batch /= 2;
  inputs.source = testing::random_documents(
      {350, 1, 150, 200, 1, 145, 19, 325, 155, 2, 197, 1, 64, 128, 65, 405, 300, 3, 255},
      inputs.model.vocab_size, 3);
  inputs.config.train.steps = !mode.graphs ? 2 : mode.overlap == "single" ? 3 : 4;
  inputs.model.num_hidden_layers = 2;
  return inputs;
}

std::vector<ExactMode> modes() {
  std::vector<ExactMode> modes;
  for (const bool graphs : {false, true})
    for (const char* overlap : {"pingpong", "single"})
      for (const char* memory : {"keep", "resend"})
        for (const int64_t tp : {1, 2})
          for (const int64_t pp : {1, 2}) {
            modes.push_back({overlap, memory, tp, pp, 0, "fixed", 1});
            modes.back().graphs = graphs;
          }
  // Pieces made again before their backward, and several micro-batches whose passes are under way at a time.
  for (const int64_t tp : {1, 2}) {
    modes.push_back({"pingpong", "resend", tp, 2, 0, "fixed", tp == 1 ? 3 : 1});
    modes.back().recompute = "selective";
    modes.back().graphs = true;
  }
  return modes;
}

bool meet(const StreamEntry& a, const StreamEntry& b) {
  const bool writes = a.kind != Kind::kRead || b.kind != Kind::kRead;
  return writes && a.begin < b.end && b.begin < a.end;
}

/// A stream's wait for another's event, and the entries that nothing else orders: those of the other stream
/// since the last event that it had waited for, and its own until it waits for the next.
struct Wait {
  size_t entry = 0, record = 0, record_before = 0, next = 0;

  bool is_needed(const std::vector<StreamEntry>& log) const {
    for (size_t a = record_before; a < record; ++a) {
      if (log[a].stream != log[record].stream || log[a].end == 0) continue;
      for (size_t b = a + 1; b < next; ++b) {
        if (b < entry || log[b].stream != log[entry].stream || !meet(log[a], log[b])) continue;
        if (log[a].what == testing::kTransfer || log[b].what == testing::kTransfer) return true;
        break;
      }
    }
    return false;
  }
};

/// Waits of one stream for another that an exchange needs.
std::vector<int64_t> needed_waits(const std::vector<StreamEntry>& log) {
  std::map<int64_t, size_t> recorded;
  std::map<std::pair<int32_t, int32_t>, Wait> last;  // by the streams that wait and that are waited for
  std::vector<int64_t> needed;
  const auto end = [&](Wait& wait, size_t next) {
    wait.next = next;
    if (wait.record > 0 && wait.is_needed(log)) needed.push_back(static_cast<int64_t>(wait.entry));
  };
  for (size_t i = 0; i < log.size(); ++i) {
    if (log[i].kind == Kind::kRecord) recorded[log[i].event] = i;
    const auto event = recorded.find(log[i].event);
    if (log[i].kind != Kind::kWait || event == recorded.end()) continue;
    if (log[event->second].stream == log[i].stream) continue;
    Wait& wait = last[{log[i].stream, log[event->second].stream}];
    end(wait, i);
    wait = {i, event->second, std::max(wait.record, wait.record_before), 0};
  }
  for (auto& [streams, wait] : last) end(wait, log.size());
  return needed;
}

TEST(OnDevices, RunsEqualTheDenseModelAndAreOrderedAndMissingEventsAreFound) {
  std::vector<std::vector<StreamEntry>> logs;
  std::map<std::pair<int64_t, int64_t>, RunResult> dense;  // by micro-batches and steps
  for (const ExactMode& mode : modes()) {
    SCOPED_TRACE(mode.name());
    const RunInputs inputs = inputs_of(mode);
    DeviceRun run = run_on_devices(mode.tp * mode.pp == 4 ? 8 : 4, inputs);
    const std::pair batches = {mode.micro_batches, inputs.config.train.steps};
    if (dense.count(batches) == 0) dense[batches] = testing::run_dense(inputs);
    const auto off = testing::distance(run.result, dense[batches]);
    EXPECT_LE(off.loss, 1e-10);
    EXPECT_LE(off.gradient, 1e-11);
    for (size_t rank = 0; rank < run.logs.size(); ++rank) {
      for (const std::string& fault : unordered_accesses(run.logs[rank], -1, 3))
        ADD_FAILURE() << "rank " << rank << ": " << fault;
      logs.push_back(std::move(run.logs[rank]));
    }
  }
  const uint64_t seed = std::random_device{}();
  SCOPED_TRACE("seed " + std::to_string(seed));
  std::mt19937_64 random(seed);
  for (int tried = 0; tried < 50;) {
    const auto& log = logs[random() % logs.size()];
    const std::vector<int64_t> waits = needed_waits(log);
    if (waits.empty()) continue;  // a rank that exchanges nothing
    ++tried;
    const int64_t left_out = waits[random() % waits.size()];
    EXPECT_FALSE(unordered_accesses(log, left_out).empty()) << "entry " << left_out << " of " << log.size();
  }
}

}  // namespace
}  // namespace distca
