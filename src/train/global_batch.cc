#include "train/global_batch.h"

#include <algorithm>
#include <utility>

#include "base/check.h"
#include "base/digest.h"
#include "base/json.h"
#include "plan/baselines.h"
#include "train/epoch_order.h"

namespace distca {
namespace {

void check_inputs(const TokenSource& source, const BatchInputs& inputs) {
  const int64_t parts = inputs.micro_batches * inputs.nano_batches;
  DISTCA_CHECK_INPUT(parts > 0 && inputs.tokens_per_batch > 0 && inputs.tokens_per_batch % parts == 0,
                     "{} tokens per batch don't divide into {} micro-batches of {} nano-batches",
                     inputs.tokens_per_batch, inputs.micro_batches, inputs.nano_batches);
  DISTCA_CHECK_INPUT(inputs.context > 0 && inputs.context <= inputs.rows(),
                     "a context of {} tokens is not between 1 and a nano-batch's {} rows", inputs.context,
                     inputs.rows());
  DISTCA_CHECK_INPUT(inputs.window > 0, "a window of {} documents holds none", inputs.window);
  const LongDocuments too_long = find_long_documents(source, inputs.context);
  DISTCA_CHECK_INPUT(too_long.count == 0 || inputs.split_documents,
                     "{}: document {} has {} tokens, more than the context of {} (the first of {} such): "
                     "raise data.context or set data.split_documents",
                     source.name, too_long.first, source.length(too_long.first), inputs.context,
                     too_long.count);
}

Json inputs_json(const TokenSource& source, const BatchInputs& inputs, uint64_t lengths_digest) {
  return {{"documents", source.documents},
          {"lengths", hex_digest(lengths_digest)},
          {"data.context", inputs.context},
          {"data.split_documents", inputs.split_documents},
          {"data.window", inputs.window},
          {"train.seed", inputs.seed},
          {"train.tokens_per_batch", inputs.tokens_per_batch},
          {"train.micro_batches", inputs.micro_batches},
          {"train.nano_batches", inputs.nano_batches}};
}

}  // namespace

std::vector<int64_t> NanoBatch::lengths() const {
  std::vector<int64_t> out;
  for (const Piece& piece : documents) out.push_back(piece.tokens.size());
  return out;
}

int64_t NanoBatch::tokens() const {
  int64_t sum = 0;
  for (const Piece& piece : documents) sum += piece.tokens.size();
  return sum;
}

int64_t NanoBatch::targets() const {
  return tokens() - static_cast<int64_t>(documents.size());
}

int64_t GlobalBatch::tokens() const {
  int64_t sum = 0;
  for (const NanoBatch& nano_batch : nano_batches) sum += nano_batch.tokens();
  return sum;
}

int64_t GlobalBatch::targets() const {
  int64_t sum = 0;
  for (const NanoBatch& nano_batch : nano_batches) sum += nano_batch.targets();
  return sum;
}

int64_t GlobalBatch::padding() const {
  return rows * static_cast<int64_t>(nano_batches.size()) - tokens();
}

LongDocuments find_long_documents(const TokenSource& source, int64_t context) {
  LongDocuments found;
  for (int64_t doc = 0; doc < source.documents; ++doc) {
    const int64_t length = source.length(doc);
    if (length <= context) continue;
    if (found.count++ == 0) found.first = doc;
    found.parts += (length + context - 1) / context;
  }
  return found;
}

BatchStream::BatchStream(TokenSource source, BatchInputs inputs)
    : source_(std::move(source)), inputs_(std::move(inputs)) {
  check_inputs(source_, inputs_);
  bool any = false;
  for (int64_t doc = 0; doc < source_.documents; ++doc) {
    const int64_t length = source_.length(doc);
    any = any || length > 0;
    lengths_digest_ = mix64(lengths_digest_ ^ static_cast<uint64_t>(length));
  }
  DISTCA_CHECK_INPUT(any, "{}: the dataset holds no tokens", source_.name);
}

Piece BatchStream::draw() {
  while (true) {
    if (state_.next == source_.documents) {
      state_.next = 0;
      ++state_.epoch;
    }
    const EpochOrder order(source_.documents, static_cast<uint64_t>(inputs_.seed), state_.epoch);
    const int64_t doc = order[state_.next], length = source_.length(doc);
    const Span tokens{state_.next_token, std::min(length, state_.next_token + inputs_.context)};
    state_.next_token = tokens.end;
    if (tokens.end == length) {
      state_.next_token = 0;
      ++state_.next;
    }
    if (!tokens.empty()) return {doc, tokens};
  }
}

GlobalBatch BatchStream::next() {
  if (repeated_) {
    repeated_->step = state_.step++;
    return *repeated_;
  }
  GlobalBatch batch = next_in_order();
  if (workload_groups_ > 0) pack(batch);
  return batch;
}

void BatchStream::pack(GlobalBatch& batch) {
  // What waits comes first, in its order, so that the packer's queues are as it left them.
  std::vector<Piece> pieces = std::exchange(state_.waiting, {});
  for (NanoBatch& nano_batch : batch.nano_batches) {
    pieces.insert(pieces.end(), nano_batch.documents.begin(), nano_batch.documents.end());
    nano_batch.documents.clear();
  }
  std::vector<WlbPacker::Document> documents;
  for (const Piece& piece : pieces)
    documents.push_back({static_cast<int64_t>(documents.size()), piece.tokens.size()});
  const auto groups = static_cast<int32_t>(batch.nano_batches.size()) * workload_groups_;
  WlbPacker packer(groups, (batch.rows + workload_groups_ - 1) / workload_groups_);
  std::vector<bool> packed(pieces.size(), false);
  size_t group = 0;
  for (const auto& members : packer.pack(std::move(documents), /*flush=*/false)) {
    NanoBatch& nano_batch = batch.nano_batches[group++ / static_cast<size_t>(workload_groups_)];
    nano_batch.groups.push_back(static_cast<int64_t>(members.size()));
    for (const WlbPacker::Document& member : members) {
      packed[static_cast<size_t>(member.id)] = true;
      nano_batch.documents.push_back(pieces[static_cast<size_t>(member.id)]);
    }
  }
  for (size_t i = 0; i < pieces.size(); ++i)
    if (!packed[i]) state_.waiting.push_back(pieces[i]);
}

GlobalBatch BatchStream::next_in_order() {
  GlobalBatch batch;
  batch.step = state_.step++;
  batch.rows = inputs_.rows();
  batch.nano_batches.resize(inputs_.micro_batches * inputs_.nano_batches);
  std::vector<int64_t> room(batch.nano_batches.size(), batch.rows);

  const std::vector<Piece> earlier = std::exchange(state_.passed_over, {});
  size_t taken = 0;
  while (static_cast<int64_t>(state_.passed_over.size()) < inputs_.window) {
    const auto roomiest = std::max_element(room.begin(), room.end());
    if (*roomiest == 0) break;
    const Piece piece = taken < earlier.size() ? earlier[taken++] : draw();
    if (piece.tokens.size() > *roomiest) {
      state_.passed_over.push_back(piece);
      continue;
    }
    *roomiest -= piece.tokens.size();
    batch.nano_batches[roomiest - room.begin()].documents.push_back(piece);
  }
  state_.passed_over.insert(state_.passed_over.end(), earlier.begin() + static_cast<int64_t>(taken),
                            earlier.end());
  return batch;
}

std::string BatchStream::dump_state(const StreamState& state) const {
  const auto pieces_json = [](const std::vector<Piece>& pieces) {
    Json out = Json::array();
    for (const Piece& piece : pieces) out.push_back({piece.doc, piece.tokens.begin, piece.tokens.end});
    return out;
  };
  Json out = {{"inputs", inputs_json(source_, inputs_, lengths_digest_)},
              {"step", state.step},
              {"epoch", state.epoch},
              {"next", state.next},
              {"next_token", state.next_token},
              {"passed_over", pieces_json(state.passed_over)}};
  if (!state.waiting.empty()) out["waiting"] = pieces_json(state.waiting);
  return out.dump(1) + "\n";
}

void BatchStream::restore_state(std::string_view text, const std::string& origin) {
  const Json saved = parse_json(text, origin);
  StreamState state;
  try {
    const Json here = inputs_json(source_, inputs_, lengths_digest_), &there = saved.at("inputs");
    for (const auto& [key, value] : here.items()) {
      const bool of_data = key == "documents" || key == "lengths";
      DISTCA_CHECK_INPUT(!of_data || there.at(key) == value,
                         "{}: written for another dataset than {}: {} was {} and is {}", origin, source_.name,
                         key, there.at(key).dump(), value.dump());
      DISTCA_CHECK_INPUT(there.at(key) == value,
                         "{}: written with {} = {}, not {}: a run goes on with the same", origin, key,
                         there.at(key).dump(), value.dump());
    }
    saved.at("step").get_to(state.step);
    saved.at("epoch").get_to(state.epoch);
    saved.at("next").get_to(state.next);
    saved.at("next_token").get_to(state.next_token);
    const auto read_piece = [&](const Json& entry) {
      const Piece piece{entry.at(0), {entry.at(1), entry.at(2)}};
      DISTCA_CHECK_INPUT(piece.doc >= 0 && piece.doc < source_.documents && piece.tokens.begin >= 0 &&
                             !piece.tokens.empty() && piece.tokens.end <= source_.length(piece.doc) &&
                             piece.tokens.size() <= inputs_.context,
                         "{}: no such document: {}", origin, entry.dump());
      return piece;
    };
    for (const Json& entry : saved.at("passed_over")) state.passed_over.push_back(read_piece(entry));
    for (const Json& entry : saved.value("waiting", Json::array()))
      state.waiting.push_back(read_piece(entry));
  } catch (const Json::exception&) {
    throw InputError(
        format("{}: not the state of a data stream: a part is missing or of the wrong type", origin));
  }
  DISTCA_CHECK_INPUT(state.step >= 0 && state.epoch >= 0 && state.next >= 0 &&
                         state.next <= source_.documents && state.next_token >= 0 &&
                         static_cast<int64_t>(state.passed_over.size()) <= inputs_.window,
                     "{}: not a state this dataset can be in", origin);
  if (workload_groups_ == 0) {
    state.passed_over.insert(state.passed_over.begin(), state.waiting.begin(), state.waiting.end());
    state.waiting.clear();
  }
  state_ = std::move(state);
}

}  // namespace distca
