// Calls split() on a machine of three processors, whatever this one has. Exits with 1 at the first
// check that fails; an exception that leaves a thread ends the process.
#include <sched.h>

#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <stdexcept>

#include "parallel.h"

std::atomic<int> asked = 0;

// Stands for the C library's.
extern "C" int sched_getaffinity(pid_t, size_t, cpu_set_t* set) noexcept {
  ++asked;
  CPU_ZERO(set);
  for (int processor = 0; processor < 3; ++processor) CPU_SET(processor, set);
  return 0;
}

namespace {

constexpr size_t kCount = 9, kLarge = size_t(1) << 30;

void check(bool good, const char* expected) {
  if (good) return;
  std::puts(expected);
  std::exit(1);
}

// Splits; the part that holds `bad` throws. Returns the number of parts that ran.
int run(size_t work, size_t bad, bool& caught) {
  std::atomic<int> parts = 0, covered = 0;
  caught = false;
  try {
    gateloop::split(kCount, work, [&](size_t first, size_t last) {
      ++parts;
      covered += int(last - first);
      if (first <= bad && bad < last) throw std::runtime_error("bad");
    });
  } catch (const std::runtime_error&) {
    caught = true;
  }
  check(covered == kCount, "the parts cover everything");
  return parts;
}

}  // namespace

int main(int count, char** arguments) {
  if (count == 3) {  // a file of memberships and the mounted groups
    std::printf("%zu\n", gateloop::count_processors(arguments[1], arguments[2]));
    return 0;
  }
  bool caught;
  check(run(1000, kCount, caught) == 1 && asked == 0, "little work asks for no processors");
  for (size_t bad : {size_t(0), kCount / 2, kCount - 1, kCount}) {
    check(run(kLarge, bad, caught) == 3, "a part for each processor");
    check(caught == (bad < kCount), "the caller gets a part's exception");
  }
  check(asked == 1, "the processors are counted once");
  gateloop::split(0, kLarge, [](size_t, size_t) { check(false, "nothing has no parts"); });
}
