// Checkpoints: one folder a step, which appears under its name when all of it is on disk, and a file `latest`
// that names the newest. A folder is a model that Hugging Face loads, with the optimizer's state and the
// place in the data beside it:
//
//   DIR/latest                                  "step-00000020"
//   DIR/step-00000020/config.json               the model
//                     model.safetensors         its weights
//                     optimizer.safetensors     exp_avg.NAME and exp_avg_sq.NAME for every tensor
//                     data.json                 where the stream of documents stands
//                     run.json                  updates done, measured speeds; written last
//
// The random numbers of a run are its initial weights and the order of its documents, both functions of the
// seed, so the place in the data is all the random state there is. Nothing in a checkpoint depends on the
// number of ranks. A run that was killed at any moment finds the newest whole checkpoint under `latest`.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "train/trainer.h"

namespace distca {

/// The folder that a checkpoint after `steps` steps has.
std::string checkpoint_folder(const Config::Checkpoint& config, int64_t steps);

/// The folder that DIR/latest names, or "" where there is none. Throws InputError when what it names is gone.
std::string latest_checkpoint(const std::string& dir);

/// The whole checkpoint of the most steps in a folder whose `latest` is lost, or "" where there is none.
/// Throws InputError when there are checkpoints and none is whole.
std::string newest_checkpoint(const std::string& dir);

/// The folder to resume from by the configuration's `checkpoint.resume`, or "" to start anew. Throws
/// InputError when it isn't there, or when a new run would mix its checkpoints with older ones.
std::string checkpoint_to_resume(const Config::Checkpoint& config);

/// Throws InputError unless `folder` is a checkpoint of this very model, in this type of weights.
void check_checkpoint(const std::string& folder, const LlamaConfig& model, const std::string& dtype);

/// The whole model of a run, wherever its parts are: weights, and the optimizer's two averages of each.
struct CheckpointTensors {
  std::vector<NamedTensor> weights, exp_avg, exp_avg_sq;
};

/// On rank 0; nothing elsewhere. A collective of the ranks that hold the model.
CheckpointTensors gather_checkpoint(const Trainer& trainer);

/// Writes the state of a run of which this is rank 0, points `latest` to it, and removes all but the newest
/// `keep` checkpoints (0: none is removed). Returns its folder. Throws Error when the disk is full or can't
/// be written; what `latest` named before is then still whole.
std::string save_checkpoint(const Config::Checkpoint& config, const Trainer& trainer,
                            const CheckpointTensors& tensors);

/// Brings a new trainer to the state of a checkpoint. Throws InputError that names the file when it is of
/// another model, another data set or other inputs, or was damaged.
void load_checkpoint(const std::string& folder, Trainer& trainer);

}  // namespace distca
