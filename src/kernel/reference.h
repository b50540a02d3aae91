// The slow, obvious core attention that every other kernel is tested against: one row and head after another,
// all scores of a row at once. Float32 and float64 (arithmetic in the type itself), and bfloat16 storage with
// float32.
#pragma once

#include "kernel/attention.h"

namespace distca {

template <typename T>
void reference_attention_forward(const AttentionForward<T>& args);

template <typename T>
void reference_attention_backward(const AttentionBackward<T>& args);

}  // namespace distca
