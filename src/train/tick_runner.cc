#include "train/tick_runner.h"

#include <ATen/ops/cat.h>
#include <ATen/ops/empty.h>
#include <ATen/ops/full.h>
#include <ATen/ops/stack.h>

#include <cmath>
#include <utility>

#include "base/check.h"
#include "base/clock.h"

namespace distca {
namespace {

/// Scalars as numbers, 0 for those that are undefined or have no memory. The host waits for their device,
/// once.
std::vector<double> numbers(const std::vector<at::Tensor>& scalars) {
  std::vector<double> out(scalars.size(), 0);
  std::vector<at::Tensor> defined;
  for (const at::Tensor& scalar : scalars)
    if (scalar.defined() && !scalar.is_meta()) defined.push_back(scalar);
  if (defined.empty()) return out;
  const at::Tensor together = at::stack(defined).cpu();
  const double* next = together.const_data_ptr<double>();
  for (size_t i = 0; i < scalars.size(); ++i)
    if (scalars[i].defined() && !scalars[i].is_meta()) out[i] = *next++;
  return out;
}

/// The rows of `first`, then those of `second`: the buffer that they are views of, where they are all of it.
at::Tensor joined(std::vector<at::Tensor> first, std::vector<at::Tensor> second) {
  if (first.size() == 1 && second[0].size(0) == 0) return first[0];
  first.insert(first.end(), second.begin(), second.end());
  return at::cat(first, 0);
}

}  // namespace

AttentionShape attention_shape(const LlamaConfig& config, int32_t tp) {
  AttentionShape shape;
  shape.heads = config.num_attention_heads / tp;
  shape.kv_heads = config.num_key_value_heads / tp;
  shape.head_dim = config.head_dim;
  shape.scale = 1 / std::sqrt(static_cast<double>(config.head_dim));
  return shape;
}

/// A nano-batch in a tick, as this rank sees it.
struct TickRunner::Flight {
  const PreparedTick* tick = nullptr;
  int64_t nano_batch = 0;
  int64_t micro_batch = kIdle;  // of this rank
  StagePass* pass = nullptr;    // null on a rank that only serves
  std::unique_ptr<AttentionCall> call;
  at::Tensor result;  // of the pass: what goes to the next stage, or to the one before

