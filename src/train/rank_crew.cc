#include "train/rank_crew.h"

namespace distca {

RankCrew::RankCrew(Fabric& world, const RunInputs& inputs, const RankGrid& grid, const RankPlace& place,
                   SpanLog& spans)
    : fabrics(make_fabrics(world, grid, place, inputs.model.tie_word_embeddings)),
      group(make_group(*fabrics.tensor, inputs.config)),
      exchanging(in_step(inputs.config) ? nullptr
                                        : fabrics.attention->split(place.stage, "the ranks of a stage")),
      runtime(exchanging ? *exchanging : *fabrics.attention, runtime_options(inputs.config), inputs.device),
      link(make_link(*fabrics.attention, inputs, grid, inputs.device)) {
  runtime.spans = group.spans = &spans;
  if (link) link->spans = &spans;
  if (inputs.config.attention.overlap == "signal") runtime.signal = std::make_unique<SignalRows>();
}

void RankCrew::take(FlatParameters& parameters, const RunInputs& inputs, const RankGrid& grid,
                    const RankPlace& place) {
  LlamaParameters& model = parameters.model;
  if (group.size() > 1 && !place.server) model.group = &group;
  if (!place.server) {
    gradient_sum = std::make_unique<GradientSum>(*fabrics.data, parameters);
    gradient_sum->spans = runtime.spans;
  }
  runner = std::make_unique<TickRunner>(model, runtime, link.get(), runner_options(inputs, grid, place));
}

int64_t RankCrew::bytes_sent() const {
  return runtime.stats.total_bytes() + group.bytes + (link ? link->bytes_sent : 0);
}

double RankCrew::waited_s() const {
  return runtime.stats.wait_s + group.wait_s + (link ? link->wait_s : 0) +
         (gradient_sum ? gradient_sum->wait_s : 0);
}

}  // namespace distca
