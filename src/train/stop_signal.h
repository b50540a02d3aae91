// SIGTERM, by which batch systems announce that a job's time is up, ends a run between two steps.
#pragma once

namespace distca {

/// From now on the first SIGTERM is remembered instead of ending the process; a second one ends it.
void catch_stop_signal();

bool stop_was_signalled();

}  // namespace distca
