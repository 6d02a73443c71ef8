// Runs the threadgroups of a grid one after the other, in a random order, each with one fiber per
// thread; a fiber runs until it waits or is done, and which one is next is random too.
#include <setjmp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include <random>

#include "state.h"

namespace gpu {
namespace {

constexpr size_t kStack = 256 * 1024;

jmp_buf scheduler;
size_t count;  // threads in this group
std::mt19937_64 random_bits;
void (*kernel)(Array*, const Position&);
Array* arguments;

// Jumps switch fibers, because swapcontext makes a system call each time.
__attribute__((noinline)) void resume(Fiber* f) {
  current = f;
  if (_setjmp(scheduler)) return;
  if (f->started) _longjmp(f->jump, 1);
  f->started = true;
  setcontext(&f->context);
}

__attribute__((noinline)) void pause() {
  if (!_setjmp(current->jump)) _longjmp(scheduler, 1);
}

void wait(State state, int line, uint fence) {
  current->state = state;
  current->line = line;
  current->fence = fence;
  pause();
}

void body() {
  try {
    kernel(arguments, current->position);
  } catch (const Fault&) {
  }
  current->state = DONE;
  pause();
}

// Lets those go on that have all arrived; says what is wrong where nobody can.
bool release() {
  size_t alive = 0, at_barrier = 0;
  int line = 0;
  bool moved = false, same = true;
  for (size_t first = 0; first < count; first += kLanes) {
    const size_t end = std::min(count, first + kLanes);
    size_t here = 0, waiting = 0;
    int simd_line = 0;
    bool simd_same = true;
    uint fence = ~0u;
    for (size_t i = first; i < end; ++i) {
      const Fiber& f = fibers[i];
      here += f.state != DONE;
      if (f.state == AT_SIMD) {
        simd_same &= !waiting++ || f.line == simd_line;
        simd_line = f.line;
        fence &= f.fence;
      } else if (f.state == AT_BARRIER) {
        same &= !at_barrier++ || f.line == line;
        line = f.line;
      }
    }
    alive += here;
    if (!waiting || waiting < here) continue;
    if (!simd_same) report("divergent simdgroup operation");
    ++clock_now;
    for (Space space : {DEVICE, SHARED})
      if (fence >> space & 1) simdgroups[first / kLanes].time[space] = clock_now;
    uint32_t present = 0, turn = 0;
    for (size_t i = first; i < end; ++i) {
      if (fibers[i].state != AT_SIMD) continue;
      fibers[i].state = READY;
      present |= 1u << (i - first);
      turn = fibers[i].exchanges & 1;
    }
    simdgroups[first / kLanes].present[turn] = present;
    moved = true;
  }
  if (at_barrier && at_barrier == alive) {
    if (!same) report("divergent barrier: threads wait at different ones");
    if (alive < count) report("divergent barrier: some threads have returned");
    ++clock_now;
    uint fence = ~0u;
    for (size_t i = 0; i < count; ++i) {
      if (fibers[i].state != AT_BARRIER) continue;
      fence &= fibers[i].fence;
      fibers[i].state = READY;
    }
    for (Space space : {DEVICE, SHARED})
      if (fence >> space & 1) time_of[space] = clock_now;
    moved = true;
  }
  if (alive && !moved)
    report(at_barrier ? "divergent barrier: only some threads wait at it"
                      : "divergent simdgroup operation");
  return alive && moved && errors.empty();
}

void start_group() {
  ++clock_now;
  time_of[DEVICE] = time_of[SHARED] = clock_now;
  for (auto& s : simdgroups) s.time[DEVICE] = s.time[SHARED] = clock_now;
  forget_shared();
  for (size_t i = 0; i < count; ++i) {
    Fiber& f = fibers[i];
    if (!f.stack) {
      f.stack =
          (char*)mmap(nullptr, kStack, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
      if (f.stack == MAP_FAILED) abort();
    }
    f.state = READY;
    f.started = false;
    f.exchanges = 0;
    getcontext(&f.context);
    f.context.uc_stack.ss_sp = f.stack;
    f.context.uc_stack.ss_size = kStack;
    f.context.uc_link = nullptr;
    makecontext(&f.context, body, 0);
  }
}

void run_group() {
  start_group();
  std::vector<Fiber*> order;
  for (size_t i = 0; i < count; ++i) order.push_back(&fibers[i]);
  do {
    std::shuffle(order.begin(), order.end(), random_bits);
    for (Fiber* f : order)
      if (f->state == READY) resume(f);
  } while (release());
}

}  // namespace

const Position& position() { return current->position; }

void barrier(uint fence, int line) { wait(AT_BARRIER, line, fence); }
void simd_barrier(uint fence, int line) { wait(AT_SIMD, line, fence); }

// Two sets of slots in turn: a lane may give its next value while others still take this one.
void give_to_lanes(const void* value, size_t size, int line) {
  Simdgroup& s = simdgroups[current->position.simdgroup_index_in_threadgroup];
  const uint lane = current->position.thread_index_in_simdgroup;
  const uint turn = ++current->exchanges & 1;
  memcpy(s.slots[turn][lane], value, size);
  wait(AT_SIMD, line, NO_FENCE);
}

const void* lane_value(uint lane) {
  const Simdgroup& s = simdgroups[current->position.simdgroup_index_in_threadgroup];
  const uint turn = current->exchanges & 1;
  return lane < kLanes && (s.present[turn] >> lane & 1) ? s.slots[turn][lane] : nullptr;
}

}  // namespace gpu

// What Python fills in, and finds changed.
struct Launch {
  gpu::Array* arrays;
  const uint8_t* outputs;  // 1; inputs: 0
  const uint32_t* sizes;   // bytes of a number
  void (*kernel)(gpu::Array*, const gpu::Position&);
  uint32_t n;
  uint32_t grid[3], group[3];
  uint64_t shared_limit, shared_bytes;
  char* errors;
  uint64_t errors_size;
};

extern "C" void launch(Launch* l) {
  using namespace gpu;
  std::vector<std::vector<Cell>> cells(l->n);
  for (uint32_t i = 0; i < l->n; ++i) {
    if (!l->outputs[i]) continue;
    cells[i].assign(l->arrays[i].bytes / l->sizes[i], Cell{});
    l->arrays[i].cells = cells[i].data();
  }
  kernel = l->kernel;
  arguments = l->arrays;
  errors.clear();
  most_shared = 0;
  clock_now = 0;
  shared_limit = l->shared_limit;
  random_bits.seed(0);
  uint32_t groups[3];
  for (int i = 0; i < 3; ++i) groups[i] = (l->grid[i] + l->group[i] - 1) / l->group[i];
  std::vector<uint32_t> order(groups[0] * groups[1] * groups[2]);
  for (size_t i = 0; i < order.size(); ++i) order[i] = uint32_t(i);
  std::shuffle(order.begin(), order.end(), random_bits);
  for (uint32_t number : order) {
    if (!errors.empty()) break;
    group = number;
    const uint3 at{number % groups[0], number / groups[0] % groups[1],
                   number / groups[0] / groups[1]};
    const auto size_of = [&](int axis, uint32_t index) {  // the last group may be smaller
      return std::min(l->group[axis], l->grid[axis] - index * l->group[axis]);
    };
    const uint3 size{size_of(0, at.x), size_of(1, at.y), size_of(2, at.z)};
    count = size_t(size.x) * size.y * size.z;
    const uint3 full{l->group[0], l->group[1], l->group[2]};
    const uint3 grid{l->grid[0], l->grid[1], l->grid[2]};
    for (uint i = 0; i < count; ++i) {
      Position& p = fibers[i].position;
      p.thread_position_in_threadgroup = {i % size.x, i / size.x % size.y, i / size.x / size.y};
      const uint3& in = p.thread_position_in_threadgroup;
      p.thread_position_in_grid = {at.x * full.x + in.x, at.y * full.y + in.y,
                                   at.z * full.z + in.z};
      p.threadgroup_position_in_grid = at;
      p.threadgroups_per_grid = {groups[0], groups[1], groups[2]};
      p.threads_per_grid = p.grid_size = grid;
      p.grid_origin = {0, 0, 0};
      p.threads_per_threadgroup = size;
      p.dispatch_threads_per_threadgroup = full;
      p.thread_index_in_threadgroup = i;
      p.thread_index_in_simdgroup = i % kLanes;
      p.simdgroup_index_in_threadgroup = i / kLanes;
      p.simdgroups_per_threadgroup = uint(count + kLanes - 1) / kLanes;
      p.dispatch_simdgroups_per_threadgroup = (full.x * full.y * full.z + kLanes - 1) / kLanes;
      p.threads_per_simdgroup = p.thread_execution_width = kLanes;
    }
    run_group();
  }
  l->shared_bytes = most_shared;
  std::string all;
  for (const auto& e : errors) all += e + "\n";
  snprintf(l->errors, l->errors_size, "%s", all.c_str());
}
