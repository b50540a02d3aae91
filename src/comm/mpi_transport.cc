#include "comm/mpi_transport.h"

#include <algorithm>

#include "base/check.h"

namespace distca {
namespace {

constexpr int64_t kPiece = int64_t{1} << 30;  // MPI counts bytes in an int

void check(int code, const char* what) {
  if (code == MPI_SUCCESS) return;
  char text[MPI_MAX_ERROR_STRING];
  int length = 0;
  MPI_Error_string(code, text, &length);
  throw Error(format("{} failed: {}", what, std::string(text, length)));
}

}  // namespace

MpiTransport::MpiTransport() {
  int provided = 0, rank = 0, size = 1;
  check(MPI_Init_thread(nullptr, nullptr, MPI_THREAD_FUNNELED, &provided), "MPI_Init_thread");
  DISTCA_CHECK(provided >= MPI_THREAD_FUNNELED,
               "this MPI library allows no threads beside the one that calls it");
  MPI_Comm_rank(MPI_COMM_WORLD, &rank);
  MPI_Comm_size(MPI_COMM_WORLD, &size);
  rank_ = rank;
  world_size_ = size;
  check(MPI_Comm_dup(MPI_COMM_WORLD, &messages_), "MPI_Comm_dup");
  check(MPI_Comm_dup(MPI_COMM_WORLD, &data_), "MPI_Comm_dup");
  MPI_Comm_set_errhandler(messages_, MPI_ERRORS_RETURN);
  MPI_Comm_set_errhandler(data_, MPI_ERRORS_RETURN);
}

void MpiTransport::post_message(int32_t peer, int32_t kind, std::string bytes) {
  Message& message = sent_.emplace_back();
  message.bytes = std::move(bytes);
  check(MPI_Isend(message.bytes.data(), static_cast<int>(message.bytes.size()), MPI_BYTE, peer, kind,
                  messages_, &message.request),
        "MPI_Isend");
}

int64_t MpiTransport::poll_messages(const std::function<void(int32_t, int32_t, const std::string&)>& take) {
  for (int found = 1; found;) {
    MPI_Message handle;
    MPI_Status status;
    check(MPI_Improbe(MPI_ANY_SOURCE, MPI_ANY_TAG, messages_, &found, &handle, &status), "MPI_Improbe");
    if (!found) break;
    int bytes = 0;
    MPI_Get_count(&status, MPI_BYTE, &bytes);
    Message& message = received_.emplace_back();
    message.peer = status.MPI_SOURCE;
    message.kind = status.MPI_TAG;
    message.bytes.resize(bytes);
    check(MPI_Imrecv(message.bytes.data(), bytes, MPI_BYTE, &handle, &message.request), "MPI_Imrecv");
  }
  const auto finished = [](Message& message) {
    int done = 0;
    check(MPI_Test(&message.request, &done, MPI_STATUS_IGNORE), "MPI_Test");
    return done != 0;
  };
  sent_.remove_if(finished);
  int64_t taken = 0;
  for (auto at = received_.begin(); at != received_.end();) {
    if (!finished(*at)) {
      ++at;
      continue;
    }
    take(at->peer, at->kind, at->bytes);
    at = received_.erase(at);
    ++taken;
  }
  return taken;
}

template <typename Begin>
int64_t MpiTransport::transfer(const std::vector<Segment>& segments, const Owner& owner, Begin begin) {
  int64_t count = 0;
  for (const Segment& segment : segments) {
    for (int64_t at = 0; at < segment.bytes; at += kPiece, ++count) {
      const int bytes = static_cast<int>(std::min(kPiece, segment.bytes - at));
      MPI_Request request;
      check(begin(segment.data + at, bytes, owner.call->pairs[owner.pair].peer, &request),
            "starting a transfer");
      transfers_.push_back(request);
      owners_.push_back(owner);
    }
  }
  return count;
}

int64_t MpiTransport::send(const std::vector<Segment>& segments, int32_t tag,
                           const std::shared_ptr<MpiCall>& call, size_t pair) {
  const Owner owner{call, pair, /*coming=*/false};
  return transfer(segments, owner, [&](char* data, int bytes, int32_t peer, MPI_Request* request) {
    return MPI_Isend(data, bytes, MPI_BYTE, peer, tag, data_, request);
  });
}

int64_t MpiTransport::receive(const std::vector<Segment>& segments, int32_t tag,
                              const std::shared_ptr<MpiCall>& call, size_t pair) {
  const Owner owner{call, pair, /*coming=*/true};
  return transfer(segments, owner, [&](char* data, int bytes, int32_t peer, MPI_Request* request) {
    return MPI_Irecv(data, bytes, MPI_BYTE, peer, tag, data_, request);
  });
}

int64_t MpiTransport::poll_transfers(const std::function<void(MpiCall&, MpiPair&, bool)>& done) {
  if (transfers_.empty()) return 0;
  int count = 0;
  std::vector<int> indices(transfers_.size());
  check(MPI_Testsome(static_cast<int>(transfers_.size()), transfers_.data(), &count, indices.data(),
                     MPI_STATUSES_IGNORE),
        "MPI_Testsome");
  if (count == MPI_UNDEFINED || count == 0) return 0;
  std::sort(indices.begin(), indices.begin() + count, std::greater<>());
  for (int i = 0; i < count; ++i) {
    const Owner owner = owners_[indices[i]];
    transfers_.erase(transfers_.begin() + indices[i]);
    owners_.erase(owners_.begin() + indices[i]);
    done(*owner.call, owner.call->pairs[owner.pair], owner.coming);
  }
  return count;
}

void MpiTransport::finalize() {
  for (Message& message : sent_) MPI_Wait(&message.request, MPI_STATUS_IGNORE);
  MPI_Comm_free(&messages_);
  MPI_Comm_free(&data_);
  MPI_Finalize();
}

void MpiTransport::abort(int code) {
  MPI_Abort(MPI_COMM_WORLD, code);
}

}  // namespace distca
