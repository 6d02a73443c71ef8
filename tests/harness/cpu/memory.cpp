// Observes memory: which accesses are ordered by barriers, what has a value, where an array ends.
#include <deque>

#include "state.h"

namespace gpu {
namespace {

struct Block {  // memory of a threadgroup
  Array array;
  std::vector<char> data;
  std::vector<Cell> cells;
  bool in_use;
};
std::deque<Block> blocks;
size_t shared_bytes;

std::string place(const Array& array, ptrdiff_t index) {
  return std::string(array.name) + "[" + std::to_string(index) + "]";
}

// Threads have numbers of their own over the grid, from 1; a group's are kMostThreads long.
uint32_t own_number() { return group * kMostThreads + uint32_t(current - fibers.data()) + 1; }
Spread between(uint32_t a, uint32_t b) {
  if (a == b) return ONE;
  if ((a - 1) / kLanes == (b - 1) / kLanes) return SIMDGROUP;
  return (a - 1) / kMostThreads == (b - 1) / kMostThreads ? THREADGROUP : GRID;
}
void race(const char* what, const Array& array, ptrdiff_t index, const Access& other) {
  const auto name = [](uint32_t number) { return std::to_string((number - 1) % kMostThreads); };
  report("race: " + std::string(what) + " of " + place(array, index) + ", by threads " +
         name(own_number()) + " and " + name(other.thread));
}

uint32_t simd_time(Space space) {
  return simdgroups[current->position.simdgroup_index_in_threadgroup].time[space];
}
// Whether an access is known to be over before this thread goes on.
bool is_over(const Access& a, Space space) {
  if (!a.thread) return true;
  switch (std::max(a.spread, between(a.thread, own_number()))) {
    case ONE: return true;
    case SIMDGROUP: return a.time < std::max(simd_time(space), time_of[space]);
    case THREADGROUP: return a.time < time_of[space];
    default: return false;
  }
}
Access own_access(Space space) { return {own_number(), clock_now, ONE}; }

}  // namespace

void forget_shared() {
  for (auto& block : blocks) block.in_use = false;
  shared_bytes = 0;
}

void out_of_bounds(const char* name, ptrdiff_t index, size_t size) {
  report("out of bounds: " + std::string(name) + "[" + std::to_string(index) + "] of " +
         std::to_string(size));
  throw Fault();
}

void on_read(Array& array, ptrdiff_t index, size_t size) {
  if (index < 0 || size_t(index) >= array.bytes / size)
    out_of_bounds(array.name, index, array.bytes / size);
  array.read += size;
  if (!array.cells) return;
  Cell& cell = array.cells[index];
  if (!cell.known) report("uninitialised read of " + place(array, index));
  if (!is_over(cell.write, array.space)) race("read beside write", array, index, cell.write);
  Access now = own_access(array.space);
  if (!is_over(cell.read, array.space))
    now.spread = std::max(cell.read.spread, between(cell.read.thread, now.thread));
  cell.read = now;
}

void on_write(Array& array, ptrdiff_t index, size_t size) {
  if (index < 0 || size_t(index) >= array.bytes / size)
    out_of_bounds(array.name, index, array.bytes / size);
  array.written += size;
  Cell& cell = array.cells[index];
  if (!is_over(cell.write, array.space)) race("two writes", array, index, cell.write);
  if (!is_over(cell.read, array.space)) race("write beside read", array, index, cell.read);
  cell.write = own_access(array.space);
  cell.known = true;
}

Array& shared(uint id, const char* name, size_t size, size_t n) {
  if (blocks.size() <= id) blocks.resize(id + 1);
  Block& block = blocks[id];
  if (!block.in_use) {
    block.in_use = true;
    block.data.assign(size * n, char(0xFF));  // NaN
    block.cells.assign(n, Cell{});
    block.array = {block.data.data(), size * n, name, SHARED, block.cells.data(), 0, 0};
    shared_bytes += size * n;
    most_shared = std::max(most_shared, shared_bytes);
    if (shared_bytes > shared_limit) {
      report(std::to_string(shared_bytes) + " bytes of threadgroup memory, of which there are " +
             std::to_string(shared_limit));
      throw Fault();
    }
  }
  return block.array;
}

}  // namespace gpu
