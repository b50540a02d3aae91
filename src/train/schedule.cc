#include "train/schedule.h"

#include <cmath>
#include <memory>

#include "base/check.h"

namespace distca {
namespace {

/// A nano-batch on its way through the layers.
struct InFlight {
  const PreparedNanoBatch* batch = nullptr;
  std::string name;
  at::Tensor x;  // (rows, hidden)
  std::shared_ptr<AttentionCall> call;
  at::Tensor token;
};

void start_layer(const LlamaParameters& model, AttentionRuntime& runtime, InFlight& flight, int64_t layer) {
  const Qkv qkv = pre_attention(model, layer, flight.x, flight.batch->rope);
  flight.call = std::make_shared<AttentionCall>(runtime, flight.batch->tables, attention_shape(model.config),
                                                format("layer {} of nano-batch {}", layer, flight.name),
                                                /*differentiable=*/true);
  flight.token = dispatch_begin(flight.call, qkv.q, qkv.k, qkv.v);
}

void attend_layer(InFlight& flight) {
  flight.token = dispatch_end(flight.call, flight.token);
  flight.token = attend(flight.call, flight.token);
  flight.token = collect_begin(flight.call, flight.token);
}

void finish_layer(const LlamaParameters& model, InFlight& flight, int64_t layer) {
  const at::Tensor o = collect_end(flight.call, flight.token);
  flight.x = post_attention(model, layer, flight.x, o);
  flight.call = nullptr;
}

}  // namespace

AttentionShape attention_shape(const LlamaConfig& config) {
  AttentionShape shape;
  shape.heads = config.num_attention_heads;
  shape.kv_heads = config.num_key_value_heads;
  shape.head_dim = config.head_dim;
  shape.scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  return shape;
}

std::vector<at::Tensor> forward_losses(const LlamaParameters& model, AttentionRuntime& runtime,
                                       std::span<const PreparedNanoBatch> nano_batches, int64_t first) {
  std::vector<InFlight> flights;
  for (const PreparedNanoBatch& batch : nano_batches) {
    const auto number = first + static_cast<int64_t>(flights.size());
    flights.push_back({&batch, std::to_string(number), embed(model, batch.tokens), nullptr, {}});
  }
  const int64_t layers = model.config.num_hidden_layers;
  for (InFlight& flight : flights) start_layer(model, runtime, flight, 0);
  for (int64_t layer = 0; layer < layers; ++layer) {
    for (InFlight& flight : flights) attend_layer(flight);
    for (InFlight& flight : flights) {
      finish_layer(model, flight, layer);
      if (layer + 1 < layers) start_layer(model, runtime, flight, layer + 1);
    }
  }
  std::vector<at::Tensor> losses;
  for (const InFlight& flight : flights) losses.push_back(loss_sum(model, flight.x, flight.batch->targets));
  return losses;
}

}  // namespace distca
