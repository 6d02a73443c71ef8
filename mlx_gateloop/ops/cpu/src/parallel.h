// Work split over threads: batches first, then blocks of channels.
#pragma once

#include <algorithm>
#include <cstddef>
#include <exception>
#include <system_error>
#include <thread>
#include <vector>

#include "processors.h"

namespace gateloop {

// Two cache lines of float32, so that threads never write to the same one.
constexpr int kBlock = 32;
// With fewer elements a thread costs more than it saves.
constexpr size_t kLeastWork = 1 << 15;

// Calls `part(first, last)` on disjoint ranges that cover 0..count, on as many threads as the work
// is worth. After an exception in a part the other parts still run, then the first one is rethrown.
template <class Part>
void split(size_t count, size_t work, const Part& part) {
  if (count == 0) return;
  size_t threads = std::min(count, work / kLeastWork);
  if (threads > 1) threads = std::min(threads, processors());
  if (threads < 2) return part(0, count);
  std::vector<std::exception_ptr> errors(threads);
  auto run = [&](size_t i) noexcept {
    try {
      part(count * i / threads, count * (i + 1) / threads);
    } catch (...) {
      errors[i] = std::current_exception();
    }
  };
  {
    std::vector<std::jthread> others;  // joined at the end of this block
    others.reserve(threads);
    size_t next = 1;
    try {
      for (; next < threads; ++next) others.emplace_back(run, next);
    } catch (const std::system_error&) {  // no more threads: this one does the rest
    }
    run(0);
    for (; next < threads; ++next) run(next);
  }
  for (auto& error : errors)
    if (error) std::rethrow_exception(error);
}

// Calls `slab(b, d0, d1)` so that all channels 0..D of all batches 0..B are covered.
template <class Slab>
void split_slabs(int B, int L, int D, const Slab& slab) {
  size_t blocks = (D + kBlock - 1) / kBlock;
  split(B * blocks, size_t(B) * L * D, [&](size_t first, size_t last) {
    while (first < last) {  // the thread's blocks, one batch at a time
      size_t b = first / blocks, begin = first % blocks;
      size_t end = std::min(blocks, begin + last - first);
      slab(int(b), int(begin) * kBlock, std::min(D, int(end) * kBlock));
      first += end - begin;
    }
  });
}

// Calls `part(first, last)` on ranges of whole cache lines that cover 0..n.
template <class Part>
void split_flat(size_t n, const Part& part) {
  size_t blocks = (n + kBlock - 1) / kBlock;
  split(blocks, n,
        [&](size_t first, size_t last) { part(first * kBlock, std::min(n, last * kBlock)); });
}

}  // namespace gateloop