  bool runs(int64_t slot) const { return pass != nullptr && slot < pass->layers(); }
  const SlotTables* tables(int64_t slot) const { return tick->slots[nano_batch][slot].get(); }
  int64_t slots() const { return static_cast<int64_t>(tick->slots[nano_batch].size()); }
};

TickRunner::TickRunner(const LlamaParameters& model, AttentionRuntime& runtime, StageLink* link,
                       const RunnerOptions& options)
    : model_(model), runtime_(runtime), link_(link), options_(options) {}

TickRunner::~TickRunner() = default;

template <typename Work>
auto TickRunner::ci(const Work& work) {
  struct Timer {
    double& sum;
    double begin = thread_cpu_seconds();
    ~Timer() { sum += thread_cpu_seconds() - begin; }
  } timer{ci_s};
  const SpanTimer span(runtime_.spans, WorkKind::kCi, "layer");
  return work();
}

void TickRunner::piece_is_done(int64_t piece) {
  if (--pieces_left_[piece] == 0 && sum_ != nullptr) sum_->start(piece);
}

void TickRunner::locate(const Flight& flight, int64_t slot) {
  if (runtime_.spans == nullptr) return;
  WorkPlace& place = runtime_.spans->place;
  const bool forward = flight.tick->tick.forward;
  const int64_t layers = flight.pass == nullptr ? 0 : flight.pass->layers();
  const int64_t layer = forward ? slot : layers - 1 - slot;
  const bool runs = flight.runs(slot);
  place.idle = flight.pass == nullptr && static_cast<size_t>(options_.stage) < options_.layers.size();
  place.micro_batch = static_cast<int32_t>(flight.micro_batch);
  place.nano_batch = static_cast<int32_t>(flight.nano_batch);
  place.layer = static_cast<int32_t>(runs ? model_.part.layer_begin + layer : -1);
  place.phase = forward ? "forward" : "backward";
}

std::vector<double> TickRunner::run(const std::vector<PreparedTick>& ticks,
                                    const std::vector<NanoBatchRows>& nano_batches, double loss_weight,
                                    GradientSum* sum) {
  rows_ = &nano_batches;
  nano_batches_ = static_cast<int64_t>(ticks.at(0).slots.size());
  loss_weight_ = loss_weight;
  losses_.assign(nano_batches.size(), at::Tensor());
  sum_ = sum;
  const LlamaPart& part = model_.part;
  pieces_left_.assign(static_cast<size_t>(part.layer_end - part.layer_begin + 1),
                      static_cast<int64_t>(nano_batches.size()));
  if (options_.interleave) {
    std::vector<Flight> flights = take_off(ticks[0]);
    for (size_t i = 0; i < ticks.size(); ++i) {
      const PreparedTick* const next = i + 1 < ticks.size() ? &ticks[i + 1] : nullptr;
      const bool go_on = next != nullptr && goes_on(ticks[i].tick, next->tick);
      fly(flights, go_on ? next : nullptr);
      if (next != nullptr && !go_on) flights = take_off(*next);
    }
  } else {
    for (const PreparedTick& tick : ticks) {
      for (int64_t nano_batch = 0; nano_batch < nano_batches_; ++nano_batch) {
        std::vector<Flight> alone;
        alone.push_back(take_off(tick, nano_batch));
        fly(alone, nullptr);
      }
    }
  }
  return numbers(losses_);
}

// In ticks of one direction a stage begins with what its neighbour has just finished, which travels while the
// others land. 1F1B's stages are in ticks of different numbers, and could wait for each other in a circle.
bool TickRunner::goes_on(const Tick& tick, const Tick& next) const {
  return options_.in_step && tick.forward != next.forward;
}

std::string TickRunner::name_of(const Flight& flight, int64_t slot) const {
  const Tick& tick = flight.tick->tick;
  if (tick.micro_batches.size() == 1) {
    const int64_t number = tick.micro_batches[0] * nano_batches_ + flight.nano_batch;
    const int64_t first = model_.part.layer_begin;
    return format("layer {} of nano-batch {}", first + (tick.forward ? slot : options_.layers[0] - 1 - slot),
                  number);
  }
  return format("layer slot {} of nano-batch {} in {} tick {}", slot, flight.nano_batch,
                tick.forward ? "forward" : "backward", tick.number);
}

std::vector<TickRunner::Flight> TickRunner::take_off(const PreparedTick& tick) {
  std::vector<Flight> flights;
  for (int64_t nano_batch = 0; nano_batch < nano_batches_; ++nano_batch)
    flights.push_back(take_off(tick, nano_batch));
  return flights;
}

TickRunner::Flight TickRunner::take_off(const PreparedTick& tick, int64_t nano_batch) {
  Flight flight;
  flight.tick = &tick;
  flight.nano_batch = nano_batch;
  if (options_.stage < static_cast<int32_t>(tick.tick.micro_batches.size()))
    flight.micro_batch = tick.tick.micro_batches[options_.stage];
  if (flight.micro_batch != kIdle) {
    std::unique_ptr<StagePass>& pass = passes_[{flight.micro_batch, nano_batch}];
    if (tick.tick.forward) {
      const NanoBatchRows& rows = (*rows_)[flight.micro_batch * nano_batches_ + nano_batch];
      pass = std::make_unique<StagePass>(model_, rows, options_.recompute, take_graphs(rows.rows));
    }
    flight.pass = pass.get();
  }
  locate(flight, 0);
  if (tick.tick.forward) {
    dispatch(flight, 0, first_qkv(flight));
  } else {
    grad_collect(flight, 0, first_grad_o(flight));
  }
  return flight;
}

void TickRunner::fly(std::vector<Flight>& flights, const PreparedTick* next) {
  const bool forward = flights[0].tick->tick.forward;
  const int64_t slots = flights[0].slots();
  for (int64_t slot = 0; slot < slots; ++slot) {
    for (size_t i = 0; i < flights.size(); ++i) {
      locate(flights[i], slot);
      Flight* const beside = i + 1 < flights.size() ? &flights[i + 1] : nullptr;
      forward ? attend(flights[i], slot, beside) : grad_attend(flights[i]);
    }
    for (Flight& flight : flights) {
      locate(flight, slot);
      Qkv qkv;
      at::Tensor grad_o;
      if (forward) {
        qkv = next_piece(flight, slot);
      } else {
        grad_o = grad_piece(flight, slot);
      }
      if (slot + 1 == slots) {
        land(flight);
        if (next != nullptr) flight = take_off(*next, flight.nano_batch);
        continue;
      }
      locate(flight, slot + 1);
      forward ? dispatch(flight, slot + 1, std::move(qkv)) : grad_collect(flight, slot + 1, grad_o);
    }
  }
}

void TickRunner::land(Flight& flight) {
  const bool forward = flight.tick->tick.forward;
  if (forward && flight.pass != nullptr && options_.last_stage) {
    losses_[flight.micro_batch * nano_batches_ + flight.nano_batch] = std::move(flight.result);
    flight.result = at::Tensor();
  }
  if (!forward && flight.pass != nullptr) end_pass(flight);
  if (link_ == nullptr) return;
  link_->give(forward, flight.result, rows_from(flight, options_.stage + (forward ? -1 : 1)));
  flight.result = at::Tensor();
}

std::unique_ptr<PassGraphs> TickRunner::take_graphs(int64_t rows) {
  if (!options_.graphs || rows == 0) return nullptr;
  auto& free = graphs_[rows];
  if (free.empty()) return std::make_unique<PassGraphs>(runtime_.device, model_);
  std::unique_ptr<PassGraphs> graphs = std::move(free.back());
  free.pop_back();
  return graphs;
}

void TickRunner::end_pass(const Flight& flight) {
  const auto pass = passes_.find({flight.micro_batch, flight.nano_batch});
  if (std::unique_ptr<PassGraphs> graphs = pass->second->release_graphs()) {
    graphs->let_go();
    graphs_[graphs->rows.rows].push_back(std::move(graphs));
  }
  passes_.erase(pass);
}

int64_t TickRunner::own_rows(const Flight& flight) const {
  return (*rows_)[flight.micro_batch * nano_batches_ + flight.nano_batch].rows / options_.tp;
}

// All stages of a nano-batch hold as many rows of it on ranks of the same place in data parallel.
int64_t TickRunner::rows_from(const Flight& flight, int64_t stage) const {
  const auto& micro_batches = flight.tick->tick.micro_batches;
  const auto stages = static_cast<int64_t>(micro_batches.size());
  if (options_.stage >= stages || stage < 0 || stage >= stages || micro_batches[stage] == kIdle) return 0;
  return (*rows_)[micro_batches[stage] * nano_batches_ + flight.nano_batch].rows / options_.tp;
}

Qkv TickRunner::first_qkv(Flight& flight) {
  if (flight.pass == nullptr) return {};
  const at::Tensor x = model_.part.embedding ? at::Tensor() : link_->take(true, own_rows(flight));
  return ci([&] { return flight.pass->begin(x); });
}

Qkv TickRunner::next_piece(Flight& flight, int64_t slot) {
  const at::Tensor o = collect(flight, slot);
  Qkv qkv;
  if (!flight.runs(slot)) return qkv;
  ci([&] {
    if (slot + 1 == flight.pass->layers()) {
      flight.result = flight.pass->finish(o);
    } else {
      qkv = flight.pass->next(slot + 1, o);
    }
  });
  return qkv;
}

Qkv TickRunner::no_rows() const {
  const auto options = at::TensorOptions().dtype(options_.dtype).device(runtime_.device);
  const AttentionShape& shape = options_.shape;
  const at::Tensor none = at::empty({0, shape.kv_heads, shape.head_dim}, options);
  return {at::empty({0, shape.heads, shape.head_dim}, options), none, none};
}

void TickRunner::dispatch(Flight& flight, int64_t slot, Qkv qkv) {
  const SlotTables* tables = flight.tables(slot);
  if (tables == nullptr) return;
  if (!flight.runs(slot)) qkv = no_rows();
  flight.call =
      std::make_unique<AttentionCall>(runtime_, BatchTables{tables->tables, nullptr}, options_.shape,
                                      name_of(flight, slot), /*differentiable=*/true);
  flight.call->dispatch_begin(qkv.q.detach(), qkv.k.detach(), qkv.v.detach());
}

void TickRunner::attend(Flight& flight, int64_t slot, Flight* beside) {
  if (flight.call == nullptr) return;
  flight.call->attend_local();
  if (beside != nullptr && beside->call != nullptr && !flight.call->arrived()) {
    locate(*beside, slot);
    beside->call->attend_local();
    locate(flight, slot);
  }
  flight.call->dispatch_end();
  flight.call->attend();
  flight.call->collect_begin();
}

at::Tensor TickRunner::collect(Flight& flight, int64_t slot) {
  if (flight.call == nullptr) return {};
  at::Tensor o = flight.call->collect_end();
  AttentionKept kept = flight.call->release();
  flight.call = nullptr;
  if (runtime_.options.memory == AttentionMemory::kKeep) keep_on_server(flight, slot, kept);
  kept.rest_q = kept.rest_k = kept.rest_v = at::Tensor();
  if (flight.runs(slot)) {
    kept.o = o = flight.pass->hold(slot, o);
    at_home_[{options_.stage, flight.micro_batch, flight.nano_batch, slot}] = std::move(kept);
  }
  return o;
}

// Stage by stage, because their backwards come in different ticks.
void TickRunner::keep_on_server(const Flight& flight, int64_t slot, const AttentionKept& kept) {
  const SlotTables& tables = *flight.tables(slot);
  SlotTables::Ends q, kv;
  for (size_t stage = 0; stage < tables.q_end.size(); ++stage) {
    const auto rows = [&](const at::Tensor& rest, int64_t all_arrived, const SlotTables::Ends& from,
                          const SlotTables::Ends& to) -> ServerRows {
      return {rest.narrow(0, from.arrived, to.arrived - from.arrived),
              rest.narrow(0, all_arrived + from.copied, to.copied - from.copied)};
    };
    const int64_t micro_batch = flight.tick->tick.micro_batches[stage];
    if (micro_batch != kIdle && slot < options_.layers[stage]) {
      const int64_t q_rows = tables.tables->q.arrived_rows, kv_rows = tables.tables->kv.arrived_rows;
      on_server_[{static_cast<int64_t>(stage), micro_batch, flight.nano_batch, slot}] = {
          rows(kept.rest_q, q_rows, q, tables.q_end[stage]),
          rows(kept.rest_k, kv_rows, kv, tables.kv_end[stage]),
          rows(kept.rest_v, kv_rows, kv, tables.kv_end[stage])};
    }
    q = tables.q_end[stage], kv = tables.kv_end[stage];
  }
}

at::Tensor TickRunner::first_grad_o(Flight& flight) {
  if (flight.pass == nullptr) return {};
  ci([&] { flight.pass->recompute(flight.pass->layers()); });
  const at::Tensor grad =
      options_.last_stage
          ? at::full({}, loss_weight_, at::TensorOptions().dtype(at::kDouble).device(runtime_.device))
          : link_->take(false, own_rows(flight));
  const at::Tensor grad_o = ci([&] { return flight.pass->grad_finish(grad); });
  piece_is_done(flight.pass->layers());
  return grad_o;
}

AttentionKept TickRunner::take_kept(const Flight& flight, int64_t slot) {
  AttentionKept kept;
  if (flight.runs(slot)) {
    const auto at = at_home_.find(
        {options_.stage, flight.micro_batch, flight.nano_batch, flight.pass->layers() - 1 - slot});
    kept = std::move(at->second);
    at_home_.erase(at);
  } else {
    const Qkv none = no_rows();
    kept.dtype = options_.dtype;
    kept.home_q = kept.o = none.q;
    kept.home_k = none.k, kept.home_v = none.v;
    kept.lse = at::empty({0, options_.shape.heads}, none.q.options().dtype(accumulator_type(options_.dtype)));
  }
  if (runtime_.options.memory == AttentionMemory::kResend) return kept;
  // What arrived, stage after stage, then the copies.
  std::vector<at::Tensor> arrived[3], copied[3];
  const auto& micro_batches = flight.tick->tick.micro_batches;
  for (size_t stage = 0; stage < micro_batches.size(); ++stage) {
    const int64_t layer = options_.layers[stage] - 1 - slot;
    const auto at =
        on_server_.find({static_cast<int64_t>(stage), micro_batches[stage], flight.nano_batch, layer});
    if (at == on_server_.end()) continue;
    for (size_t i = 0; i < 3; ++i) {
      arrived[i].push_back(std::move(at->second[i].arrived));
      copied[i].push_back(std::move(at->second[i].copied));
    }
    on_server_.erase(at);
  }
  at::Tensor* const rest[3] = {&kept.rest_q, &kept.rest_k, &kept.rest_v};
  for (size_t i = 0; i < 3; ++i) *rest[i] = joined(std::move(arrived[i]), std::move(copied[i]));
  return kept;
}

void TickRunner::grad_collect(Flight& flight, int64_t slot, const at::Tensor& grad_o) {
  const SlotTables* tables = flight.tables(slot);
  if (tables == nullptr) return;
  AttentionKept kept = take_kept(flight, slot);
  const at::Tensor grad = flight.runs(slot) ? grad_o : kept.o;
  flight.call = std::make_unique<AttentionCall>(runtime_, BatchTables{tables->tables, tables->tables},
                                                options_.shape, name_of(flight, slot), std::move(kept));
  flight.call->grad_collect_begin(grad);
}

void TickRunner::grad_attend(Flight& flight) {
  if (flight.call != nullptr) {
    flight.call->grad_collect_end();
    flight.call->grad_attend();
    flight.call->grad_dispatch_begin();
  }
  if (sum_ != nullptr) sum_->advance();
}

// The piece below the layer of this slot: dO of the layer below it.
at::Tensor TickRunner::grad_piece(Flight& flight, int64_t slot) {
  const bool runs = flight.runs(slot);
  const int64_t piece = runs ? flight.pass->layers() - 1 - slot : 0;
  // Beside the exchange that brings the gradients.
  if (runs) ci([&] { flight.pass->recompute(piece); });
  if (flight.call == nullptr) return {};
  const auto [dq, dk, dv] = flight.call->grad_dispatch_end();
  flight.call = nullptr;
  if (!runs) return {};
  const at::Tensor grad = ci([&] { return flight.pass->grad_next(piece, dq, dk, dv); });
  piece_is_done(piece);
  if (piece > 0) return grad;
  flight.result = grad;
  return {};
}

}  // namespace distca
