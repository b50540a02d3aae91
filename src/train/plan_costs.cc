#include "train/plan_costs.h"

#include "base/check.h"

namespace distca {
namespace {

double weights_of_head(const LlamaConfig& config) {
  return static_cast<double>(config.vocab_size * config.hidden_size);
}

}  // namespace

StageWork stage_work(const LlamaConfig& config) {
  const double pairs_per_weight = 2.0 / static_cast<double>(4 * config.num_attention_heads * config.head_dim);
  StageWork work;
  work.per_row_layer = static_cast<double>(config.layer_parameters()) * pairs_per_weight;
  work.per_row_head = weights_of_head(config) * pairs_per_weight;
  return work;
}

StageWork stage_work(const LlamaConfig& config, const Profile& profile, const TaskCost& cost, int64_t rows,
                     int32_t tp) {
  const LinearTimes& linear = profile.linear();
  StageWork work = stage_work(config);
  if (linear.tokens.empty()) {
    constexpr int64_t kTiles = 64;
    const double of_pair = static_cast<double>(cost.of_tiles(kTiles)) / (kTiles * kTileRows * kTileRows);
    work.per_row_layer *= of_pair;
    work.per_row_head *= of_pair;
    work.backward = 2;
    return work;
  }
  const double forward = seconds_at(linear.tokens, linear.forward_s, rows);
  const auto measured = static_cast<double>(find_llama_config(linear.model).layer_parameters());
  const double of_weight = 1e12 * forward / static_cast<double>(rows) / measured / tp;
  work.per_row_layer = of_weight * static_cast<double>(config.layer_parameters());
  work.per_row_head = of_weight * weights_of_head(config);
  work.backward = seconds_at(linear.tokens, linear.backward_s, rows) / forward;
  return work;
}

LinkTimes slowest_link(const Config& config, const Links& links, int32_t ranks) {
  const Config::Link& given = config.link;
  const bool nodes = given.ranks_per_node > 0 && ranks > given.ranks_per_node;
  LinkTimes link{given.latency, given.bandwidth};
  if (nodes) {
    link.latency_s = std::max(link.latency_s, given.node_latency);
    const double share = given.node_bandwidth / static_cast<double>(given.ranks_per_node);
    if (share > 0) link.bytes_per_s = link.bytes_per_s > 0 ? std::min(link.bytes_per_s, share) : share;
  }
  if (link.bytes_per_s > 0) return link;
  return links.inter.bytes_per_s < links.intra.bytes_per_s ? links.inter : links.intra;
}

void set_costs(const Config& config, const LlamaConfig& model, const LayerHeads& heads,
               TickPlanOptions& options) {
  const auto& attention = config.attention;
  options.work = stage_work(model);
  if (attention.profile.empty()) {
    DISTCA_CHECK_INPUT(attention.min_gain == 0,
                       "attention.min_gain = {} needs attention.profile: without one there are no seconds",
                       attention.min_gain);
    return;
  }
  LinkTimes link;
  try {
    const Profile profile = Profile::read(attention.profile);
    options.plan.cost = TaskCost(profile.attention(heads, "forward"));
    options.backward_cost = TaskCost(profile.attention(heads, "backward"));
    const int64_t rows = (rows_of_nano_batch(config) + options.grid.dp - 1) / options.grid.dp;
    options.work = stage_work(model, profile, options.plan.cost, rows, options.grid.tp);
    link = slowest_link(config, profile.links(), options.grid.world_size());
  } catch (const InputError& error) {
    throw InputError(format("attention.profile: {}", error.what()));
  }
  DISTCA_CHECK_INPUT(
      attention.min_gain == 0 || link.bytes_per_s > 0,
      "attention.min_gain = {} needs a link's bytes per second: link.bandwidth, or the profile's "
      "links",
      attention.min_gain);
  if (link.bytes_per_s <= 0) return;
  const bool beside_another = attention.overlap != "single" && config.train.nano_batches > 1;
  options.link = LinkCost{1e12 / link.bytes_per_s, 1e12 * link.latency_s, beside_another};
  options.plan.min_gain = attention.min_gain * options.link->load_per_byte;
}

}  // namespace distca
