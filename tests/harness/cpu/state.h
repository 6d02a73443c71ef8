// What the scheduler and the observation of memory share, of the threadgroup that is running.
#pragma once
#include <setjmp.h>
#include <ucontext.h>

#include <algorithm>
#include <string>
#include <vector>

#include "runtime.h"

namespace gpu {

constexpr size_t kMostThreads = 1024;

enum State { READY, AT_BARRIER, AT_SIMD, DONE };
struct Fiber {
  ucontext_t context;  // where it starts
  jmp_buf jump;        // where it goes on
  char* stack = nullptr;
  bool started;
  State state;
  int line;    // where it waits: the line of a barrier or exchange
  uint fence;  // what the barrier orders
  uint exchanges;
  Position position;
};
struct Simdgroup {
  uint32_t time[2];  // the last barrier's time, by space
  char slots[2][kLanes][16];
  uint32_t present[2];  // lanes that gave a value
};
struct Fault {};  // ends the fiber

inline std::vector<Fiber> fibers(kMostThreads);
inline std::vector<Simdgroup> simdgroups(kMostThreads / kLanes);
inline Fiber* current;
inline uint32_t group, clock_now;  // the number of the threadgroup
inline uint32_t time_of[2];        // its last barrier's time, by space
inline size_t most_shared, shared_limit;
inline std::vector<std::string> errors;

// One of each kind, which is what a message says before the index of a number.
inline void report(const std::string& what) {
  const auto kind = [](const std::string& e) { return e.substr(0, e.find('[')); };
  const auto alike = [&](const std::string& e) { return kind(e) == kind(what); };
  if (std::none_of(errors.begin(), errors.end(), alike)) errors.push_back(what);
}

void forget_shared();  // the memory of the last threadgroup

}  // namespace gpu
