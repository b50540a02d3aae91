// The table of all keys, and what is derived from it alone.
#include <cmath>
#include <limits>
#include <sstream>
#include <utility>

#include "base/check.h"
#include "train/config.h"

namespace distca {
namespace {

constexpr double kAny = std::numeric_limits<double>::infinity();

/// Builds the table: `section`, then its keys, each refined by the calls that follow it.
class Table {
 public:
  Table& section(std::string name) {
    section_ = std::move(name);
    return *this;
  }
  Table& key(std::string name, ConfigSlot slot, std::string meaning) {
    keys_.push_back({section_, std::move(name), slot, std::move(meaning), -kAny, kAny, {}});
    return *this;
  }
  Table& least(double value) {
    keys_.back().least = value;
    return *this;
  }
  Table& between(double least, double most) {
    keys_.back().least = least;
    keys_.back().most = most;
    return *this;
  }
  Table& choices(std::vector<std::string> values) {
    keys_.back().choices = std::move(values);
    return *this;
  }
  std::vector<ConfigKey> take() { return std::move(keys_); }

 private:
  std::string section_;
  std::vector<ConfigKey> keys_;
};

void add_data_and_model(Table& table, Config& c) {
  table.section("data")
      .key("path", &c.data.path, "dataset: prefix of a Megatron `.bin`/`.idx` pair")
      .key("context", &c.data.context, "longest document in tokens; 0: as long as a nano-batch")
      .least(0)
      .key("split_documents", &c.data.split_documents,
           "a document longer than `context` becomes several (with a warning that counts them) instead of an "
           "error")
      .key("window", &c.data.window, "documents looked through for one that still fits in the step")
      .least(1);
  table.section("model")
      .key("config", &c.model.config, "a Hugging Face `config.json`, or the name of a preset")
      .key(
          "weights", &c.model.weights,
          "safetensors file, or folder of them, to start from; empty: random weights drawn from `train.seed`")
      .key(
          "dtype", &c.model.dtype,
          "type of activations, exchanges and products; weights have it too, but with `bfloat16` they, their "
          "gradients and the optimizer stay in `float32`")
      .choices({"float32", "float64", "bfloat16"});
}

void add_train(Table& table, Config& c) {
  table.section("train")
      .key("steps", &c.train.steps, "optimizer steps of the whole run")
      .least(1)
      .key("tokens_per_batch", &c.train.tokens_per_batch,
           "rows of one step, padding included; a multiple of `micro_batches` · `nano_batches`")
      .between(1, 1e10)
      .key("micro_batches", &c.train.micro_batches,
           "parts of a step that go through the model one after the other")
      .between(1, 1000)
      .key("nano_batches", &c.train.nano_batches, "parts of a micro-batch, packed and planned separately")
      .between(1, 16)
      .key("seed", &c.train.seed, "of the order of documents and of random weights")
      .least(0)
      .key("lr", &c.train.lr, "learning rate after the warm-up")
      .least(0)
      .key("min_lr", &c.train.min_lr, "learning rate of the last step, reached along a cosine")
      .least(0)
      .key("warmup", &c.train.warmup, "steps in which the learning rate rises linearly to `lr`")
      .least(0)
      .key("weight_decay", &c.train.weight_decay,
           "AdamW's, decoupled; of matrices only (norm weights have none)")
      .least(0)
      .key("clip", &c.train.clip, "largest global norm of the gradient; 0: not clipped")
      .least(0)
      .key("beta1", &c.train.beta1, "AdamW's decay of the first moment")
      .between(0, 1)
      .key("beta2", &c.train.beta2, "AdamW's decay of the second moment")
      .between(0, 1)
      .key("eps", &c.train.eps, "AdamW's term in the denominator")
      .least(1e-30)
      .key("device", &c.train.device,
           "where ranks hold their tensors and compute; `cuda` needs a CUDA build of PyTorch and a device")
      .choices({"cpu", "cuda"})
      .key("metrics", &c.train.metrics, "file of one JSON line per step; empty: none");
}

void add_attention(Table& table, Config& c) {
  table.section("attention")
      .key("policy", &c.attention.policy,
           "who computes core attention: planned over all ranks (`cad`), each rank its own queries (`none`), "
           "or a baseline")
      .choices({"cad", "none", "wlb", "cp", "cp-seq"})
      .key("layout", &c.attention.layout, "`free`: documents of a step may move between ranks first")
      .choices({"fixed", "free"})
      .key("tolerance", &c.attention.tolerance, "how far a rank's load may stay from its share")
      .between(0, 1)
      .key("min_gain", &c.attention.min_gain,
           "least seconds of compute moved per second of transfer; 0: off. In a run it needs `profile`")
      .least(0)
      .key("search", &c.attention.search, "moves tried to lower a plan's bytes; 0: none")
      .between(0, 1e9)
      .key("memory", &c.attention.memory,
           "for backward, the server keeps Q, K, V (`keep`) or gets them again from home (`resend`). `auto`: "
           "`resend` where pipeline stages share exchanges, whose backward is then planned anew, else `keep`")
      .choices({"auto", "keep", "resend"})
      .key("overlap", &c.attention.overlap,
           "exchanges run beside the other nano-batch's compute (`pingpong`), in order (`single`), or move "
           "one "
           "byte (`signal`: timing only)")
      .choices({"pingpong", "single", "signal"})
      .key("kernel", &c.attention.kernel,
           "core attention kernel: `auto` (the fastest there is), `cpu`, `pytorch`, `reference` or `plain`; "
           "on a CUDA device `flash` or `plain`")
      .key("profile", &c.attention.profile,
           "measured costs to plan by, a file of `distca profile`; empty: padded pairs")
      .key("graphs", &c.attention.graphs,
           "on a CUDA device, the work between two attentions is captured in CUDA graphs in the second step "
           "and is one start from then on");
}

void add_parallel_and_link(Table& table, Config& c) {
  table.section("parallel")
      .key("tp", &c.parallel.tp, "tensor-parallel degree: splits heads, MLP columns and vocabulary")
      .between(1, 1024)
      .key("pp", &c.parallel.pp, "pipeline stages")
      .between(1, 1024)
      .key("stage_layers", &c.parallel.stage_layers,
           "layers of each pipeline stage; empty: as even as they go")
      .least(1)
      .key("cp", &c.parallel.cp,
           "context-parallel degree of the baselines `wlb`, `cp`, `cp-seq`; divides the data-parallel ranks")
      .between(1, 1e6)
      .key("speeds", &c.parallel.speeds,
           "how fast ranks (or attention servers: those of one tensor-parallel index) are, relative to each "
           "other; `\"measured\"`: by what they take for attention, updated as the run goes on; empty: all "
           "equal")
      .least(1e-6)
      .key("servers", &c.parallel.servers,
           "dedicated attention servers per tensor-parallel index: ranks without a model")
      .between(0, 1e6)
      .key("recompute", &c.parallel.recompute,
           "activations computed again in backward: `selective` keeps attention outputs only")
      .choices({"none", "selective"})
      .key("schedule", &c.parallel.schedule,
           "order of pipeline stages: all in the same phase, so that idle stages serve attention "
           "(`same_phase`), or each on its own, attention shared inside a stage alone (`1f1b`)")
      .choices({"same_phase", "1f1b"})
      .key("shard_optimizer", &c.parallel.shard_optimizer, "split optimizer state over data-parallel ranks")
      .key("memory_limit", &c.parallel.memory_limit,
           "bytes of tensors a rank may hold; 0: no limit. Plans keep servers to so many K/V rows that it "
           "is kept; where none does, the run doesn't begin")
      .least(0)
      .key("timeout", &c.parallel.timeout, "seconds any wait for another rank may take")
      .between(0.001, 1e6)
      .key("threads", &c.parallel.threads, "compute threads of a rank; 0: cores ÷ ranks of this machine")
      .between(0, 4096);
  table.section("link")
      .key(
          "clock", &c.link.clock,
          "thread ranks: transfers take wall time, or every rank has a clock of its own that goes by its CPU "
          "time, with transfers beside it")
      .choices({"wall", "virtual"})
      .key("latency", &c.link.latency, "seconds a message takes besides its bytes, inside a node")
      .least(0)
      .key("bandwidth", &c.link.bandwidth, "bytes/s of a rank inside a node; 0: not limited")
      .least(0)
      .key("node_latency", &c.link.node_latency, "seconds a message between nodes takes besides its bytes")
      .least(0)
      .key("node_bandwidth", &c.link.node_bandwidth, "bytes/s of a node; 0: not limited")
      .least(0)
      .key("ranks_per_node", &c.link.ranks_per_node, "0: all ranks are one node")
      .least(0)
      .key("speeds", &c.link.speeds,
           "how fast the clock of each rank lets it compute, to see what unequal ranks do (`clock = "
           "\"virtual\"`); empty: all 1")
      .least(1e-6);
}

void add_checkpoint_and_cluster(Table& table, Config& c) {
  table.section("checkpoint")
      .key("dir", &c.checkpoint.dir, "folder of the checkpoints; empty: none are written")
      .key("every", &c.checkpoint.every, "steps between checkpoints; 0: one at the end of the run")
      .least(0)
      .key("keep", &c.checkpoint.keep, "checkpoints that stay, newest first; 0: all")
      .least(0)
      .key(
          "resume", &c.checkpoint.resume,
          "`latest`: go on from the newest checkpoint in `dir`, from the beginning where there is none; or a "
          "checkpoint's folder; empty: start anew");
  table.section("cluster")
      .key("gpus", &c.cluster.gpus, "`simulate` only: devices of the cluster")
      .least(0)
      .key("gpus_per_node", &c.cluster.gpus_per_node, "`simulate` only: devices of a node")
      .least(1)
      .key("profile", &c.cluster.profile, "`simulate` only: costs of the device")
      .key("distribution", &c.cluster.distribution, "`simulate` only: lengths of documents")
      .key("samples", &c.cluster.samples, "`simulate` only: iterations drawn")
      .least(1);
}

std::string type_name(const ConfigSlot& slot) {
  static constexpr const char* kNames[] = {"boolean", "integer",         "number",
                                           "text",    "list of numbers", "list of numbers, or text"};
  return kNames[slot.index()];
}

std::string number_text(double value) {
  std::ostringstream out;
  out << value;
  return out.str();
}

/// Limits and choices, as the documentation says them after the meaning.
std::string remarks(const ConfigKey& key) {
  std::string out;
  for (size_t i = 0; i < key.choices.size(); ++i)
    out += (i == 0 ? ". One of `" : " · `") + key.choices[i] + "`";
  if (key.most != kAny) {
    out += ". " + number_text(key.least) + " to " + number_text(key.most);
  } else if (key.least > 0) {
    out += ". At least " + number_text(key.least);
  }
  return out;
}

}  // namespace

std::vector<ConfigKey> config_keys(Config& config) {
  Table table;
  add_data_and_model(table, config);
  add_train(table, config);
  add_attention(table, config);
  add_parallel_and_link(table, config);
  add_checkpoint_and_cluster(table, config);
  return table.take();
}

std::string toml_text(const ConfigSlot& slot) {
  if (const auto* flag = std::get_if<bool*>(&slot)) return **flag ? "true" : "false";
  if (const auto* whole = std::get_if<int64_t*>(&slot)) return std::to_string(**whole);
  if (const auto* number = std::get_if<double*>(&slot)) return number_text(**number);
  if (const auto* string = std::get_if<std::string*>(&slot)) return "\"" + **string + "\"";
  const auto* speeds = std::get_if<SpeedSetting*>(&slot);
  if (speeds != nullptr && (*speeds)->measured) return "\"measured\"";
  std::string out = "[";
  for (double value : speeds != nullptr ? (*speeds)->given : *std::get<std::vector<double>*>(slot))
    out += (out.size() > 1 ? ", " : "") + number_text(value);
  return out + "]";
}

std::string config_table() {
  Config defaults;
  std::string out = "| key | type | default | meaning |\n|---|---|---|---|\n";
  for (const ConfigKey& key : config_keys(defaults)) {
    out += "| `" + key.full_name() + "` | " + type_name(key.slot) + " | `" + toml_text(key.slot) + "` | " +
           key.meaning + remarks(key) + " |\n";
  }
  return out;
}

}  // namespace distca
