#include "train/stop_signal.h"

#include <csignal>

namespace distca {
namespace {

volatile std::sig_atomic_t signalled = 0;

void remember(int signal) {
  signalled = 1;
  std::signal(signal, SIG_DFL);
}

}  // namespace

void catch_stop_signal() {
  std::signal(SIGTERM, remember);
}

bool stop_was_signalled() {
  return signalled != 0;
}

}  // namespace distca
