// Runs the ticks of a step on one rank: context-independent pieces of the nano-batches it holds, its
// attention tasks, and the exchanges. Every rank that shares exchanges goes through the same steps in the
// same order, whether it holds a micro-batch in a tick or only serves. Nano-batches A and B run interleaved,
// so that the exchanges of one travel beside the compute of the other:
//
//   CI(A) | dispatch(A) ∥ CI(B) | attend(A) ∥ dispatch(B) | collect(A) ∥ attend(B) | CI(A) ∥ collect(B) | …
//
// and backward in the mirrored order. Where A's rows aren't there yet, the tasks of A and B that need none of
// others' come first. From a forward tick to a backward one and back each goes on as it lands, so that the
// last exchange of B travels beside the next tick of A. Run apart ("single"), one follows the other.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "attend/attention_call.h"
#include "train/gradient_sum.h"
#include "train/stage_link.h"
#include "train/stage_pass.h"
#include "train/tick_plans.h"

namespace distca {

/// Core attention of this model's layers, on one tensor-parallel rank.
AttentionShape attention_shape(const LlamaConfig& config, int32_t tp = 1);

struct RunnerOptions {
  bool interleave = true;  // ping-pong
  bool in_step = true;     // all ranks of all stages go through the same ticks
  bool recompute = false;
  bool graphs = false;          // pieces are captured in graphs
  int32_t stage = 0;            // of this rank, among those that share exchanges; of a server: none of them
  bool last_stage = true;       // of the whole model: its last piece is the loss
  std::vector<int64_t> layers;  // of the stages that share exchanges
  AttentionShape shape;
  at::ScalarType dtype = at::kFloat;  // of activations
  int32_t tp = 1;
};

class TickRunner {
 public:
  /// `link` is null where there is one stage.
  TickRunner(const LlamaParameters& model, AttentionRuntime& runtime, StageLink* link,
             const RunnerOptions& options);
  ~TickRunner();

  /// Runs the ticks in order; gradients add up in the parameters. `nano_batches` are those of the step,
  /// micro-batch after micro-batch; `loss_weight` is what each cross-entropy counts in the loss. Returns the
  /// sum of this rank's cross-entropies of each nano-batch: 0 but on the last stage. Gradients of a piece
  /// that are complete go to `sum`, which may be null; the caller finishes it.
  std::vector<double> run(const std::vector<PreparedTick>& ticks,
                          const std::vector<NanoBatchRows>& nano_batches, double loss_weight,
                          GradientSum* sum = nullptr);

  double ci_s = 0;  // thread CPU time in context-independent pieces, since the beginning

 private:
  struct Flight;
  struct Kept;
  using Layer = std::array<int64_t, 4>;  // stage, micro-batch, nano-batch, layer of the stage
  /// Rows of one stage's documents that this rank serves and isn't home to.
  struct ServerRows {
    at::Tensor arrived, copied;
  };

  /// Does the piece before the first exchange of a tick, and sends that off.
  Flight take_off(const PreparedTick& tick, int64_t nano_batch);
  std::vector<Flight> take_off(const PreparedTick& tick);
  /// Takes nano-batches through their tick and, as each ends, into `next` unless that is null.
  void fly(std::vector<Flight>& flights, const PreparedTick* next);
  void land(Flight& flight);
  /// Whether nano-batches go on into `next` one by one, rather than all once the last has landed.
  bool goes_on(const Tick& tick, const Tick& next) const;
  /// Graphs for a pass of so many rows; null where none are wanted.
  std::unique_ptr<PassGraphs> take_graphs(int64_t rows);
  void end_pass(const Flight& flight);
  /// Rows that stage `stage` sends this one of a flight's nano-batch at the end of its tick; 0 for none.
  int64_t rows_from(const Flight& flight, int64_t stage) const;
  int64_t own_rows(const Flight& flight) const;
  std::string name_of(const Flight& flight, int64_t slot) const;

  /// What a rank that isn't home to a flight's rows gives.
  Qkv no_rows() const;
  Qkv first_qkv(Flight& flight);
  void dispatch(Flight& flight, int64_t slot, Qkv qkv);
  /// `beside` is another nano-batch of the tick whose exchange may be under way, or null.
  void attend(Flight& flight, int64_t slot, Flight* beside);
  Qkv next_piece(Flight& flight, int64_t slot);
  at::Tensor collect(Flight& flight, int64_t slot);
  void keep_on_server(const Flight& flight, int64_t slot, const AttentionKept& kept);

  at::Tensor first_grad_o(Flight& flight);
  void grad_collect(Flight& flight, int64_t slot, const at::Tensor& grad_o);
  void grad_attend(Flight& flight);
  AttentionKept take_kept(const Flight& flight, int64_t slot);
  at::Tensor grad_piece(Flight& flight, int64_t slot);

  /// One more nano-batch has added its gradients of this piece.
  void piece_is_done(int64_t piece);

  /// Runs a piece of context-independent work and counts its time.
  template <typename Work>
  auto ci(const Work& work);
  /// What is recorded next is for this slot of the flight.
  void locate(const Flight& flight, int64_t slot);

  const LlamaParameters& model_;
  AttentionRuntime& runtime_;
  StageLink* link_;
  RunnerOptions options_;
  const std::vector<NanoBatchRows>* rows_ = nullptr;
  int64_t nano_batches_ = 1;  // of a micro-batch
  double loss_weight_ = 1;
  std::vector<at::Tensor> losses_;  // scalars; undefined where this rank has none
  GradientSum* sum_ = nullptr;
  std::vector<int64_t> pieces_left_;  // by piece: nano-batches of the step still to add gradients
  std::map<std::array<int64_t, 2>, std::unique_ptr<StagePass>> passes_;  // micro-batch, nano-batch
  std::map<int64_t, std::vector<std::unique_ptr<PassGraphs>>> graphs_;   // by rows: those of no pass now
  std::map<Layer, AttentionKept> at_home_;                               // of this rank's stage
  std::map<Layer, std::array<ServerRows, 3>> on_server_;                 // Q, K, V: keep
};

}  // namespace distca
