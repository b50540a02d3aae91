// The MPI calls themselves: two communicators (messages between engines, data), and the requests under way.
// Used by one thread. Every function throws Error with MPI's own words when a call fails.
#pragma once

#define OMPI_SKIP_MPICXX 1  // the C interface alone: Open MPI's C++ classes need a library of their own
#define MPICH_SKIP_MPICXX 1
#include <mpi.h>

#include <functional>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "comm/mpi_call.h"

namespace distca {

class MpiTransport {
 public:
  MpiTransport();

  int32_t rank() const { return rank_; }
  int32_t world_size() const { return world_size_; }

  void post_message(int32_t peer, int32_t kind, std::string bytes);

  /// Calls take(peer, kind, bytes) for each message that has come; returns how many.
  int64_t poll_messages(const std::function<void(int32_t, int32_t, const std::string&)>& take);

  /// Begin to send / receive segments, in order; return the number of transfers, each of which is reported by
  /// poll_transfers with its call and pair.
  int64_t send(const std::vector<Segment>& segments, int32_t tag, const std::shared_ptr<MpiCall>& call,
               size_t pair);
  int64_t receive(const std::vector<Segment>& segments, int32_t tag, const std::shared_ptr<MpiCall>& call,
                  size_t pair);

  /// Calls done(call, pair, coming) for each transfer that is over; returns how many.
  int64_t poll_transfers(const std::function<void(MpiCall&, MpiPair&, bool)>& done);
  bool has_transfers() const { return !transfers_.empty(); }

  void finalize();
  void abort(int code);

 private:
  struct Message {
    MPI_Request request = MPI_REQUEST_NULL;
    int32_t peer = 0, kind = 0;
    std::string bytes;
  };
  struct Owner {
    std::shared_ptr<MpiCall> call;
    size_t pair;
    bool coming;
  };
  template <typename Begin>
  int64_t transfer(const std::vector<Segment>& segments, const Owner& owner, Begin begin);

  int32_t rank_ = 0, world_size_ = 1;
  MPI_Comm messages_ = MPI_COMM_NULL, data_ = MPI_COMM_NULL;
  std::list<Message> sent_, received_;
  std::vector<MPI_Request> transfers_;
  std::vector<Owner> owners_;  // of transfers_
};

}  // namespace distca
